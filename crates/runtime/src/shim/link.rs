//! The runtime's end of a shim's socket: calls, their answers, and the exits the shim pushes.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

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

type Reply = Result<(Answer, Vec<OwnedFd>), LinkError>;

/// A connection to one shim.
pub(crate) struct Link {
    socket: AsyncFd<OwnedFd>,
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
            // SAFETY: the AsyncFd owns the socket and nothing else can close it.
            Ok(unsafe { AsyncFd::register(socket) }?)
        };
        let socket = connected().map_err(LinkError::Connect)?;
        let link = Arc::new(Self { socket, waiting: Mutex::default() });
        tokio::spawn(listen(link.clone(), told));
        Ok(link)
    }

    pub(crate) async fn call(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Reply {
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
        let fds: Vec<BorrowedFd<'_>> = fds.to_vec();
        let sent =
            self.socket.async_io(tokio::io::Interest::WRITABLE, |socket| send(socket.as_fd(), &call, &fds)).await;
        if sent.is_err() {
            self.waiting.lock().calls.remove(&id);
            return Err(LinkError::Gone);
        }
        answered.await.unwrap_or(Err(LinkError::Gone))
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

    /// For a shim that does not do what it is told.
    pub(crate) fn kill_shim(&self) {
        if let Ok(peer) = rustix::net::sockopt::socket_peercred(&self.socket) {
            let _ = rustix::process::kill_process(peer.pid, rustix::process::Signal::KILL);
        }
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
