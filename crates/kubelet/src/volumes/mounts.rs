//! Mounts below a pod's folder: in-memory file systems and bound sub-paths, and finding and removing them all.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::beneath;

#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    #[error("{step} {path}: {source}")]
    Io { step: &'static str, path: PathBuf, source: io::Error },
    #[error("{0} is still mounted")]
    Busy(PathBuf),
}

fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MountError {
    let path = path.to_owned();
    move |source| MountError::Io { step, path, source }
}

fn errno(step: &'static str, path: &Path) -> impl FnOnce(nix::errno::Errno) -> MountError {
    let path = path.to_owned();
    move |error| MountError::Io { step, path, source: error.into() }
}

/// Mounts an empty tmpfs, unless one is mounted there already.
pub(crate) fn tmpfs(path: &Path, size: Option<i64>) -> Result<(), MountError> {
    std::fs::create_dir_all(path).map_err(io("making", path))?;
    if is_mount_point(path).map_err(io("looking at", path))? {
        return Ok(());
    }
    let options = size.filter(|size| *size > 0).map(|size| format!("size={size}"));
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), options.as_deref())
        .map_err(errno("mounting tmpfs on", path))?;
    beneath::set_mode(path, 0o777).map_err(io("setting the mode of", path))
}

fn is_mount_point(path: &Path) -> io::Result<bool> {
    let above = path.parent().unwrap_or(path);
    Ok(std::fs::metadata(path)?.dev() != std::fs::metadata(above)?.dev())
}

/// Everything mounted at or below `folder`, deepest first.
pub(crate) fn mounted_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(below(&table, folder))
}

fn below(mountinfo: &str, folder: &Path) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut found: Vec<PathBuf> = points.map(PathBuf::from).filter(|point| point.starts_with(folder)).collect();
    // A later mount covers an earlier one, so the table is undone backwards.
    found.reverse();
    found.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    found
}

/// The kernel writes spaces and the like as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digits: Option<Vec<u8>> = (byte == b'\\').then(|| bytes.by_ref().take(3).collect());
        match digits {
            Some(digits) => out.push(digits.iter().fold(0, |sum, digit| (sum << 3) | (digit & 7))),
            None => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// At once for everybody who looks by name; what is in use goes with its last user.
pub(crate) fn unmount(point: &Path) -> Result<(), MountError> {
    umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).map_err(errno("unmounting", point))
}

/// Unmounts all below the folder, then deletes it. Nothing is deleted while something is mounted: a bound host folder must survive.
pub(crate) fn remove_all(folder: &Path) -> Result<(), MountError> {
    if !folder.exists() {
        return Ok(());
    }
    let folder = &std::fs::canonicalize(folder).map_err(io("resolving", folder))?;
    for point in mounted_below(folder).map_err(io("reading mounts below", folder))? {
        unmount(&point)?;
    }
    if let Some(point) = mounted_below(folder).map_err(io("reading mounts below", folder))?.pop() {
        return Err(MountError::Busy(point));
    }
    std::fs::remove_dir_all(folder).map_err(io("removing", folder))
}

/// Binds `sub_path` of a volume to `target` without ever following a link out of the volume.
pub(crate) fn bind_sub_path(volume: &Path, sub_path: &str, target: &Path) -> Result<(), MountError> {
    let source = open_sub_path(volume, sub_path).map_err(io("resolving a sub-path of", volume))?;
    let is_dir = rustix::fs::fstat(&source)
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
        .map_err(|error| io("looking at", target)(error.into()))?;
    if target.exists() {
        for point in mounted_below(target).map_err(io("reading mounts below", target))? {
            unmount(&point)?;
        }
    } else if is_dir {
        std::fs::create_dir_all(target).map_err(io("making", target))?;
    } else {
        std::fs::create_dir_all(target.parent().unwrap_or(target)).map_err(io("making", target))?;
        std::fs::File::create(target).map_err(io("making", target))?;
    }
    let handle = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    mount(Some(&handle), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(errno("binding", target))
}

/// Opens the path below the volume, making missing folders with the volume's own mode.
fn open_sub_path(volume: &Path, sub_path: &str) -> io::Result<OwnedFd> {
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(&root, sub_path, flags, Mode::empty(), ResolveFlags::BENEATH) {
        Ok(found) => return Ok(found),
        Err(rustix::io::Errno::NOENT) => (),
        Err(error) => return Err(error.into()),
    }
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&root)?.st_mode & 0o7777);
    let mut at = root;
    for part in Path::new(sub_path).components() {
        let Component::Normal(name) = part else { continue };
        at = beneath::make_dir(&at, name, mode)?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_deepest_first_and_by_whole_names() {
        let table = "1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /p/a rw - tmpfs x rw\n3 2 0:3 / /p/a/b\\040c rw - tmpfs x rw\n4 1 0:4 / /pp rw - tmpfs x rw\n";
        assert_eq!(below(table, Path::new("/p")), [PathBuf::from("/p/a/b c"), PathBuf::from("/p/a")]);
    }

    #[test]
    fn a_folder_with_mounts_is_removed_without_touching_what_was_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = folder.path().join("volume");
        std::fs::create_dir_all(volume.join("sub")).expect("a sub-folder");
        std::fs::write(volume.join("sub/file"), "kept").expect("a file");
        let pod = folder.path().join("pod");
        tmpfs(&pod.join("memory"), Some(1 << 20)).expect("a tmpfs");
        tmpfs(&pod.join("memory"), Some(1 << 20)).expect("again");
        bind_sub_path(&volume, "sub", &pod.join("bound")).expect("bound");
        bind_sub_path(&volume, "sub", &pod.join("bound")).expect("bound again");
        bind_sub_path(&volume, "sub/file", &pod.join("file")).expect("a bound file");
        assert_eq!(std::fs::read_to_string(pod.join("bound/file")).expect("read"), "kept");
        remove_all(&pod).expect("removed");
        assert!(!pod.exists());
        assert_eq!(std::fs::read_to_string(volume.join("sub/file")).expect("read"), "kept");
        assert!(mounted_below(folder.path()).expect("mounts").is_empty());
    }

    #[test]
    fn a_sub_path_cannot_leave_the_volume() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = folder.path().join("volume");
        std::fs::create_dir_all(&volume).expect("a volume");
        std::fs::write(folder.path().join("outside"), "secret").expect("a file");
        std::os::unix::fs::symlink("../outside", volume.join("relative")).expect("a link");
        std::os::unix::fs::symlink(folder.path(), volume.join("absolute")).expect("a link");
        let target = folder.path().join("target");
        for path in ["relative", "absolute", "absolute/outside", "../outside"] {
            assert!(bind_sub_path(&volume, path, &target).is_err(), "{path}");
        }
        bind_sub_path(&volume, "made/here", &target).expect("missing folders are made");
        assert!(volume.join("made/here").is_dir());
        remove_all(&target).expect("removed");
    }
}
