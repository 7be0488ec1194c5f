//! Calls libcontainer in a forked child that leaves its answer in a pipe, so that the shim's loop never waits.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::syscall::syscall::SyscallType;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::{ForkResult, Pid, fork};

use super::complaints;
use super::executor::Exec;
use super::protocol::{ContainerSetup, ProcessSetup};
use super::targets;
use crate::overlay;

/// As much as a pipe holds.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// What a process is given as its first three descriptors.
pub(super) enum Stdio {
    Fds([OwnedFd; 3]),
    /// A terminal made inside the container; its controlling end arrives on this socket.
    Terminal(Console),
}

/// The socket on which the controlling end of a terminal arrives.
pub(super) struct Console {
    path: PathBuf,
    listener: UnixListener,
}

impl Console {
    pub(super) fn new(directory: &Path, name: &str) -> io::Result<Self> {
        let file = format!("{name}.tty");
        // By descriptor: the path may be longer than a socket address.
        let at = File::open(directory)?;
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{file}", at.as_raw_fd()))?;
        let path = directory.join(file);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { path, listener })
    }

    /// Called when the process is up: it has sent the descriptor before it said so.
    pub(super) fn receive(self) -> io::Result<OwnedFd> {
        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
        self.listener.set_nonblocking(true)?;
        let (stream, _) = self.listener.accept()?;
        let mut bytes = [0; 4096];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&stream, &mut [io::IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let fds = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        fds.ok_or_else(|| io::Error::other("the terminal did not arrive"))
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A child that is calling libcontainer. When it has ended, its answer is in the pipe.
pub(super) struct Launch {
    pub answer: PipeReader,
    pub console: Option<Console>,
    pub pid: Pid,
}

impl Launch {
    /// The pid of the container's (or exec's) process, or why there is none. Call when the child has ended.
    pub(super) fn finish(mut self) -> Result<(Pid, Option<OwnedFd>), String> {
        let mut buffer = vec![0; MAX_ANSWER_BYTES];
        // One read: the container's process holds the other end too, so there is no end of file to wait for.
        let read = rustix::fs::fcntl_setfl(&self.answer, rustix::fs::OFlags::NONBLOCK).map_err(io::Error::from);
        let read = read.and_then(|()| self.answer.read(&mut buffer)).unwrap_or(0);
        let answer = String::from_utf8_lossy(buffer.get(..read).unwrap_or_default()).into_owned();
        let said = |what: &str| answer.lines().find_map(|line| line.strip_prefix(what));
        // Before libcontainer gives up it complains, the innermost step first: there is the reason, the error only names the step.
        let pid = match (said("pid "), said("error "), said("complaint ")) {
            (Some(pid), ..) => pid.parse().map(Pid::from_raw).map_err(|_| answer.clone())?,
            (None, Some(error), Some(complaint)) => return Err(format!("{error}: {complaint}")),
            (None, Some(error), None) => return Err(error.to_owned()),
            (None, None, _) => return Err("the process that called libcontainer died".to_owned()),
        };
        let terminal = self.console.map(Console::receive).transpose().map_err(|e| e.to_string())?;
        Ok((pid, terminal))
    }
}

/// Creates the container in `directory` up to the point where its program would be executed.
pub(super) fn create(
    oci_root: &Path,
    id: &str,
    directory: &Path,
    setup: &ContainerSetup,
    stdio: Stdio,
) -> io::Result<Launch> {
    launch(&setup.process, oci_root, id, stdio, |builder| {
        let at = |name: &str| directory.join(name);
        overlay::own_mount_namespace()
            .and_then(|()| overlay::mount_overlay(&setup.lower, &at("upper"), &at("work"), &setup.rootfs))
            .and_then(|()| make_directory(&setup.rootfs, &setup.working_directory))
            .map_err(|e| LibcontainerError::Other(format!("cannot prepare the root filesystem: {e}")))?;
        targets::check(&setup.rootfs, directory).map_err(|e| LibcontainerError::Other(e.to_string()))?;
        let container = builder.as_init(directory).with_systemd(false).with_detach(true).build()?;
        container
            .pid()
            .map(|pid| pid.as_raw())
            .ok_or_else(|| LibcontainerError::Other(format!("container {id} has no process")))
    })
}

/// Makes a directory in a root that is not to be trusted: no name in it leads out. Images may leave their working directory out.
fn make_directory(root: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
    let root = File::open(root)?;
    let mut so_far = PathBuf::from(".");
    for part in path.components().filter(|part| matches!(part, std::path::Component::Normal(_))) {
        let open =
            |path: &Path| openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT);
        let parent = open(&so_far)?;
        so_far.push(part);
        if open(&so_far).is_err() {
            mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(0o755))?;
        }
    }
    Ok(())
}

