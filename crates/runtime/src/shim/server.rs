//! The shim's loop: one epoll over requests, output, children. It sleeps unless one of them has something to say.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::attached::Attached;
use super::process::{self, Console, Launch, Stdio};
use super::protocol::{
    Answer, Call, ContainerSetup, ContainerState, Event, FromShim, Request, SOCKET, container_directory, read_json,
    receive, send,
};
use crate::{cgroup, disk};

#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    #[error("cannot listen on the shim's socket: {0}")]
    Listen(#[source] io::Error),
    #[error("cannot wait for events: {0}")]
    Wait(#[source] io::Error),
}

/// What an epoll token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Listener,
    Children,
    Client(u64),
    Output { container: String, index: usize },
}

struct Container {
    directory: PathBuf,
    setup: ContainerSetup,
    state: ContainerState,
    pidfd: Option<OwnedFd>,
    io: Attached,
    /// Its log is full: its output is not read before this moment, or before the log is reopened.
    held_until: Option<Instant>,
}

/// How long a container waits for its full log to be rotated. Then it goes on and what it writes is dropped, as it must not depend on
/// a kubelet that is not there.
const ROTATION_TIMEOUT: Duration = Duration::from_secs(15);

enum Purpose {
    Create { container: String, io: Box<Attached>, setup: Box<ContainerSetup> },
    Exec { exec: String },
}

/// A libcontainer call under way, and who waits for it.
struct Pending {
    launch: Launch,
    purpose: Purpose,
    client: u64,
    call: u64,
}

pub(super) struct Server {
    directory: PathBuf,
    oci_root: PathBuf,
    epoll: Epoll,
    listener: OwnedFd,
    signals: SignalFd,
    sources: HashMap<u64, Source>,
    next_token: u64,
    clients: HashMap<u64, OwnedFd>,
    containers: BTreeMap<String, Container>,
    pending: HashMap<Pid, Pending>,
    /// Running execs by pid, with what is needed to signal exactly that process.
    execs: HashMap<Pid, (String, Option<OwnedFd>)>,
    /// Ends of processes nobody has claimed yet: a container may die before its launch has answered.
    unclaimed: HashMap<Pid, i32>,
    /// Who asked for the end.
    stopping: Option<(u64, u64)>,
}

impl Server {
    pub(super) fn bind(directory: &Path) -> Result<Self, ServerError> {
        let bound = || -> io::Result<Self> {
            let at = File::open(directory)?;
            disk::remove(&directory.join(SOCKET))?;
            let listener = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )?;
            let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", at.as_raw_fd()))?;
            rustix::net::bind(&listener, &address)?;
            std::fs::set_permissions(directory.join(SOCKET), std::fs::Permissions::from_mode(0o600))?;
            rustix::net::listen(&listener, 16)?;
            let mut mask = SigSet::empty();
            mask.add(Signal::SIGCHLD);
            mask.thread_block()?;
            let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
            let mut server = Self {
                directory: directory.to_owned(),
                oci_root: directory.join("oci"),
                epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
                listener,
                signals,
                sources: HashMap::new(),
                next_token: 0,
                clients: HashMap::new(),
                containers: BTreeMap::new(),
                pending: HashMap::new(),
                execs: HashMap::new(),
                unclaimed: HashMap::new(),
                stopping: None,
            };
            std::fs::create_dir_all(&server.oci_root)?;
            let listener = server.listener.try_clone()?;
            server.watch(&listener, Source::Listener)?;
            let token = server.token(Source::Children);
            server.epoll.add(&server.signals, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
            Ok(server)
        };
        bound().map_err(ServerError::Listen)
    }

