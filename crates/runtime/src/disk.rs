//! Small files that must be whole, and directories that must be gone.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Directories that are open at once while a tree is removed.
const MAX_OPEN: usize = 64;
/// Damaged files that are kept for the operator.
const MAX_DAMAGED: usize = 100;

/// Writes through a neighbour and a rename: readers see the old bytes or the new ones, never half. For files that nobody reads after
/// a reboot: a power cut may leave any of it, or nothing.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, false)
}

/// The same, and once it returns the file is on disk as it is. Takes as long as the disk does: not for async threads.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, true)?;
    path.parent().map_or(Ok(()), sync_directory)
}

fn write(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    if sync {
        file.sync_all()?;
    }
    fs::rename(&fresh, path)
}

/// Makes a file durable that was written without.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Makes the names in a directory durable: a rename is not, before.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes every file and directory of a tree durable.
pub(crate) fn sync_tree(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    sync_directory(root)
}

/// Moves a file that cannot be used into `damaged` as `name`, where the operator finds it. The oldest of too many are dropped.
pub(crate) fn set_aside(file: &Path, damaged: &Path, name: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(damaged)?;
    let place = damaged.join(format!("{}-{name}", jiff::Timestamp::now().as_nanosecond()));
    fs::rename(file, &place)?;
    let mut kept = fs::read_dir(damaged)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    kept.sort();
    for old in kept.iter().rev().skip(MAX_DAMAGED) {
        remove(old)?;
    }
    Ok(place)
}

/// Removes everything in a directory, but not the directory.
pub(crate) fn empty(directory: &Path) -> io::Result<()> {
    prune(directory, |_| false)
}

/// Removes the entries of a directory whose name `keep` does not want.
pub(crate) fn prune(directory: &Path, keep: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(&keep) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file or a tree; something that is already gone is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    remove_at(CWD, path)
}

/// The same for an entry of a directory. The tree may be what a container has made of it, so it may be nested deeper than there are
/// descriptors or stack: what is too deep is first moved up.
pub(crate) fn remove_at(directory: impl AsFd, path: &Path) -> io::Result<()> {
    match unlinkat(&directory, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => (),
        Err(error) => return Err(error.into()),
    }
    let root = open(&directory, path)?;
    while remove_children(&root)? {}
    Ok(unlinkat(&directory, path, AtFlags::REMOVEDIR)?)
}

/// Removes all below `root`, except that directories which are too deep become children of `root`. True if there were any.
fn remove_children(root: &OwnedFd) -> io::Result<bool> {
    let mut moved = false;
    let mut above: Vec<(Dir, CString)> = Vec::new();
    let mut here = Dir::read_from(root)?;
    loop {
        let Some(entry) = here.next() else {
            let Some((parent, name)) = above.pop() else { return Ok(moved) };
            unlinkat(parent.fd()?, &name, AtFlags::REMOVEDIR)?;
            here = parent;
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(here.fd()?, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => (),
            Err(Errno::ISDIR | Errno::PERM) if above.len() < MAX_OPEN => {
                let child = Dir::new(open(here.fd()?, name)?)?;
                above.push((std::mem::replace(&mut here, child), name.to_owned()));
            }
            Err(Errno::ISDIR | Errno::PERM) => {
                moved = true;
                // A name that the tree cannot have been prepared for.
                renameat(here.fd()?, name, root, format!(".removal-{}", uuid::Uuid::new_v4().simple()))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn open(directory: impl AsFd, path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_written_file_is_the_new_one_and_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        for (content, write) in [("a", write_atomically as fn(&Path, &[u8]) -> io::Result<()>), ("b", write_durably)] {
            write(&folder.path().join("file"), content.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(folder.path().join("file")).expect("read"), content);
            assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1);
        }
        assert!(write_durably(&folder.path().join("missing/file"), b"").is_err());
    }

    /// Deeper than a thread of this size could recurse, and than a process may open directories.
    #[test]
    fn a_tree_of_any_depth_is_removed_and_no_link_is_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = tempfile::tempdir().expect("a folder");
        fs::write(outside.path().join("kept"), "").expect("written");
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).expect("made");
        let mut at = open(CWD, &tree).expect("opened");
        for level in 0..3000 {
            for name in ["a", "b"].iter().take(1 + usize::from(level % 1000 == 0)) {
                rustix::fs::mkdirat(&at, *name, Mode::from_raw_mode(0o755)).expect("made");
            }
            if level % 1000 == 0 {
                rustix::fs::symlinkat(outside.path(), &at, "link").expect("linked");
            }
            at = open(&at, "a").expect("opened");
        }
        let removal = std::thread::Builder::new().stack_size(128 << 10).spawn(move || remove(&tree)).expect("a thread");
        removal.join().expect("a result").expect("removed");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
        symlink(outside.path(), folder.path().join("link")).expect("linked");
        remove(&folder.path().join("link")).expect("removed");
        remove(&folder.path().join("link")).expect("nothing to remove");
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn the_newest_damaged_files_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let damaged = folder.path().join("damaged");
        for n in 0..MAX_DAMAGED + 3 {
            let file = folder.path().join("file");
            fs::write(&file, n.to_string()).expect("written");
            set_aside(&file, &damaged, "file").expect("moved");
        }
        let kept =
            fs::read_dir(&damaged).expect("read").map(|e| fs::read_to_string(e.expect("read").path()).expect("read"));
        let kept: std::collections::BTreeSet<usize> = kept.map(|n| n.parse().expect("a number")).collect();
        assert_eq!(kept, (3..MAX_DAMAGED + 3).collect());
    }
}