/// Runs another process in a running container; `process` is a file with its OCI description.
pub(super) fn exec(
    oci_root: &Path,
    id: &str,
    process: &Path,
    setup: &ProcessSetup,
    stdio: Stdio,
) -> io::Result<Launch> {
    launch(setup, oci_root, id, stdio, |builder| {
        let pid = builder.as_tenant().with_process(Some(process)).with_detach(true).build()?;
        Ok(pid.as_raw())
    })
}

/// Lets a created container run its program.
pub(super) fn start(oci_root: &Path, id: &str) -> Result<(), LibcontainerError> {
    Container::load(oci_root.join(id))?.start()
}

fn launch(
    setup: &ProcessSetup,
    oci_root: &Path,
    id: &str,
    stdio: Stdio,
    call: impl FnOnce(ContainerBuilder) -> Result<i32, LibcontainerError>,
) -> io::Result<Launch> {
    let (answer, mut told) = io::pipe()?;
    // SAFETY: the shim has one thread, so the child may use any function.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(told);
            let console = match stdio {
                Stdio::Fds(_) => None,
                Stdio::Terminal(console) => Some(console),
            };
            Ok(Launch { answer, console, pid: child })
        }
        ForkResult::Child => {
            drop(answer);
            let outcome = prepare(&stdio, &mut told, setup).map_err(LibcontainerError::OtherIO).and_then(|()| {
                let builder = ContainerBuilder::new(id.to_owned(), SyscallType::default())
                    .with_root_path(oci_root)?
                    .with_executor(Exec { setup: setup.clone() });
                let (builder, console) = match stdio {
                    Stdio::Fds([stdin, stdout, stderr]) => {
                        (builder.with_stdin(stdin).with_stdout(stdout).with_stderr(stderr), None)
                    }
                    Stdio::Terminal(console) => (builder.with_console_socket(Some(&console.path)), Some(console)),
                };
                let called = call(builder);
                // The socket's file belongs to the parent.
                std::mem::forget(console);
                called
            });
            let answer = match outcome {
                Ok(pid) => format!("pid {pid}"),
                Err(error) => format!("error {}", with_causes(&error)),
            };
            complaints::write_line(&mut told, &answer);
            // No destructors and no exit handlers: they belong to the shim.
            // SAFETY: _exit only ends this process.
            unsafe { nix::libc::_exit(0) }
        }
    }
}

/// Sheds what the container must not inherit: other containers' descriptors and the shim's signal mask.
fn prepare(stdio: &Stdio, told: &mut PipeWriter, setup: &ProcessSetup) -> io::Result<()> {
    let mut kept = vec![told.as_fd().as_raw_fd()];
    match stdio {
        Stdio::Fds(fds) => kept.extend(fds.iter().map(AsRawFd::as_raw_fd)),
        Stdio::Terminal(console) => kept.push(console.listener.as_raw_fd()),
    }
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept.into_iter().map(|fd| fd as u32).filter(|fd| *fd >= 3).chain([u32::MAX]) {
        if fd > from {
            // SAFETY: the descriptors in between belong to the shim's structures, which this process never touches again.
            unsafe { nix::libc::close_range(from, fd.saturating_sub(1).max(from), 0) };
        }
        from = fd.saturating_add(1);
    }
    // Nobody reads before this process has ended: what does not fit is dropped rather than waited for.
    rustix::fs::fcntl_setfl(&*told, rustix::fs::OFlags::NONBLOCK)?;
    complaints::collect(told.try_clone()?);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // SAFETY: the default action needs no handler function.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
    adjust_oom_score(setup.oom_score_adj);
    Ok(())
}

/// Lowering the score needs a capability the machine may not grant; the nearest permitted score is the present one.
fn adjust_oom_score(wanted: i32) {
    let _ = std::fs::write("/proc/self/oom_score_adj", wanted.clamp(-1000, 1000).to_string());
}

/// libcontainer's errors often say only which step failed; the cause is in their sources.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
