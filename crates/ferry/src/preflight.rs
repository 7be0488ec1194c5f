//! What a node needs of its machine, checked before anything is started.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// Every reason why this machine cannot run pods, with what to do about each.
pub(crate) fn check(data_dir: &Path) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "containers need root: run it with sudo");
    crate::pki::make_private(data_dir).with_context(|| {
        format!("the data directory {} cannot be created; choose another with --data-dir", data_dir.display())
    })?;
    writable(data_dir)?;
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !filesystems.lines().any(|line| line.ends_with("\toverlay")) {
        bail!("this kernel has no overlayfs: load it with `modprobe overlay`, or use a kernel that has it");
    }
    let cgroups = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let has_cgroup = cgroups.lines().filter_map(|line| line.split(' ').nth(2)).any(|kind| kind.starts_with("cgroup"));
    ensure!(has_cgroup, "no cgroups are mounted: mount cgroup2 on /sys/fs/cgroup");
    for namespace in ["net", "pid", "mnt", "ipc", "uts"] {
        let present = Path::new("/proc/self/ns").join(namespace).exists();
        ensure!(present, "this kernel has no {namespace} namespaces: containers cannot be isolated on it");
    }
    Ok(())
}

/// The machine's bridge and rules, for one cluster at a time: an abstract socket is bound to the same network namespace as
/// they are, and the kernel frees it with the process.
pub(crate) struct Machine(#[allow(dead_code)] UnixListener);

pub(crate) fn claim_machine() -> Result<Machine> {
    let name = SocketAddr::from_abstract_name("ferry-node")?;
    let held = UnixListener::bind_addr(&name).context(
        "another ferry runs pods on this machine: stop it first, or start this one in its own network namespace",
    )?;
    Ok(Machine(held))
}

/// Says what is wrong with a directory by writing to it.
fn writable(dir: &Path) -> Result<()> {
    let probe = dir.join(".probe");
    let written = std::fs::write(&probe, vec![0_u8; 4096]).and_then(|()| std::fs::remove_file(&probe));
    let Err(error) = written else { return Ok(()) };
    let _ = std::fs::remove_file(&probe);
    let dir = dir.display();
    match error.raw_os_error().map(nix::errno::Errno::from_raw) {
        Some(nix::errno::Errno::ENOSPC | nix::errno::Errno::EDQUOT) => {
            bail!("the disk of {dir} is full: free some space, or choose another with --data-dir")
        }
        Some(nix::errno::Errno::EROFS) => {
            bail!("{dir} is on a read-only file system: remount it, or choose another with --data-dir")
        }
        _ => Err(error).with_context(|| format!("{dir} cannot be written; choose another with --data-dir")),
    }
}
