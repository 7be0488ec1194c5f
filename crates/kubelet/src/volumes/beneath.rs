//! Folders and files of volumes that containers can change at the same time: made, opened and changed through descriptors only.
//!
//! A path names something else as soon as a container puts a link in its place. A descriptor does not, and here none is opened
//! through a link: whatever a container swaps in, only what is beneath the volume is touched.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, mkdirat, openat, openat2};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes the folder `name` with this mode, whatever the umask, unless it exists; and opens what is there, which may be a file.
///
/// # Errors
/// If a link is there, or comes there meanwhile.
pub(super) fn make_dir(parent: impl AsFd, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
    match mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => {
            let made = openat(&parent, name, DIRECTORY, Mode::empty())?;
            fchmod(&made, mode)?;
            Ok(made)
        }
        Err(Errno::EXIST) => {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            Ok(openat2(&parent, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Sets the mode of a folder that is no link.
pub(super) fn set_mode(folder: &Path, mode: u32) -> io::Result<()> {
    let folder = openat(CWD, folder, DIRECTORY, Mode::empty())?;
    Ok(fchmod(&folder, Mode::from_raw_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn a_link_that_a_container_swaps_in_never_gets_the_volumes_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let (volume, outside) = (folder.path().join("volume"), folder.path().join("outside"));
        std::fs::create_dir(&volume).expect("a volume");
        std::fs::create_dir(&outside).expect("a folder of the host");
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o700)).expect("a mode");
        let (sub, link) = (volume.join("sub"), volume.join("link"));
        let (over, volume) = (AtomicBool::new(false), &volume);
        std::thread::scope(|scope| {
            // The container: takes the new folder away and puts its link there, as fast as it can.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = symlink("../outside", &link);
                    let _ = std::fs::remove_dir(&sub);
                    let _ = std::fs::rename(&link, &sub);
                    let _ = std::fs::remove_file(&sub);
                }
            });
            let root = openat(CWD, volume, DIRECTORY, Mode::empty()).expect("the volume");
            for _ in 0..20_000 {
                if let Ok(made) = make_dir(&root, OsStr::new("sub"), Mode::from_raw_mode(0o6777)) {
                    let inode = rustix::fs::fstat(&made).expect("a folder").st_ino;
                    assert_ne!(inode, std::fs::metadata(&outside).expect("there").ino(), "it left the volume");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode_of(&outside), 0o700);
    }

    #[test]
    fn a_new_folder_has_the_mode_whatever_the_umask() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = openat(CWD, folder.path(), DIRECTORY, Mode::empty()).expect("a folder");
        make_dir(&root, OsStr::new("sub"), Mode::from_raw_mode(0o2777)).expect("made");
        assert_eq!(mode_of(&folder.path().join("sub")), 0o2777);
        make_dir(&root, OsStr::new("sub"), Mode::from_raw_mode(0o700)).expect("opened");
        assert_eq!(mode_of(&folder.path().join("sub")), 0o2777, "what exists keeps its mode");
    }

    #[test]
    fn a_link_is_not_followed_to_set_a_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        symlink("/", folder.path().join("link")).expect("a link");
        assert!(set_mode(&folder.path().join("link"), 0o700).is_err());
    }
}
