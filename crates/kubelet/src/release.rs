//! Gives back what a kubelet keeps while its pods may come back: volume mounts and cgroups.

use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

const CGROUPS: &str = "/sys/fs/cgroup";

/// For a node that stops with its pods: unmounts every volume below `root_dir` and removes the pods' cgroups. Only what is
/// no longer used goes; the next start makes it anew.
///
/// # Errors
/// The first mount or cgroup that would not go; the others are still tried.
pub fn release(root_dir: &Path, cgroup_root: &str) -> io::Result<()> {
    let mut outcome = Ok(());
    let mut keep_first = |result: io::Result<()>| {
        if outcome.is_ok() {
            outcome = result;
        }
    };
    for mount in mounts_below(root_dir)? {
        keep_first(umount2(&mount, MntFlags::MNT_DETACH).map_err(io::Error::from));
    }
    for tree in cgroup_trees(cgroup_root.trim_matches('/')) {
        keep_first(remove_tree(&tree));
    }
    outcome
}

/// Deepest first.
fn mounts_below(root: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mounts")?;
    let places = table.lines().filter_map(|line| line.split(' ').nth(1));
    let mut found: Vec<PathBuf> = places
        .map(|place| PathBuf::from(place.replace("\\040", " ")))
        .filter(|place| place.starts_with(root))
        .collect();
    found.sort();
    found.reverse();
    Ok(found)
}

/// One tree with cgroup v2, one per controller with v1.
fn cgroup_trees(name: &str) -> Vec<PathBuf> {
    let unified = Path::new(CGROUPS).join(name);
    let controllers = std::fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path().join(name));
    std::iter::once(unified).chain(controllers).filter(|path| path.is_dir()).collect()
}

fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
