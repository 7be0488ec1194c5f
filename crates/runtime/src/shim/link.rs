//! The runtime's end of a shim's socket: calls, their answers, and the exits the shim pushes.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use super::protocol::{Answer, Call, ContainerState, Event, FromShim, Request, SOCKET, receive, send};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("cannot reach the pod's shim: {0}")]
    Connect(#[source] io::Error),
    #[error("the pod's shim is gone")]
    Gone,
    #[error("the pod's shim did not answer within {} seconds", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Refused(String),
}

/// What a shim tells without being asked.
#[derive(Debug)]
pub(crate) enum Told {
    Exited {
        container: String,
        state: ContainerState,
    },
    /// The connection ended: the shim died, or was asked to.
    Gone,
}

/// How long a shim may take over what it does itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a shim may take to launch a process, as upstream's `--runtime-request-timeout`.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(120);

fn timeout_of(request: &Request) -> Duration {
    match request {
        Request::Create { .. } | Request::Exec { .. } => LAUNCH_TIMEOUT,
        _ => ANSWER_TIMEOUT,
    }
}

type Reply = Result<(Answer, Vec<OwnedFd>), LinkError>;

/// A connection to one shim.
pub(crate) struct Link {
    socket: AsyncFd<OwnedFd>,
    /// The shim's process, by descriptor: its number may be another's once it has died.
    shim: OwnedFd,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    gone: bool,
    calls: HashMap<u64, oneshot::Sender<Reply>>,
    execs: HashMap<String, oneshot::Sender<i32>>,
}

impl Link {
    /// Connects to the shim of a sandbox directory; what it tells goes to `told`, `Gone` last.
    pub(crate) fn connect(directory: &Path, told: mpsc::UnboundedSender<Told>) -> Result<Arc<Self>, LinkError> {
        let connected = || -> io::Result<_> {
            let at = File::open(directory)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", at.as_raw_fd()))?;
            rustix::net::connect(&socket, &address)?;
            let peer = rustix::net::sockopt::socket_peercred(&socket)?;
            let shim = rustix::process::pidfd_open(peer.pid, rustix::process::PidfdFlags::empty())?;
            // SAFETY: the AsyncFd owns the socket and nothing else can close it.
            Ok((unsafe { AsyncFd::register(socket) }?, shim))
        };
        let (socket, shim) = connected().map_err(LinkError::Connect)?;
        let link = Arc::new(Self { socket, shim, waiting: Mutex::default() });
        tokio::spawn(listen(link.clone(), told));
        Ok(link)
    }

    /// Sends a request and waits for its answer, which is given up after the time that such a request may take.
    pub(crate) async fn call(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Reply {
        let limit = timeout_of(&request);
        self.call_within(limit, request, fds).await
    }

    async fn call_within(&self, limit: Duration, request: Request, fds: &[BorrowedFd<'_>]) -> Reply {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting.lock();
            if waiting.gone {
                return Err(LinkError::Gone);
            }
            waiting.next += 1;
            let id = waiting.next;
            waiting.calls.insert(id, answer);
            id
        };
        let call = Call { id, request };
        let outcome = tokio::time::timeout(limit, async {
            let sent = self.socket.async_io(tokio::io::Interest::WRITABLE, |socket| send(socket.as_fd(), &call, fds));
            match sent.await {
                Ok(()) => answered.await.unwrap_or(Err(LinkError::Gone)),
                Err(_) => Err(LinkError::Gone),
            }
        });
        let outcome = outcome.await.unwrap_or(Err(LinkError::Timeout(limit)));
        if outcome.is_err() {
            self.waiting.lock().calls.remove(&id);
        }
        outcome
    }

    /// A call whose answer is only success.
    pub(crate) async fn tell(&self, request: Request) -> Result<(), LinkError> {
        self.call(request, &[]).await.map(drop)
    }

    pub(crate) async fn state(&self) -> Result<std::collections::BTreeMap<String, ContainerState>, LinkError> {
        match self.call(Request::State, &[]).await?.0 {
            Answer::State(states) => Ok(states),
            Answer::Done => Err(LinkError::Refused("the shim did not answer with its state".to_owned())),
        }
    }

    /// Resolves with the exit code of an exec that is about to be asked for; with an error if the shim dies first.
    pub(crate) fn expect_exec(&self, exec: &str) -> oneshot::Receiver<i32> {
        let (exited, exit) = oneshot::channel();
        self.waiting.lock().execs.insert(exec.to_owned(), exited);
        exit
    }

    pub(crate) fn forget_exec(&self, exec: &str) {
        self.waiting.lock().execs.remove(exec);
    }

    /// Kills a shim that does not answer. The connection ends with it.
    pub(crate) fn kill_shim(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.shim, rustix::process::Signal::KILL);
    }

    fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.gone = true;
        waiting.calls.clear();
        waiting.execs.clear();
    }
}

async fn listen(link: Arc<Link>, told: mpsc::UnboundedSender<Told>) {
    loop {
        let message =
            link.socket.async_io(tokio::io::Interest::READABLE, |socket| receive::<FromShim>(socket.as_fd())).await;
        match message {
            Ok(Some((FromShim::Reply { call, result }, fds))) => {
                if let Some(caller) = link.waiting.lock().calls.remove(&call) {
                    let _ = caller.send(result.map(|answer| (answer, fds)).map_err(LinkError::Refused));
                }
            }
            Ok(Some((FromShim::Event(Event::ExecExited { exec, code }), _))) => {
                if let Some(waiter) = link.waiting.lock().execs.remove(&exec) {
                    let _ = waiter.send(code);
                }
            }
            Ok(Some((FromShim::Event(Event::Exited { container, state }), _))) => {
                let _ = told.send(Told::Exited { container, state });
            }
            Ok(None) | Err(_) => break,
        }
    }
    link.end();
    let _ = told.send(Told::Gone);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket on which nobody ever answers, as that of a shim that is stopped or stuck.
    #[tokio::test(start_paused = true)]
    async fn a_shim_that_does_not_answer_is_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = File::open(folder.path()).expect("opened");
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", at.as_raw_fd())).expect("an address");
        rustix::net::bind(&listener, &address).expect("bound");
        rustix::net::listen(&listener, 1).expect("listening");
        let link = Link::connect(folder.path(), mpsc::unbounded_channel().0).expect("connected");
        let kill = Request::Kill { container: "c".to_owned(), signal: 9 };
        assert!(matches!(link.tell(kill).await, Err(LinkError::Timeout(limit)) if limit == ANSWER_TIMEOUT));
        let create = Request::Create { container: "c".to_owned() };
        assert!(matches!(link.tell(create).await, Err(LinkError::Timeout(limit)) if limit == LAUNCH_TIMEOUT));
        assert!(link.waiting.lock().calls.is_empty());
    }
}
