//! overlayfs mounts, always inside a mount namespace of the caller's own: when its last process ends the mount is gone,
//! so nothing has to be unmounted and nothing can leak.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Gives the calling thread a mount namespace of its own. Propagation stays as it is, so that volumes can be shared both ways:
/// what must stay here has to be mounted below a private mount.
pub(crate) fn own_mount_namespace() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWNS)?)
}

/// The same, but no mount made here can ever reach the host.
pub(crate) fn private_mount_namespace() -> io::Result<()> {
    own_mount_namespace()?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SLAVE | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

/// Mounts `lower` (topmost first) below `upper` at `target`.
///
/// The kernel limits the options to one page, so directories are named by descriptor, a few bytes each.
pub(crate) fn mount_overlay(lower: &[PathBuf], upper: &Path, work: &Path, target: &Path) -> io::Result<()> {
    let open = |path: &Path| File::open(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())));
    let lowers = lower.iter().map(|path| open(path)).collect::<io::Result<Vec<_>>>()?;
    let (upper, work) = (open(upper)?, open(work)?);
    let named: Vec<String> = lowers.iter().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd())).collect();
    let options = format!(
        "lowerdir={},upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{}",
        named.join(":"),
        upper.as_raw_fd(),
        work.as_raw_fd()
    );
    mount(Some("overlay"), target, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
    Ok(())
}

/// Whether this kernel and this directory's filesystem can carry overlay mounts; the error says what is missing.
pub(crate) fn probe(scratch: &Path) -> io::Result<()> {
    let names = ["lower", "upper", "work", "merged"];
    for name in names {
        fs::create_dir_all(scratch.join(name))?;
    }
    let at = |name: &str| scratch.join(name);
    let outcome = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                private_mount_namespace()?;
                mount_overlay(&[at("lower")], &at("upper"), &at("work"), &at("merged"))
            })
            .join()
    });
    fs::remove_dir_all(scratch)?;
    outcome.unwrap_or_else(|_| Err(io::Error::other("the overlayfs probe panicked")))
}