    /// Serves until a shutdown request has been carried out.
    pub(super) fn run(&mut self) -> Result<(), ServerError> {
        let mut events = [EpollEvent::empty(); 32];
        loop {
            let ready = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(ServerError::Wait(error.into())),
            };
            // Requests and ended children go before output, of which a container can always have more.
            for outputs in [false, true] {
                for event in events.iter().take(ready) {
                    let Some(source) = self.sources.get(&event.data()).cloned() else { continue };
                    if matches!(source, Source::Output { .. }) == outputs {
                        self.handle(event.data(), source);
                    }
                }
            }
            // A log that was reopened in this turn.
            self.stop_holding(Instant::now());
            if let Some((client, call)) = self.stopping
                && self.pending.is_empty()
                && self.containers.values().all(|c| c.state.pid == 0 || c.state.finished_at != 0)
            {
                self.reply(client, call, Ok(Answer::Done), &[]);
                let _ = disk::remove(&self.directory.join(SOCKET));
                self.end_pod_init();
                return Ok(());
            }
        }
    }

    fn handle(&mut self, token: u64, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Children => self.reap(),
            Source::Client(client) => self.hear(token, client),
            Source::Output { container, index } => {
                let Some(found) = self.containers.get_mut(&container) else { return };
                if !found.io.pump(index) {
                    let closed = found.io.close(index);
                    self.sources.remove(&token);
                    self.unwatch(closed);
                } else if found.io.is_log_full() && found.held_until.is_none() {
                    found.held_until = Some(Instant::now() + ROTATION_TIMEOUT);
                    for (_, output) in found.io.sources() {
                        let _ = self.epoll.delete(output);
                    }
                }
            }
        }
    }

    /// How long to wait at most: until the first held container goes on.
    fn timeout(&self) -> EpollTimeout {
        let first = self.containers.values().filter_map(|container| container.held_until).min();
        let wait = first.map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        wait.and_then(|wait| EpollTimeout::try_from(wait).ok()).unwrap_or(EpollTimeout::NONE)
    }

    /// Reads the output of held containers again whose log was reopened, or was not in time.
    fn stop_holding(&mut self, now: Instant) {
        for (id, container) in &mut self.containers {
            let Some(until) = container.held_until else { continue };
            if container.io.is_log_full() {
                if now < until {
                    continue;
                }
                container.io.drop_log_records();
            }
            container.held_until = None;
            for (index, output) in container.io.sources() {
                let source = Source::Output { container: id.clone(), index };
                let token = self.sources.iter().find(|(_, known)| **known == source).map(|(token, _)| *token);
                if let Some(token) = token {
                    let _ = self.epoll.add(output, EpollEvent::new(EpollFlags::EPOLLIN, token));
                }
            }
        }
    }

    fn token(&mut self, source: Source) -> u64 {
        self.next_token += 1;
        self.sources.insert(self.next_token, source);
        self.next_token
    }

    fn watch(&mut self, fd: impl AsFd, source: Source) -> io::Result<()> {
        let token = self.token(source);
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok(())
    }

    /// Explicitly: while a fork or an attached client holds a duplicate, closing alone would not take it out of the set.
    fn unwatch(&self, files: impl IntoIterator<Item = File>) {
        for file in files {
            let _ = self.epoll.delete(&file);
        }
    }

    fn accept(&mut self) {
        while let Ok(client) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            let token = self.token(Source::Client(0));
            self.sources.insert(token, Source::Client(token));
            if self.epoll.add(&client, EpollEvent::new(EpollFlags::EPOLLIN, token)).is_ok() {
                self.clients.insert(token, client);
            }
        }
    }

    fn hear(&mut self, token: u64, client: u64) {
        let Some(socket) = self.clients.get(&client) else { return };
        match receive::<Call>(socket) {
            Ok(Some((call, fds))) => self.answer(client, call, fds),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            // Gone, or not speaking our language.
            Ok(None) | Err(_) => {
                self.clients.remove(&client);
                self.sources.remove(&token);
            }
        }
    }

    fn answer(&mut self, client: u64, Call { id, request }: Call, fds: Vec<OwnedFd>) {
        let result = match request {
            Request::Create { container } => match self.create(&container) {
                Ok((launch, purpose)) => {
                    // Answered when the child that launches has ended.
                    self.pending.insert(launch.pid, Pending { launch, purpose, client, call: id });
                    return;
                }
                Err(error) => Err(error),
            },
            Request::Exec { container, exec, tty } => match self.exec(&container, &exec, tty, fds) {
                Ok((launch, purpose)) => {
                    // Answered when the child that launches has ended.
                    self.pending.insert(launch.pid, Pending { launch, purpose, client, call: id });
                    return;
                }
                Err(error) => Err(error),
            },
            Request::Attach { container, stdin, stdout, stderr } => {
                let attached = self.running(&container).and_then(|c| c.io.attach(stdin, stdout, stderr));
                match attached {
                    Ok(fds) => return self.reply(client, id, Ok(Answer::Done), &fds),
                    Err(error) => Err(error),
                }
            }
            Request::Start { container } => self.start(&container),
            Request::CloseStdin { container } => self.running(&container).map(|c| c.io.close_stdin()),
            Request::Kill { container, signal } => self.running(&container).and_then(|c| kill(&c.pidfd, signal)),
            Request::KillExec { exec } => self.kill_exec(&exec),
            Request::ReopenLog { container } => {
                self.running(&container).and_then(|c| c.io.reopen_log().map_err(|e| e.to_string()))
            }
            Request::Delete { container } => {
                self.delete(&container);
                Ok(())
            }
            Request::State => {
                let states = self.containers.iter().map(|(id, c)| (id.clone(), c.state.clone())).collect();
                return self.reply(client, id, Ok(Answer::State(states)), &[]);
            }
            Request::Shutdown => {
                self.stopping = Some((client, id));
                for container in self.containers.values() {
                    let _ = kill(&container.pidfd, Signal::SIGKILL as i32);
                }
                return;
            }
        };
        self.reply(client, id, result.map(|()| Answer::Done), &[]);
    }

    fn create(&mut self, id: &str) -> Result<(Launch, Purpose), String> {
        if self.containers.contains_key(id) {
            return Err(format!("container {id} exists"));
        }
        let directory = container_directory(&self.directory, id);
        let begun = || -> io::Result<_> {
            let setup: ContainerSetup = read_json(&directory.join("create.json"))?;
            let (io, stdio) = Attached::new(&setup, || Console::new(&directory, "console"))?;
            let launch = process::create(&self.oci_root, id, &directory, &setup, stdio)?;
            Ok((launch, Purpose::Create { container: id.to_owned(), io: Box::new(io), setup: Box::new(setup) }))
        };
        begun().map_err(|e| e.to_string())
    }

    fn exec(&mut self, id: &str, exec: &str, tty: bool, fds: Vec<OwnedFd>) -> Result<(Launch, Purpose), String> {
        let oci_root = self.oci_root.clone();
        let container = self.running(id)?;
        let process_file = container.directory.join(format!("exec-{exec}.json"));
        let stdio = match (tty, <[OwnedFd; 3]>::try_from(fds)) {
            (true, _) => Stdio::Terminal(Console::new(&container.directory, exec).map_err(|e| e.to_string())?),
            (false, Ok(fds)) => Stdio::Fds(fds),
            (false, Err(_)) => return Err("an exec without terminal needs three descriptors".to_owned()),
        };
        let launch =
            process::exec(&oci_root, id, &process_file, &container.setup.process, stdio).map_err(|e| e.to_string())?;
        Ok((launch, Purpose::Exec { exec: exec.to_owned() }))
    }

    /// A launch has ended and left its answer. Its process is now the shim's own child.
    fn launched(&mut self, launcher: Pid) {
        let Some(Pending { launch, purpose, client, call }) = self.pending.remove(&launcher) else { return };
        let finished = launch.finish();
        let result = match (finished, purpose) {
            (Err(error), _) => Err(error),
            (Ok((pid, terminal)), Purpose::Create { container, io, setup }) => {
                self.created(container, *io, *setup, pid, terminal).map(|()| None).map_err(|e| e.to_string())
            }
            (Ok((pid, terminal)), Purpose::Exec { exec }) => {
                self.execs.insert(pid, (exec, pidfd(pid)));
                Ok(Some((pid, terminal)))
            }
        };
        match result {
            Ok(Some((pid, terminal))) => {
                // The answer first: the runtime must know the exec before it hears of its end.
                self.reply(client, call, Ok(Answer::Done), terminal.as_slice());
                self.claim(pid);
            }
            Ok(None) => self.reply(client, call, Ok(Answer::Done), &[]),
            Err(error) => self.reply(client, call, Err(error), &[]),
        }
        let created: Vec<Pid> = self.containers.values().map(|c| Pid::from_raw(c.state.pid)).collect();
        created.into_iter().for_each(|pid| self.claim(pid));
    }

    fn created(
        &mut self,
        id: String,
        mut io: Attached,
        setup: ContainerSetup,
        pid: Pid,
        terminal: Option<OwnedFd>,
    ) -> io::Result<()> {
        if let Some(terminal) = terminal {
            io.set_terminal(terminal)?;
        }
        for (index, file) in io.sources() {
            self.next_token += 1;
            self.sources.insert(self.next_token, Source::Output { container: id.clone(), index });
            self.epoll.add(file, EpollEvent::new(EpollFlags::EPOLLIN, self.next_token))?;
        }
        let directory = container_directory(&self.directory, &id);
        let state = ContainerState { pid: pid.as_raw(), ..ContainerState::default() };
        let container = Container { directory, setup, state, pidfd: pidfd(pid), io, held_until: None };
        container.save()?;
        self.containers.insert(id, container);
        Ok(())
    }

    fn start(&mut self, id: &str) -> Result<(), String> {
        let oci_root = self.oci_root.clone();
        let container = self.running(id)?;
        process::start(&oci_root, id).map_err(|e| e.to_string())?;
        container.state.started_at = now();
        container.save().map_err(|e| e.to_string())
    }

    fn running(&mut self, id: &str) -> Result<&mut Container, String> {
        match self.containers.get_mut(id) {
            Some(container) if container.state.finished_at == 0 => Ok(container),
            Some(_) => Err(format!("container {id} has exited")),
            None => Err(format!("container {id} not found")),
        }
    }

    fn kill_exec(&mut self, exec: &str) -> Result<(), String> {
        match self.execs.values().find(|(name, _)| name == exec) {
            Some((_, pidfd)) => kill(pidfd, Signal::SIGKILL as i32),
            None => Ok(()),
        }
    }

    fn delete(&mut self, id: &str) {
        if let Some(container) = self.containers.get(id)
            && container.state.finished_at == 0
        {
            let _ = kill(&container.pidfd, Signal::SIGKILL as i32);
        }
        if let Some(mut container) = self.containers.remove(id) {
            self.unwatch(container.io.drain());
        }
        self.sources.retain(|_, source| !matches!(source, Source::Output { container, .. } if container == id));
        let _ = disk::remove(&self.oci_root.join(id));
    }

    fn reap(&mut self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        loop {
            let (pid, code) = match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::__WALL) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            if self.pending.contains_key(&pid) {
                self.launched(pid);
            } else {
                self.unclaimed.insert(pid, code);
                self.claim(pid);
            }
            if self.pending.is_empty() {
                self.unclaimed.clear();
            }
        }
    }

    /// Gives a process's end to the container or exec it belongs to.
    fn claim(&mut self, pid: Pid) {
        let Some(code) = self.unclaimed.get(&pid).copied() else { return };
        if let Some((exec, _)) = self.execs.remove(&pid) {
            self.unclaimed.remove(&pid);
            self.tell(Event::ExecExited { exec, code });
            return;
        }
        let found = self.containers.iter_mut().find(|(_, c)| c.state.pid == pid.as_raw() && c.state.finished_at == 0);
        let Some((id, container)) = found else { return };
        self.unclaimed.remove(&pid);
        if !container.setup.private_pid {
            cgroup::kill(&container.setup.cgroup_path);
        }
        let closed = container.io.drain();
        container.state.exit_code = code;
        container.state.oom_killed = code == 137 && cgroup::oom_killed(&container.setup.cgroup_path);
        container.state.finished_at = now();
        let _ = container.save();
        container.pidfd = None;
        let event = Event::Exited { container: id.clone(), state: container.state.clone() };
        let state_file = container.state_file();
        self.unwatch(closed);
        self.tell(event);
        // The outcome is of use after a reboot too, but nobody has to wait for that.
        let _ = disk::sync(&state_file);
    }

    fn reply(&mut self, client: u64, call: u64, result: Result<Answer, String>, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if let Some(socket) = self.clients.get(&client)
            && send(socket, &FromShim::Reply { call, result }, &fds).is_err()
        {
            self.clients.remove(&client);
        }
    }

    /// Whoever cannot take an event is dropped: it will connect again and ask for the state.
    fn tell(&mut self, event: Event) {
        let message = FromShim::Event(event);
        self.clients.retain(|_, socket| send(socket, &message, &[]).is_ok());
    }

    fn end_pod_init(&self) {
        let pid = std::fs::read_to_string(self.directory.join("ns/pid.init")).ok().and_then(|pid| pid.parse().ok());
        if let Some(pid) = pid {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl Container {
    fn state_file(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    fn save(&self) -> io::Result<()> {
        disk::write_atomically(&self.state_file(), &serde_json::to_vec(&self.state)?)
    }
}

fn pidfd(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(rustix::process::Pid::from_raw(pid.as_raw())?, rustix::process::PidfdFlags::empty())
        .ok()
}

/// Signals exactly the process that was meant, or nobody.
fn kill(pidfd: &Option<OwnedFd>, signal: i32) -> Result<(), String> {
    let Some(pidfd) = pidfd else { return Ok(()) };
    // SAFETY: the descriptor is open, and a null info means the same as kill(2).
    let sent = unsafe {
        nix::libc::syscall(
            nix::libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<nix::libc::siginfo_t>(),
            0,
        )
    };
    match (sent, Errno::last()) {
        (0, _) | (_, Errno::ESRCH) => Ok(()),
        (_, errno) => Err(format!("cannot send signal {signal}: {errno}")),
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_nanosecond() as i64
}
