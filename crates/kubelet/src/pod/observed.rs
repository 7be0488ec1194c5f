//! What the runtime knows about one pod, read through CRI.

use std::collections::BTreeMap;
use std::path::Path;

use cri::v1::{
    ContainerFilter, ContainerState, ContainerStatusRequest, ListContainersRequest, ListPodSandboxRequest,
    NamespaceMode, PodSandboxFilter, PodSandboxState, PodSandboxStatus, PodSandboxStatusRequest,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tonic::{Code, Status};

use super::labels;
use crate::clock::from_nanos;
use crate::server::log_format;
use crate::spec;

/// Sandboxes and containers of one pod, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) sandboxes: Vec<Sandbox>,
    pub(crate) containers: Vec<Seen>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) ready: bool,
    pub(crate) created_at: i64,
    pub(crate) host_network: bool,
    /// The runtime says what the network gave, so that no address means none.
    pub(crate) networked: bool,
    pub(crate) ips: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Created,
    Running,
    Exited,
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) sandbox_id: String,
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) image: String,
    pub(crate) image_ref: String,
    pub(crate) hash: String,
    pub(crate) restart_count: u32,
    pub(crate) created_at: i64,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) log_path: String,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) user: Option<cri::v1::LinuxContainerUser>,
}

impl Observed {
    /// The newest container of that name.
    pub(crate) fn latest(&self, name: &str) -> Option<&Seen> {
        self.containers.iter().find(|seen| seen.name == name)
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Seen> {
        self.containers.iter().filter(|seen| seen.state == State::Running)
    }

    /// The addresses of the sandbox in use.
    pub(crate) fn ips(&self) -> &[String] {
        match self.sandboxes.first() {
            Some(sandbox) if sandbox.ready => &sandbox.ips,
            _ => &[],
        }
    }

    /// Any regular container exists in the sandbox in use, so initialization is over.
    pub(crate) fn has_active_regular(&self, pod: &Pod) -> bool {
        let Some(active) = self.sandboxes.first().filter(|sandbox| sandbox.ready) else { return false };
        let regular = |seen: &&Seen| spec::containers(pod).iter().any(|container| container.name == seen.name);
        self.containers.iter().filter(regular).any(|seen| seen.sandbox_id == active.id)
    }

    /// Whether a sandbox must be made, the attempt it would be, and the sandbox in use otherwise.
    pub(crate) fn sandbox_changed(&self, pod: &Pod) -> (bool, u32, Option<String>) {
        let Some(newest) = self.sandboxes.first() else { return (true, 0, None) };
        let host_network = spec::is_host_network(pod);
        let several = self.sandboxes.iter().filter(|sandbox| sandbox.ready).count() > 1;
        let addressless = !host_network && newest.networked && newest.ips.is_empty();
        if several || !newest.ready || newest.host_network != host_network || addressless {
            return (true, newest.attempt + 1, Some(newest.id.clone()));
        }
        (false, newest.attempt, Some(newest.id.clone()))
    }
}

/// Reads all of a pod's sandboxes and containers. What vanishes between list and status is left out.
pub(crate) async fn observe(cri: &dyn cri::Cri, uid: &str) -> Result<Observed, Status> {
    let by_pod = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
    let filter = PodSandboxFilter { label_selector: by_pod.clone(), ..Default::default() };
    let listed = cri.list_pod_sandbox(ListPodSandboxRequest { filter: Some(filter) }).await?.items;
    let mut sandboxes = Vec::with_capacity(listed.len());
    for sandbox in listed {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id, verbose: false };
        if let Some(response) = unless_gone(cri.pod_sandbox_status(request).await)? {
            sandboxes.extend(response.status.map(sandbox_of));
        }
    }
    let filter = ContainerFilter { label_selector: by_pod, ..Default::default() };
    let listed = cri.list_containers(ListContainersRequest { filter: Some(filter) }).await?.containers;
    let mut containers = Vec::with_capacity(listed.len());
    for container in listed {
        let request = ContainerStatusRequest { container_id: container.id.clone(), verbose: false };
        if let Some(status) = unless_gone(cri.container_status(request).await)?.and_then(|response| response.status) {
            containers.push(seen_of(container.pod_sandbox_id, status));
        }
    }
    sandboxes.sort_by_key(|sandbox| std::cmp::Reverse((sandbox.created_at, sandbox.attempt)));
    containers.sort_by_key(|seen| std::cmp::Reverse((seen.created_at, seen.restart_count)));
    Ok(Observed { sandboxes, containers })
}

