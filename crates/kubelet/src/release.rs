//! Gives back what a kubelet keeps while its pods may come back: volume mounts and cgroups.

use std::io;
use std::path::Path;

use crate::cgroups::Cgroups;
use crate::volumes::mounts;

/// For a node that stops with its pods: unmounts every volume below `root_dir` and removes the pods' cgroups. Only what is
/// no longer used goes; the next start makes it anew.
///
/// # Errors
/// The first mount or cgroup that would not go; the others are still tried.
pub fn release(root_dir: &Path, cgroup_root: &str) -> io::Result<()> {
    let root_dir = std::fs::canonicalize(root_dir)?;
    let mut outcome = Ok(());
    for point in mounts::mounted_below(&root_dir)? {
        outcome = outcome.and(mounts::unmount(&point).map_err(io::Error::other));
    }
    outcome.and(Cgroups::new(cgroup_root).remove_all().map_err(io::Error::other))
}
