//! What the runtime and a shim say to each other: JSON messages on a sequenced-packet unix socket, with descriptors beside them.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::LinuxCapabilities;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Larger than the kernel's default send buffer, so a message is never cut.
const MAX_MESSAGE_BYTES: usize = 256 << 10;
const MAX_FDS: usize = 4;

/// Name of the shim's socket in the sandbox directory.
pub(crate) const SOCKET: &str = "shim.sock";

/// `pod.json`: what namespaces the pod has, written by the runtime before the shim starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PodSetup {
    pub hostname: String,
    pub host_network: bool,
    pub host_ipc: bool,
    pub share_pid: bool,
    pub sysctls: BTreeMap<String, String>,
}

/// `create.json`: what the shim must know of a container beside its OCI bundle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerSetup {
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    pub log_path: Option<PathBuf>,
    /// The size from which the kubelet rotates the log; none if nobody rotates it.
    #[serde(default)]
    pub log_max_bytes: Option<u64>,
    /// Unpacked layers, topmost first.
    pub lower: Vec<PathBuf>,
    /// Where its root filesystem is mounted, below the pod's private mount.
    pub rootfs: PathBuf,
    /// Made if the image does not have it.
    pub working_directory: PathBuf,
    pub cgroup_path: String,
    /// Whether the container's processes die with its first one by themselves.
    pub private_pid: bool,
    pub process: ProcessSetup,
}

/// What our executor applies itself, to the container's process and to every exec in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessSetup {
    pub capabilities: LinuxCapabilities,
    pub seccomp: bool,
    pub oom_score_adj: i32,
}

/// `state.json`: where a container stands. Written by the shim alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerState {
    pub pid: i32,
    /// Nanoseconds since 1970; zero when it has not happened.
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub oom_killed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub id: u64,
    pub request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Create {
        container: String,
    },
    Start {
        container: String,
    },
    /// With stdin, stdout, stderr beside it unless `tty`; then the answer carries the terminal.
    Exec {
        container: String,
        exec: String,
        tty: bool,
    },
    /// The answer carries the descriptors that were asked for, in this order.
    Attach {
        container: String,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    CloseStdin {
        container: String,
    },
    Kill {
        container: String,
        signal: i32,
    },
    KillExec {
        exec: String,
    },
    ReopenLog {
        container: String,
    },
    /// Forgets a container that has exited or never started; a created one is killed.
    Delete {
        container: String,
    },
    State,
    /// Kills what runs and ends the shim once it is dead.
    Shutdown,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromShim {
    Reply { call: u64, result: Result<Answer, String> },
    Event(Event),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    State(BTreeMap<String, ContainerState>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    Exited { container: String, state: ContainerState },
    ExecExited { exec: String, code: i32 },
}

pub(crate) fn container_directory(sandbox: &Path, container: &str) -> PathBuf {
    sandbox.join("containers").join(container)
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[io::IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// One message, or `None` when the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [io::IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Ok(None);
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let message = serde_json::from_slice(bytes.get(..got.bytes).unwrap_or_default())?;
    Ok(Some((message, fds)))
}
