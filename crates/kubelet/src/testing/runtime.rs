//! A runtime in memory that does what its script says: how long containers of an image live, what they exit with, what probes find.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cri::v1::*;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tonic::Status;

use crate::clock::Clock;

/// What containers of one image do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// Ends by itself after this, with this code.
    pub(crate) exits: Option<(Duration, i32)>,
    /// Takes this long to end when told to.
    pub(crate) stop_takes: Duration,
    /// Exit codes of the next execs; the last one stays.
    pub(crate) execs: Vec<i32>,
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<String, PodSandboxStatus>,
    containers: BTreeMap<String, (String, ContainerStatus)>,
    scripts: HashMap<String, Script>,
    missing: Vec<String>,
    calls: Vec<String>,
    next: u32,
    no_events: bool,
    /// Log folders by sandbox.
    logs: HashMap<String, String>,
    /// Where exec is served.
    stream_url: String,
}

pub(crate) struct Runtime {
    state: Mutex<State>,
    clock: Clock,
    events: broadcast::Sender<ContainerEventResponse>,
    me: std::sync::Weak<Runtime>,
}

impl Runtime {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        let events = broadcast::Sender::new(1000);
        Arc::new_cyclic(|me| Self { state: Mutex::default(), clock, events, me: me.clone() })
    }

    pub(crate) fn script(&self, image: &str, script: Script) {
        self.state.lock().scripts.insert(image.to_owned(), script);
    }

    /// The image cannot be found or pulled.
    pub(crate) fn lose_image(&self, image: &str) {
        self.state.lock().missing.push(image.to_owned());
    }

    pub(crate) fn find_image(&self, image: &str) {
        self.state.lock().missing.retain(|missing| missing != image);
    }

    pub(crate) fn stream_at(&self, url: String) {
        self.state.lock().stream_url = url;
    }

    pub(crate) fn without_events(&self) {
        self.state.lock().no_events = true;
    }

    /// `verb name` of every change so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    pub(crate) fn running(&self) -> Vec<String> {
        let state = self.state.lock();
        let live = state.containers.values().filter(|(_, c)| c.state == ContainerState::ContainerRunning as i32);
        live.map(|(_, container)| name_of(container)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.containers.is_empty() && state.sandboxes.is_empty()
    }

    /// As if the kernel killed it.
    pub(crate) fn kill(&self, name: &str) {
        let id = {
            let state = self.state.lock();
            let mut live =
                state.containers.iter().filter(|(_, (_, c))| c.state == ContainerState::ContainerRunning as i32);
            live.find(|(_, (_, container))| name_of(container) == name).map(|(id, _)| id.clone()).expect("it runs")
        };
        self.exit(&id, 137);
    }

    fn nanos(&self) -> i64 {
        i64::try_from(self.clock.now().as_nanosecond()).expect("a time")
    }

    fn exit(&self, id: &str, code: i32) {
        let now = self.nanos();
        let mut state = self.state.lock();
        let Some((sandbox, container)) = state.containers.get_mut(id) else { return };
        if container.state != ContainerState::ContainerRunning as i32 {
            return;
        }
        container.state = ContainerState::ContainerExited as i32;
        container.finished_at = now;
        container.exit_code = code;
        container.reason = if code == 0 { "Completed".into() } else { "Error".into() };
        let sandbox = sandbox.clone();
        drop(state);
        self.tell(&sandbox, id, ContainerEventType::ContainerStoppedEvent);
    }

    fn tell(&self, sandbox: &str, id: &str, kind: ContainerEventType) {
        let pod_sandbox_status = self.state.lock().sandboxes.get(sandbox).cloned();
        let event = ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind as i32,
            pod_sandbox_status,
            ..Default::default()
        };
        let _ = self.events.send(event);
    }

    fn script_of(&self, container: &ContainerStatus) -> Script {
        let image = container.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
        self.state.lock().scripts.get(&image).cloned().unwrap_or_default()
    }
}

fn name_of(container: &ContainerStatus) -> String {
    container.metadata.as_ref().map(|metadata| metadata.name.clone()).unwrap_or_default()
}

fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn unimplemented<T>() -> Result<T, Status> {
    Err(Status::unimplemented("not in this test"))
}

#[async_trait]
impl cri::Cri for Runtime {
    async fn run_pod_sandbox(&self, request: RunPodSandboxRequest) -> Result<RunPodSandboxResponse, Status> {
        let config = request.config.unwrap_or_default();
        let created_at = self.nanos();
        let mut state = self.state.lock();
        state.next += 1;
        let id = format!("sandbox{}", state.next);
        let name = config.metadata.clone().unwrap_or_default().name;
        state.calls.push(match request.runtime_handler.as_str() {
            "" => format!("sandbox {name}"),
            handler => format!("sandbox {name} with {handler}"),
        });
        state.logs.insert(id.clone(), config.log_directory.clone());
        let options =
            config.linux.and_then(|linux| linux.security_context).and_then(|context| context.namespace_options);
        let status = PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: PodSandboxState::SandboxReady as i32,
            created_at,
            network: Some(PodSandboxNetworkStatus { ip: format!("10.244.0.{}", state.next), additional_ips: vec![] }),
            linux: Some(LinuxPodSandboxStatus { namespaces: Some(Namespace { options }) }),
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        state.sandboxes.insert(id.clone(), status);
        drop(state);
        self.tell(&id, &id, ContainerEventType::ContainerStartedEvent);
        Ok(RunPodSandboxResponse { pod_sandbox_id: id })
    }

