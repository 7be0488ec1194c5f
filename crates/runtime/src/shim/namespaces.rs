//! The pod's namespaces: made by a throw-away child, kept alive by files they are bound to, not by a pause process.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use super::protocol::{PodSetup, read_json};

#[derive(Debug, thiserror::Error)]
pub(super) enum NamespaceError {
    #[error("pod.json: {0}")]
    Setup(#[source] io::Error),
    #[error("cannot mount the pod's tmpfs: {0}")]
    Mount(#[source] io::Error),
    #[error("fork: {0}")]
    Fork(#[source] io::Error),
    #[error("{0}")]
    Child(String),
}

/// Files of the pod that its containers may write. They are on the pod's tmpfs, whose size bounds them: on the node's disk a container
/// could fill it, unseen by the limits on its local storage.
const WRITABLE_FILES: [&str; 2] = ["hostname", "resolv.conf"];

/// Makes the namespaces `pod.json` asks for and binds them to `ns/{net,ipc,uts,pid}`.
pub(super) fn set_up(directory: &Path) -> Result<(), NamespaceError> {
    let setup: PodSetup = read_json(&directory.join("pod.json")).map_err(NamespaceError::Setup)?;
    let at = directory.join("ns");
    fs::create_dir_all(&at).map_err(NamespaceError::Setup)?;
    make_mount_point(&directory.join("mnt"), !setup.host_ipc).map_err(NamespaceError::Mount)?;
    for name in WRITABLE_FILES {
        fs::copy(directory.join(name), directory.join("mnt").join(name)).map_err(NamespaceError::Setup)?;
    }
    in_child(|| make(&setup, &at))?;
    if setup.share_pid {
        in_child(|| make_pid(&at))?;
    }
    Ok(())
}

/// A small private tmpfs: the pod's /dev/shm, and the place below which root filesystems are mounted. Being private, those
/// mounts stay in the containers' own namespaces even on a host whose mounts are shared.
fn make_mount_point(at: &Path, with_shm: bool) -> io::Result<()> {
    fs::create_dir_all(at)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("shm"), at, Some("tmpfs"), flags, Some("mode=0755,size=65536k"))?;
    mount(None::<&str>, at, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)?;
    if with_shm {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir(at.join("shm"))?;
        fs::set_permissions(at.join("shm"), fs::Permissions::from_mode(0o1777))?;
    }
    Ok(())
}

/// Runs `work` in a forked child and answers its error, if any.
fn in_child(work: impl FnOnce() -> io::Result<()>) -> Result<(), NamespaceError> {
    let (mut reader, mut writer) = io::pipe().map_err(NamespaceError::Fork)?;
    // SAFETY: the shim has one thread, so the child may use any function.
    match unsafe { fork() }.map_err(|e| NamespaceError::Fork(e.into()))? {
        ForkResult::Child => {
            drop(reader);
            if let Err(error) = work() {
                let _ = write!(writer, "{error}");
            }
            std::process::exit(0)
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut failure = String::new();
            reader.read_to_string(&mut failure).map_err(NamespaceError::Fork)?;
            waitpid(child, None).map_err(|e| NamespaceError::Fork(e.into()))?;
            if failure.is_empty() { Ok(()) } else { Err(NamespaceError::Child(failure)) }
        }
    }
}

fn make(setup: &PodSetup, at: &Path) -> io::Result<()> {
    // A pod on the host's network also has the host's name.
    let kinds = [
        ("net", CloneFlags::CLONE_NEWNET, !setup.host_network),
        ("uts", CloneFlags::CLONE_NEWUTS, !setup.host_network),
        ("ipc", CloneFlags::CLONE_NEWIPC, !setup.host_ipc),
    ];
    for (name, flag, wanted) in kinds {
        if wanted {
            unshare(flag).map_err(|e| named("unshare", name, e.into()))?;
            bind(Path::new("/proc/self/ns").join(name), &at.join(name))?;
        }
    }
    if !setup.host_network {
        nix::unistd::sethostname(&setup.hostname).map_err(|e| named("set the host name", &setup.hostname, e.into()))?;
        loopback_up().map_err(|e| named("bring up", "lo", e))?;
    }
    for (name, value) in &setup.sysctls {
        // Only names that live in the namespaces made above: anything else would change the machine.
        let ours = match name.split('.').next() {
            Some("net") => !setup.host_network,
            Some("fs") => !setup.host_ipc && name.starts_with("fs.mqueue."),
            Some("kernel") => {
                !setup.host_ipc
                    && (name.starts_with("kernel.shm") || name.starts_with("kernel.msg") || name == "kernel.sem")
            }
            _ => false,
        };
        if !ours {
            return Err(io::Error::other(format!("sysctl {name} is not in a namespace of the pod")));
        }
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        fs::write(&path, value).map_err(|e| named("set sysctl", name, e))?;
    }
    Ok(())
}

/// A shared pid namespace lives as long as its first process: one that only reaps.
fn make_pid(at: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    // SAFETY: this child of the shim has one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {
            nix::sys::prctl::set_name(c"pod-init")?;
            // It must not hold the pipes of those who wait for its parent.
            close_all_but_stdio();
            loop {
                if waitpid(None, None).is_err() {
                    nix::unistd::pause();
                }
            }
        }
        ForkResult::Parent { child } => {
            fs::write(at.join("pid.init"), child.to_string())?;
            bind(PathBuf::from(format!("/proc/{child}/ns/pid")), &at.join("pid"))
        }
    }
}

fn bind(namespace: PathBuf, at: &Path) -> io::Result<()> {
    File::create(at)?;
    mount(Some(&namespace), at, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|e| named("bind", &at.display().to_string(), e.into()))
}

fn named(verb: &str, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {verb} {what}: {error}"))
}

pub(super) fn close_all_but_stdio() {
    // SAFETY: no descriptor above 2 is used afterwards by the caller.
    unsafe { nix::libc::close_range(3, u32::MAX, 0) };
}

fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: an all-zero ifreq is valid, and the name fits with its terminator.
    let mut request: nix::libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as nix::libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (nix::libc::IFF_UP | nix::libc::IFF_RUNNING) as i16;
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is an open socket and the request a whole ifreq.
    match unsafe { nix::libc::ioctl(socket.as_raw_fd(), nix::libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
