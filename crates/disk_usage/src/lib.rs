//! Bytes and inodes below a directory that a container writes to while it is measured.
//!
//! The tree is hostile: it is walked through descriptors, so that no link leads out of it; a walk takes a bounded time; and a tree
//! nested too deep to follow is reported as [`Usage::is_hidden`].

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat};

/// Deeper than any tree that is not made to be in the way.
const MAX_DEPTH: usize = 256;
/// Files with several links that are counted once; beyond that number each link counts.
const MAX_LINKED: usize = 100_000;

/// What a tree takes of its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
    /// The time was over before everything was counted: the figures are too low.
    pub is_partial: bool,
    /// Parts were not counted, as the tree is nested so deep that it seems meant to hide them.
    pub is_hidden: bool,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
        self.is_partial |= other.is_partial;
        self.is_hidden |= other.is_hidden;
    }
}

/// Measures a file or a tree for at most `limit`. Files that vanish meanwhile do not count; nothing there is no usage.
///
/// Holds one open directory for each level, and nothing for each entry.
pub fn measure(path: &Path, limit: Duration) -> Usage {
    let deadline = Instant::now() + limit;
    let mut usage = Usage::default();
    let mut linked = HashSet::new();
    let Ok(root) = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) else { return usage };
    count(&root, &mut usage, &mut linked);
    let Ok(root) = openat(CWD, path, FLAGS, Mode::empty()).and_then(Dir::new) else { return usage };
    let mut open = vec![root];
    let mut read: u32 = 0;
    while let Some(directory) = open.last_mut() {
        let Some(Ok(entry)) = directory.next() else {
            open.pop();
            continue;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        read = read.wrapping_add(1);
        if read.is_multiple_of(256) && Instant::now() >= deadline {
            usage.is_partial = true;
            break;
        }
        let Ok(at) = directory.fd() else { continue };
        let Ok(found) = statat(at, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        count(&found, &mut usage, &mut linked);
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            continue;
        }
        match openat(at, name, FLAGS, Mode::empty()).and_then(Dir::new) {
            Ok(child) if open.len() < MAX_DEPTH => open.push(child),
            Ok(_) => usage.is_hidden = true,
            // Removed or replaced meanwhile.
            Err(_) => (),
        }
    }
    usage
}

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn count(found: &Stat, usage: &mut Usage, linked: &mut HashSet<(u64, u64)>) {
    let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    let is_linked = !is_directory && found.st_nlink > 1 && linked.len() < MAX_LINKED;
    if is_linked && !linked.insert((found.st_dev, found.st_ino)) {
        return;
    }
    usage.bytes = usage.bytes.saturating_add(blocks(found));
    usage.inodes = usage.inodes.saturating_add(1);
}

/// As the disk counts: a sparse file takes what it has blocks for.
fn blocks(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or_default() * 512
}

/// The device of a path, to compare file systems.
///
/// # Errors
/// The path is not there.
pub fn device(path: &Path) -> io::Result<u64> {
    Ok(rustix::fs::stat(path)?.st_dev)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_tree_is_counted_without_what_links_lead_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = tempfile::tempdir().expect("a folder");
        fs::write(outside.path().join("big"), vec![1; 1 << 20]).expect("written");
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).expect("made");
        fs::write(tree.join("a/b/file"), vec![1; 64 << 10]).expect("written");
        fs::hard_link(tree.join("a/b/file"), tree.join("again")).expect("linked");
        fs::File::create(tree.join("sparse")).and_then(|file| file.set_len(1 << 40)).expect("sparse");
        std::os::unix::fs::symlink(outside.path(), tree.join("out")).expect("linked");
        let usage = measure(&tree, LONG);
        // The tree, a, b, the file once, the sparse file, the link.
        assert_eq!(usage.inodes, 6);
        assert!((64 << 10..256 << 10).contains(&usage.bytes), "{usage:?}");
        assert!(!usage.is_partial && !usage.is_hidden);
        assert_eq!(measure(&folder.path().join("none"), LONG), Usage::default());
    }

    #[test]
    fn a_walk_ends_in_time() {
        let folder = tempfile::tempdir().expect("a folder");
        for n in 0..600 {
            fs::create_dir(folder.path().join(n.to_string())).expect("made");
        }
        assert!(measure(folder.path(), Duration::ZERO).is_partial);
    }

    #[test]
    fn a_tree_that_is_too_deep_to_follow_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = rustix::fs::open(folder.path(), flags, Mode::empty()).expect("open");
        for level in 1..=MAX_DEPTH {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).expect("made");
            at = openat(&at, "d", flags, Mode::empty()).expect("open");
            let usage = measure(folder.path(), LONG);
            assert_eq!((usage.inodes, usage.is_hidden), (level as u64 + 1, level >= MAX_DEPTH));
        }
    }
}
