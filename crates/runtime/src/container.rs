//! The life of a container: created as files, started through its pod's shim, stopped with grace, removed without trace.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cri::v1::{ContainerConfig, ContainerEventType, LinuxContainerResources, NamespaceMode, Signal as CriSignal};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use crate::images::StoredImage;
use crate::record::{ContainerRecord, Encoded, Kept, save};
use crate::sandbox::{Sandbox, new_id, now};
use crate::shim::link::LinkError;
use crate::shim::protocol::{ContainerSetup, ContainerState, ProcessSetup, Request, container_directory, read_json};
use crate::spec::{self, SpecError};
use crate::stats::Measured;
use crate::{Runtime, cgroup, disk};

/// How long the shim may take to report the end of a container it killed, before it is killed through its cgroup.
const SHIM_KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a container may take to end once every process of its cgroup was killed.
const CGROUP_KILL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerError {
    #[error("{0}")]
    Invalid(&'static str),
    #[error("image {0:?} not found")]
    NoImage(String),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("cannot write the container's files: {0}")]
    Files(#[source] io::Error),
    #[error(transparent)]
    Shim(#[from] LinkError),
    #[error("container {id} is {state}")]
    State { id: String, state: &'static str },
    #[error("failed to start the container: {0}")]
    Start(String),
    #[error("container {0} has processes that SIGKILL does not end")]
    Immortal(String),
}

impl ContainerState {
    pub(crate) fn has_ended(&self) -> bool {
        self.finished_at != 0
    }

    /// It ended, but nobody saw how.
    pub(crate) fn lost(now: i64) -> Self {
        Self { finished_at: now, exit_code: 255, ..Self::default() }
    }
}

pub(crate) struct Container {
    pub id: String,
    pub sandbox: String,
    record: Kept<ContainerRecord>,
    state: watch::Sender<ContainerState>,
    /// Start, stop and remove do not overlap.
    changing: tokio::sync::Mutex<()>,
    /// The usage of its writable layer.
    pub measured: Measured,
}

impl Container {
    /// A container whose files are in `directory`.
    pub(crate) fn new(directory: &Path, record: ContainerRecord, state: ContainerState) -> Arc<Self> {
        Arc::new(Self {
            id: record.id.clone(),
            sandbox: record.sandbox.clone(),
            record: Kept::new(record, directory.join("container.json")),
            state: watch::Sender::new(state),
            changing: tokio::sync::Mutex::default(),
            measured: Measured::default(),
        })
    }

    pub(crate) fn record(&self) -> ContainerRecord {
        self.record.get()
    }

    pub(crate) fn state(&self) -> ContainerState {
        self.state.borrow().clone()
    }

    /// Takes over what a shim (or its absence) says. An end is final; what is known of the start is kept.
    /// True for the one caller who brought the end: it is his to announce.
    pub(crate) fn settle(&self, new: ContainerState) -> bool {
        let ends = new.has_ended();
        let changed = self.state.send_if_modified(|state| {
            if state.has_ended() || *state == new {
                return false;
            }
            let started_at = if new.started_at == 0 { state.started_at } else { new.started_at };
            *state = ContainerState { started_at, ..new };
            true
        });
        changed && ends
    }

    pub(crate) async fn ended(&self) {
        let _ = self.state.subscribe().wait_for(ContainerState::has_ended).await;
    }
}

/// What an exec needs from the caller and gives back.
pub(crate) struct Exec {
    pub id: String,
    pub exit: oneshot::Receiver<i32>,
    /// The terminal, if one was asked for.
    pub terminal: Option<OwnedFd>,
}

impl Runtime {
    /// Finds by id, or by a prefix that fits only one.
    pub(crate) fn container(&self, id: &str) -> Option<Arc<Container>> {
        let pods = self.pods.read();
        pods.containers.get(id).or_else(|| by_prefix(&pods.containers, id)).cloned()
    }

    pub(crate) fn sandbox(&self, id: &str) -> Option<Arc<Sandbox>> {
        let pods = self.pods.read();
        pods.sandboxes.get(id).or_else(|| by_prefix(&pods.sandboxes, id)).cloned()
    }

    pub(crate) async fn create(
        &self,
        sandbox: &Arc<Sandbox>,
        config: ContainerConfig,
    ) -> Result<String, ContainerError> {
        if config.metadata.is_none() {
            return Err(ContainerError::Invalid("the container has no metadata"));
        }
        if !sandbox.record().ready {
            return Err(ContainerError::Invalid("the sandbox is not ready"));
        }
        let name = config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
        let image = self.images.find(&name).ok_or(ContainerError::NoImage(name))?;
        let id = new_id();
        let directory = container_directory(&sandbox.directory, &id);
        self.images.lease(&image.layers);
        let written = async {
            let record = self.write_container(sandbox, &directory, &id, config, &image)?;
            let container = Container::new(&directory, record, ContainerState::default());
            container.record.update(|_| ()).await.map_err(ContainerError::Files)?;
            Ok(container)
        };
        match written.await {
            Ok(container) => {
                let sandbox_id = container.sandbox.clone();
                self.pods.write().containers.insert(id.clone(), container);
                self.announce(&sandbox_id, &id, ContainerEventType::ContainerCreatedEvent);
                Ok(id)
            }
            Err(error) => {
                self.images.release(&image.layers);
                let _ = disk::remove(&directory);
                Err(error)
            }
        }
    }

    fn write_container(
        &self,
        sandbox: &Sandbox,
        directory: &Path,
        id: &str,
        config: ContainerConfig,
        image: &StoredImage,
    ) -> Result<ContainerRecord, ContainerError> {
        let pod = sandbox.record();
        let lower: Vec<PathBuf> = image.layers.iter().rev().map(|layer| self.images.layer(layer)).collect();
        let rootfs = sandbox.directory.join("mnt").join(id);
        let cgroup_path = format!("{}/{id}", pod.cgroup_parent);
        let target =
            config.linux.as_ref().and_then(|l| l.security_context.as_ref()).and_then(|s| s.namespace_options.as_ref());
        let target = target.filter(|o| o.pid() == NamespaceMode::Target).map(|o| o.target_id.clone());
        let target_pid = match target {
            Some(target) => {
                let state = self.container(&target).map(|c| c.state()).filter(|s| s.pid != 0 && !s.has_ended());
                Some(state.ok_or(ContainerError::Invalid("the target container is not running"))?.pid)
            }
            None => None,
        };
        let output = spec::build(&spec::Input {
            config: &config,
            sandbox: &pod.config.0,
            image: &image.config,
            layers: &lower,
            sandbox_directory: &sandbox.directory,
            rootfs: &rootfs,
            cgroup_path: &cgroup_path,
            target_pid,
        })?;
        let log_path = match (pod.config.0.log_directory.as_str(), config.log_path.as_str()) {
            ("", _) | (_, "") => None,
            (log_directory, path) => Some(Path::new(log_directory).join(path)),
        };
        let record = ContainerRecord {
            id: id.to_owned(),
            sandbox: pod.id,
            created_at: now(),
            image_id: image.id.to_string(),
            image_ref: image.digests.first().cloned().unwrap_or_else(|| image.id.to_string()),
            layers: image.layers.clone(),
            cgroup_path: cgroup_path.clone(),
            log_path: log_path.as_ref().map(|path| path.display().to_string()),
            stop_signal: stop_signal(&config, image.config.stop_signal.as_deref()),
            uid: output.user.uid,
            gid: output.user.gid,
            groups: output.user.groups,
            start_error: None,
            config: Encoded(config),
        };
        let setup = ContainerSetup {
            tty: record.config.0.tty,
            stdin: record.config.0.stdin,
            stdin_once: record.config.0.stdin_once,
            log_path,
            log_max_bytes: record.config.0.annotations.get(cri::LOG_MAX_SIZE).and_then(|size| size.parse().ok()),
            lower,
            rootfs,
            working_directory: output.working_directory,
            cgroup_path,
            private_pid: output.private_pid,
            process: ProcessSetup {
                capabilities: output.capabilities,
                seccomp: output.seccomp,
                oom_score_adj: output.oom_score_adj,
            },
        };
        let written = || -> io::Result<()> {
            for name in ["upper", "work"] {
                std::fs::create_dir_all(directory.join(name))?;
            }
            std::fs::create_dir_all(&setup.rootfs)?;
            save(directory, "config.json", &output.spec)?;
            save(directory, "create.json", &setup)
        };
        written().map_err(ContainerError::Files)?;
        Ok(record)
    }

    /// Runs a created container. If that fails the container has ended, with the reason in its status.
    pub(crate) async fn start(&self, container: &Arc<Container>) -> Result<(), ContainerError> {
        let _one_at_a_time = container.changing.lock().await;
        let state = container.state();
        if state.pid != 0 || state.has_ended() {
            let state = if state.has_ended() { "exited" } else { "running" };
            return Err(ContainerError::State { id: container.id.clone(), state });
        }
        let sandbox = self.sandbox(&container.sandbox).ok_or(LinkError::Gone)?;
        let link = sandbox.link()?;
        let id = || container.id.clone();
        let started = match link.tell(Request::Create { container: id() }).await {
            Ok(()) => link.tell(Request::Start { container: id() }).await,
            Err(error) => Err(error),
        };
        match started {
            Ok(()) => {
                let path = container_directory(&sandbox.directory, &container.id).join("state.json");
                let ended = container.settle(read_json(&path).map_err(ContainerError::Files)?);
                self.announce(&container.sandbox, &container.id, ContainerEventType::ContainerStartedEvent);
                if ended {
                    self.announce(&container.sandbox, &container.id, ContainerEventType::ContainerStoppedEvent);
                }
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string();
                if matches!(error, LinkError::Timeout(_)) {
                    cgroup::kill_async(&container.record().cgroup_path).await;
                }
                let _ = link.tell(Request::Delete { container: id() }).await;
                let failed = |record: &mut ContainerRecord| record.start_error = Some(reason.clone());
                container.record.update(failed).await.map_err(ContainerError::Files)?;
                let directory = container_directory(&sandbox.directory, &container.id);
                let ended = ContainerState { finished_at: now(), exit_code: 128, ..ContainerState::default() };
                save(&directory, "state.json", &ended).map_err(ContainerError::Files)?;
                container.settle(ended);
                self.announce(&container.sandbox, &container.id, ContainerEventType::ContainerStoppedEvent);
                Err(ContainerError::Start(reason))
            }
        }
    }

    /// Keeps changed limits for the container's status; a field that was not set keeps its value.
    pub(crate) async fn remember_resources(
        &self,
        container: &Container,
        new: LinuxContainerResources,
    ) -> io::Result<()> {
        let change = |record: &mut ContainerRecord| {
            let held = record.config.0.linux.get_or_insert_default().resources.get_or_insert_default();
            let numbers = [
                (&mut held.cpu_period, new.cpu_period),
                (&mut held.cpu_quota, new.cpu_quota),
                (&mut held.cpu_shares, new.cpu_shares),
                (&mut held.memory_limit_in_bytes, new.memory_limit_in_bytes),
            ];
            for (old, new) in numbers.into_iter().filter(|(_, new)| *new != 0) {
                *old = new;
            }
            for (old, new) in [(&mut held.cpuset_cpus, new.cpuset_cpus), (&mut held.cpuset_mems, new.cpuset_mems)] {
                if !new.is_empty() {
                    *old = new;
                }
            }
        };
        container.record.update(change).await
    }

    /// Sends the stop signal, then SIGKILL when the grace period is over. Returns when the container has ended.
    ///
    /// It does not depend on the shim: one that does not carry out the SIGKILL is passed by through the container's cgroup, and one
    /// that does not report the end either is killed, which ends its pod.
    pub(crate) async fn stop(&self, container: &Arc<Container>, grace: Duration) -> Result<(), ContainerError> {
        let state = container.state();
        if state.has_ended() || state.pid == 0 {
            return Ok(());
        }
        let sandbox = self.sandbox(&container.sandbox).ok_or(LinkError::Gone)?;
        let Ok(link) = sandbox.link() else {
            self.bury(&sandbox).await;
            return Ok(());
        };
        let kill = |signal: i32| link.tell(Request::Kill { container: container.id.clone(), signal });
        if !grace.is_zero() {
            let graceful = async {
                // A failure is that it ended in between, or that it needs the SIGKILL.
                let _ = kill(container.record().stop_signal).await;
                container.ended().await;
            };
            if tokio::time::timeout(grace, graceful).await.is_ok() {
                return Ok(());
            }
        }
        let killed = async {
            let _ = kill(Signal::SIGKILL as i32).await;
            container.ended().await;
        };
        if tokio::time::timeout(SHIM_KILL_TIMEOUT, killed).await.is_ok() {
            return Ok(());
        }
        tracing::warn!(container = container.id, "the shim does not end a container: it is killed through its cgroup");
        let left = cgroup::kill_async(&container.record().cgroup_path).await;
        if tokio::time::timeout(CGROUP_KILL_TIMEOUT, container.ended()).await.is_ok() {
            return Ok(());
        }
        if left > 0 {
            return Err(ContainerError::Immortal(container.id.clone()));
        }
        tracing::warn!(sandbox = container.sandbox, "the shim does not report a container's end: it is killed");
        link.kill_shim();
        self.bury(&sandbox).await;
        Ok(())
    }

    /// Removes a container, ending it first if it runs.
    pub(crate) async fn remove(&self, container: &Arc<Container>) -> Result<(), ContainerError> {
        self.stop(container, Duration::ZERO).await?;
        let _one_at_a_time = container.changing.lock().await;
        if let Some(sandbox) = self.sandbox(&container.sandbox) {
            if let Ok(link) = sandbox.link() {
                let _ = link.tell(Request::Delete { container: container.id.clone() }).await;
            }
            self.forget_container(container);
            disk::remove(&container_directory(&sandbox.directory, &container.id)).map_err(ContainerError::Files)?;
            disk::remove(&sandbox.directory.join("mnt").join(&container.id)).map_err(ContainerError::Files)?;
        }
        self.announce(&container.sandbox, &container.id, ContainerEventType::ContainerDeletedEvent);
        Ok(())
    }

    /// Drops what a container holds outside its directory.
    pub(crate) fn forget_container(&self, container: &Container) {
        let record = container.record();
        cgroup::remove(&record.cgroup_path);
        if self.pods.write().containers.remove(&container.id).is_some() {
            self.images.release(&record.layers);
        }
    }

    /// Runs another process in a container, with the given descriptors or a terminal of its own.
    pub(crate) async fn exec_in(
        &self,
        container: &Container,
        command: &[String],
        stdio: Option<[OwnedFd; 3]>,
    ) -> Result<Exec, ContainerError> {
        if command.is_empty() {
            return Err(ContainerError::Invalid("no command to execute"));
        }
        let state = container.state();
        if state.pid == 0 || state.has_ended() {
            let state = if state.has_ended() { "exited" } else { "not running" };
            return Err(ContainerError::State { id: container.id.clone(), state });
        }
        let sandbox = self.sandbox(&container.sandbox).ok_or(LinkError::Gone)?;
        let link = sandbox.link()?;
        let directory = container_directory(&sandbox.directory, &container.id);
        let id = uuid::Uuid::new_v4().simple().to_string();
        let file = directory.join(format!("exec-{id}.json"));
        let spec: Value = read_json(&directory.join("config.json")).map_err(ContainerError::Files)?;
        let tty = stdio.is_none();
        disk::write_atomically(&file, spec::exec_process(&spec, command, tty).to_string().as_bytes())
            .map_err(ContainerError::Files)?;
        let exit = link.expect_exec(&id);
        let fds: Vec<_> = stdio.iter().flatten().map(std::os::fd::AsFd::as_fd).collect();
        let request = Request::Exec { container: container.id.clone(), exec: id.clone(), tty };
        let answered = link.call(request, &fds).await;
        let _ = disk::remove(&file);
        match answered {
            Ok((_, fds)) => Ok(Exec { id, exit, terminal: fds.into_iter().next() }),
            Err(error) => {
                link.forget_exec(&id);
                if matches!(error, LinkError::Timeout(_)) {
                    let _ = link.tell(Request::KillExec { exec: id }).await;
                }
                Err(error.into())
            }
        }
    }
}

fn by_prefix<'a, T>(map: &'a std::collections::HashMap<String, T>, prefix: &str) -> Option<&'a T> {
    if prefix.is_empty() {
        return None;
    }
    let mut fitting = map.iter().filter(|(id, _)| id.starts_with(prefix));
    match (fitting.next(), fitting.next()) {
        (Some((_, found)), None) => Some(found),
        _ => None,
    }
}

/// The pod's choice, else the image's, else SIGTERM.
fn stop_signal(config: &ContainerConfig, image: Option<&str>) -> i32 {
    let asked = match config.stop_signal() {
        CriSignal::RuntimeDefault => image.map(str::to_owned),
        signal => Some(signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-")),
    };
    asked.and_then(|name| parse_signal(&name)).unwrap_or(Signal::SIGTERM as i32)
}

/// `SIGQUIT`, `QUIT`, `3`, `SIGRTMIN+3`.
fn parse_signal(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(offset) = bare.strip_prefix("RTMIN") {
        return offset.trim_start_matches('+').parse::<i32>().ok().or(offset.is_empty().then_some(0)).map(|n| 34 + n);
    }
    if let Some(offset) = bare.strip_prefix("RTMAX") {
        return offset.trim_start_matches('-').parse::<i32>().ok().or(offset.is_empty().then_some(0)).map(|n| 64 - n);
    }
    format!("SIG{bare}").parse::<Signal>().ok().map(|signal| signal as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_understood_in_every_spelling() {
        check("SIGQUIT", Some(3));
        check("quit", Some(3));
        check("9", Some(9));
        check("SIGRTMIN+3", Some(37));
        check("RTMAX-1", Some(63));
        check("SIGRTMIN", Some(34));
        check("SIGNONSENSE", None);
        check("0", None);
    }

    #[track_caller]
    fn check(name: &str, want: Option<i32>) {
        assert_eq!(parse_signal(name), want, "{name}");
    }
}
