//! `fsGroup`: gives a volume's files to the pod's group, with the modes the group needs.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, chmod, chownat, fstat, openat};

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const EXECUTE: u32 = 0o110;
const SET_GID: u32 = 0o2000;

/// Opens whatever has the name without following or touching it: not even a pipe's or a device's open is felt.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// How deep a container may nest folders before this gives up: one descriptor is held for each.
const MAX_DEPTH: usize = 256;

/// Gives a file or folder, and with `recurse` all below it, to the group. Links are given away themselves, never followed. New files
/// in a folder inherit its group through the set-gid bit.
pub(crate) fn give_to_group(path: &Path, group: u32, read_only: bool, recurse: bool) -> io::Result<()> {
    let found = openat(CWD, path, HANDLE, Mode::empty())?;
    let depth = if recurse { MAX_DEPTH } else { 0 };
    Group { id: Gid::from_raw(group), read_only }.take(&found, depth, recurse)
}

struct Group {
    id: Gid,
    read_only: bool,
}

impl Group {
    fn take(&self, found: &OwnedFd, depth: usize, recurse: bool) -> io::Result<()> {
        let stat = fstat(found)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        chownat(found, c"", None, Some(self.id), AtFlags::EMPTY_PATH)?;
        if kind.is_symlink() {
            return Ok(());
        }
        let mut mask = if self.read_only { READ_ONLY } else { READ_WRITE };
        if kind.is_dir() {
            mask |= SET_GID | EXECUTE;
        }
        // A handle cannot be given to fchmod; its name below /proc leads to the file itself and nowhere else.
        let name = PathBuf::from(format!("/proc/self/fd/{}", found.as_fd().as_raw_fd()));
        chmod(name, Mode::from_raw_mode((stat.st_mode | mask) & 0o7777))?;
        match kind.is_dir() && recurse {
            true if depth == 0 => Err(io::Error::other("folders are nested too deep")),
            true => self.take_all(found, depth - 1),
            false => Ok(()),
        }
    }

    fn take_all(&self, folder: &OwnedFd, depth: usize) -> io::Result<()> {
        let listed = openat(folder, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in Dir::new(listed)? {
            let entry = entry?;
            let name: &CStr = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            self.take(&openat(folder, name, HANDLE, Mode::empty())?, depth, true)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn files_and_folders_get_the_group_and_its_bits() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("a mode");
        give_to_group(folder.path(), 4321, false, true).expect("given");
        let look = |path: &Path| std::fs::metadata(path).map(|meta| (meta.gid(), meta.mode() & 0o7777)).expect("there");
        assert_eq!(look(&file), (4321, 0o660));
        assert_eq!(look(folder.path()), (4321, 0o2770));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        give_to_group(&file, 4321, true, true).expect("given");
        assert_eq!(look(&file), (4321, 0o640));
    }

    #[test]
    fn a_link_is_given_away_itself_and_not_what_it_points_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let (volume, outside) = (folder.path().join("volume"), folder.path().join("outside"));
        std::fs::create_dir(&volume).expect("a volume");
        std::fs::write(&outside, "").expect("a file of the host");
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        symlink(&outside, volume.join("link")).expect("a link");
        give_to_group(&volume, 4321, false, true).expect("given");
        let meta = std::fs::metadata(&outside).expect("there");
        assert_eq!((meta.gid(), meta.mode() & 0o7777), (0, 0o600));
        assert_eq!(std::fs::symlink_metadata(volume.join("link")).expect("there").gid(), 4321);
    }
}