pub(crate) fn unless_gone<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

fn sandbox_of(status: PodSandboxStatus) -> Sandbox {
    let networked = status.network.is_some();
    let network = status.network.unwrap_or_default();
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    let options = status.linux.and_then(|linux| linux.namespaces).and_then(|namespaces| namespaces.options);
    Sandbox {
        id: status.id,
        attempt: status.metadata.unwrap_or_default().attempt,
        ready: status.state == PodSandboxState::SandboxReady as i32,
        created_at: status.created_at,
        host_network: options.unwrap_or_default().network == NamespaceMode::Node as i32,
        networked,
        ips: std::iter::once(network.ip).chain(more).filter(|ip| !ip.is_empty()).collect(),
    }
}

fn seen_of(sandbox_id: String, status: cri::v1::ContainerStatus) -> Seen {
    let annotation = |name: &str| status.annotations.get(name).cloned().unwrap_or_default();
    let state = match ContainerState::try_from(status.state) {
        Ok(ContainerState::ContainerCreated) => State::Created,
        Ok(ContainerState::ContainerRunning) => State::Running,
        Ok(ContainerState::ContainerExited) => State::Exited,
        _ => State::Unknown,
    };
    let exited = state == State::Exited;
    let mut message = if exited { status.message.clone() } else { String::new() };
    if exited {
        let written = termination_message(&status);
        if !message.is_empty() && !written.is_empty() {
            message.push_str(": ");
        }
        message.push_str(&written);
    }
    Seen {
        sandbox_id,
        name: status.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
        state,
        image: status.image.as_ref().map(|image| image.image.clone()).unwrap_or_default(),
        image_ref: status.image_ref.clone(),
        hash: annotation(labels::HASH),
        restart_count: annotation(labels::RESTART_COUNT).parse().unwrap_or_default(),
        created_at: status.created_at,
        started_at: (state != State::Created).then(|| from_nanos(status.started_at)).flatten(),
        finished_at: exited.then(|| from_nanos(status.finished_at)).flatten(),
        exit_code: if exited { status.exit_code } else { 0 },
        reason: if exited { status.reason.clone() } else { String::new() },
        message,
        log_path: status.log_path.clone(),
        user: status.user.clone().and_then(|user| user.linux),
        annotations: status.annotations,
        id: status.id,
    }
}

const MAX_MESSAGE: usize = 4096;
const MAX_LOG_MESSAGE: usize = 2048;
const MAX_LOG_LINES: usize = 80;

/// What the container left in its termination message file, or at the end of its log where its policy says so.
fn termination_message(status: &cri::v1::ContainerStatus) -> String {
    let annotation = |name: &str| status.annotations.get(name).map(String::as_str).unwrap_or_default();
    let path = annotation(labels::TERMINATION_PATH);
    let mount = status.mounts.iter().find(|mount| !path.is_empty() && mount.container_path == path);
    let text = match mount.map(|mount| tail(Path::new(&mount.host_path), MAX_MESSAGE)) {
        Some(Ok(text)) => text,
        Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
            return format!("Error on reading termination log {path}: {error}");
        }
        _ => String::new(),
    };
    let from_log = annotation(labels::TERMINATION_POLICY) == "FallbackToLogsOnError" && status.exit_code != 0;
    if !text.is_empty() || !from_log {
        return text;
    }
    log_format::last_lines(Path::new(&status.log_path), MAX_LOG_LINES, MAX_LOG_MESSAGE)
        .unwrap_or_else(|error| format!("Error on reading termination message from logs: {error}"))
}

fn tail(path: &Path, at_most: usize) -> std::io::Result<String> {
    let (bytes, _) = crate::tail::read(path, at_most as u64)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