    async fn stop_pod_sandbox(&self, request: StopPodSandboxRequest) -> Result<StopPodSandboxResponse, Status> {
        let id = request.pod_sandbox_id;
        {
            let mut state = self.state.lock();
            let Some(sandbox) = state.sandboxes.get_mut(&id) else { return Err(Status::not_found("sandbox")) };
            sandbox.state = PodSandboxState::SandboxNotready as i32;
            sandbox.network = Some(PodSandboxNetworkStatus::default());
        }
        self.tell(&id, &id, ContainerEventType::ContainerStoppedEvent);
        Ok(StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(&self, request: RemovePodSandboxRequest) -> Result<RemovePodSandboxResponse, Status> {
        let mut state = self.state.lock();
        state.containers.retain(|_, (sandbox, _)| *sandbox != request.pod_sandbox_id);
        state.sandboxes.remove(&request.pod_sandbox_id);
        state.calls.push("remove sandbox".to_owned());
        Ok(RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(&self, request: PodSandboxStatusRequest) -> Result<PodSandboxStatusResponse, Status> {
        let status = self.state.lock().sandboxes.get(&request.pod_sandbox_id).cloned();
        let status = status.ok_or_else(|| Status::not_found("sandbox"))?;
        Ok(PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }

    async fn list_pod_sandbox(&self, request: ListPodSandboxRequest) -> Result<ListPodSandboxResponse, Status> {
        let selector = request.filter.unwrap_or_default().label_selector;
        let state = self.state.lock();
        let found = state.sandboxes.values().filter(|sandbox| matches(&sandbox.labels, &selector)).cloned();
        let items = found.map(|s| PodSandbox {
            id: s.id,
            metadata: s.metadata,
            state: s.state,
            created_at: s.created_at,
            labels: s.labels,
            annotations: s.annotations,
            ..Default::default()
        });
        Ok(ListPodSandboxResponse { items: items.collect() })
    }

    async fn create_container(&self, request: CreateContainerRequest) -> Result<CreateContainerResponse, Status> {
        let config = request.config.unwrap_or_default();
        let created_at = self.nanos();
        let mut state = self.state.lock();
        state.next += 1;
        let id = format!("container{}", state.next);
        let metadata = config.metadata.clone().unwrap_or_default();
        state.calls.push(format!("create {} {}", metadata.name, metadata.attempt));
        let image = config.image.unwrap_or_default().user_specified_image;
        let status = ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: ContainerState::ContainerCreated as i32,
            created_at,
            image: Some(ImageSpec { image: image.clone(), ..Default::default() }),
            image_ref: format!("sha256:{image}"),
            labels: config.labels,
            annotations: config.annotations,
            mounts: config.mounts,
            log_path: format!("{}/{}", state.logs[&request.pod_sandbox_id], config.log_path),
            ..Default::default()
        };
        state.containers.insert(id.clone(), (request.pod_sandbox_id, status));
        Ok(CreateContainerResponse { container_id: id })
    }

    async fn start_container(&self, request: StartContainerRequest) -> Result<StartContainerResponse, Status> {
        let id = request.container_id;
        let now = self.nanos();
        let (sandbox, container) = {
            let mut state = self.state.lock();
            let Some((sandbox, container)) = state.containers.get_mut(&id) else {
                return Err(Status::not_found("container"));
            };
            container.state = ContainerState::ContainerRunning as i32;
            container.started_at = now;
            let both = (sandbox.clone(), container.clone());
            state.calls.push(format!("start {}", name_of(&both.1)));
            both
        };
        if let (Some((after, code)), Some(me)) = (self.script_of(&container).exits, self.me.upgrade()) {
            let id = id.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                me.exit(&id, code);
            });
        }
        self.tell(&sandbox, &id, ContainerEventType::ContainerStartedEvent);
        Ok(StartContainerResponse {})
    }

    async fn stop_container(&self, request: StopContainerRequest) -> Result<StopContainerResponse, Status> {
        let container = self.state.lock().containers.get(&request.container_id).map(|(_, container)| container.clone());
        let Some(container) = container else { return Err(Status::not_found("container")) };
        let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
        self.state.lock().calls.push(format!("stop {} {}", name_of(&container), request.timeout));
        let takes = self.script_of(&container).stop_takes;
        tokio::time::sleep(takes.min(grace)).await;
        self.exit(&request.container_id, if takes > grace { 137 } else { 0 });
        Ok(StopContainerResponse {})
    }

    async fn remove_container(&self, request: RemoveContainerRequest) -> Result<RemoveContainerResponse, Status> {
        self.state.lock().containers.remove(&request.container_id);
        Ok(RemoveContainerResponse {})
    }

    async fn list_containers(&self, request: ListContainersRequest) -> Result<ListContainersResponse, Status> {
        let selector = request.filter.unwrap_or_default().label_selector;
        let state = self.state.lock();
        let found = state.containers.values().filter(|(_, c)| matches(&c.labels, &selector)).cloned();
        let containers = found.map(|(pod_sandbox_id, c)| Container {
            id: c.id,
            pod_sandbox_id,
            metadata: c.metadata,
            state: c.state,
            created_at: c.created_at,
            labels: c.labels,
            annotations: c.annotations,
            ..Default::default()
        });
        Ok(ListContainersResponse { containers: containers.collect() })
    }

    async fn container_status(&self, request: ContainerStatusRequest) -> Result<ContainerStatusResponse, Status> {
        let status = self.state.lock().containers.get(&request.container_id).map(|(_, status)| status.clone());
        let status = status.ok_or_else(|| Status::not_found("container"))?;
        Ok(ContainerStatusResponse { status: Some(status), ..Default::default() })
    }

    async fn exec_sync(&self, request: ExecSyncRequest) -> Result<ExecSyncResponse, Status> {
        let container = self.state.lock().containers.get(&request.container_id).map(|(_, container)| container.clone());
        let image = container.and_then(|container| container.image).unwrap_or_default().image;
        let mut state = self.state.lock();
        let codes = state.scripts.get_mut(&image).map(|script| &mut script.execs);
        let exit_code = match codes {
            Some(codes) if codes.len() > 1 => codes.remove(0),
            Some(codes) => codes.first().copied().unwrap_or(0),
            None => 0,
        };
        state.calls.push(format!("exec {}", request.cmd.join(" ")));
        Ok(ExecSyncResponse { exit_code, ..Default::default() })
    }

    async fn image_status(&self, request: ImageStatusRequest) -> Result<ImageStatusResponse, Status> {
        let image = request.image.unwrap_or_default().image;
        let missing = self.state.lock().missing.contains(&image);
        let found = Image { id: format!("id-{image}"), size: 1, ..Default::default() };
        Ok(ImageStatusResponse { image: (!missing).then_some(found), ..Default::default() })
    }

    async fn pull_image(&self, request: PullImageRequest) -> Result<PullImageResponse, Status> {
        let image = request.image.unwrap_or_default().image;
        self.state.lock().calls.push(format!("pull {image}"));
        Err(Status::not_found(format!("{image}: not found")))
    }

    async fn events(&self) -> Result<cri::Events, Status> {
        if self.state.lock().no_events {
            return unimplemented();
        }
        let stream = futures::stream::unfold(self.events.subscribe(), |mut events| async move {
            events.recv().await.ok().map(|event| (Ok(event), events))
        });
        Ok(Box::pin(stream))
    }

    async fn version(&self, _: VersionRequest) -> Result<VersionResponse, Status> {
        Ok(VersionResponse { runtime_name: "fake".into(), runtime_version: "1".into(), ..Default::default() })
    }

    async fn update_container_resources(
        &self,
        _: UpdateContainerResourcesRequest,
    ) -> Result<UpdateContainerResourcesResponse, Status> {
        unimplemented()
    }
    async fn reopen_container_log(&self, _: ReopenContainerLogRequest) -> Result<ReopenContainerLogResponse, Status> {
        unimplemented()
    }
    async fn exec(&self, request: ExecRequest) -> Result<ExecResponse, Status> {
        let mut state = self.state.lock();
        state.calls.push(format!("stream {}", request.cmd.join(" ")));
        Ok(ExecResponse { url: state.stream_url.clone() })
    }
    async fn attach(&self, _: AttachRequest) -> Result<AttachResponse, Status> {
        unimplemented()
    }
    async fn port_forward(&self, _: PortForwardRequest) -> Result<PortForwardResponse, Status> {
        unimplemented()
    }
    async fn container_stats(&self, _: ContainerStatsRequest) -> Result<ContainerStatsResponse, Status> {
        unimplemented()
    }
    async fn list_container_stats(&self, _: ListContainerStatsRequest) -> Result<ListContainerStatsResponse, Status> {
        unimplemented()
    }
    async fn update_runtime_config(
        &self,
        _: UpdateRuntimeConfigRequest,
    ) -> Result<UpdateRuntimeConfigResponse, Status> {
        unimplemented()
    }
    async fn status(&self, _: StatusRequest) -> Result<StatusResponse, Status> {
        unimplemented()
    }
    async fn runtime_config(&self, _: RuntimeConfigRequest) -> Result<RuntimeConfigResponse, Status> {
        unimplemented()
    }
    async fn list_images(&self, _: ListImagesRequest) -> Result<ListImagesResponse, Status> {
        unimplemented()
    }
    async fn remove_image(&self, _: RemoveImageRequest) -> Result<RemoveImageResponse, Status> {
        unimplemented()
    }
    async fn image_fs_info(&self, _: ImageFsInfoRequest) -> Result<ImageFsInfoResponse, Status> {
        unimplemented()
    }
}
