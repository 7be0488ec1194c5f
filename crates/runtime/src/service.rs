//! CRI v1, answered: each call is looked up, done elsewhere, and its outcome put in CRI's words.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cri::v1::*;
use cri::{Cri, Events};
use tonic::Status;

use crate::container::{Container, ContainerError};
use crate::images::{Credentials, ImageError, ProcessConfig, PullError, StoredImage};
use crate::sandbox::{Sandbox, SandboxError, namespace_options, now};
use crate::shim::link::LinkError;
use crate::shim::protocol::{Request, container_directory};
use crate::spec::Principal;
use crate::streaming::{self, Session};
use crate::{Runtime, cgroup, stats};

impl From<SandboxError> for Status {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Invalid(reason) => Self::invalid_argument(reason),
            other => Self::unknown(other.to_string()),
        }
    }
}

impl From<ContainerError> for Status {
    fn from(error: ContainerError) -> Self {
        let text = error.to_string();
        match error {
            ContainerError::Invalid(_) | ContainerError::Spec(_) => Self::invalid_argument(text),
            ContainerError::NoImage(_) => Self::not_found(text),
            ContainerError::State { .. } => Self::failed_precondition(text),
            ContainerError::Immortal(_) => Self::deadline_exceeded(text),
            _ => Self::unknown(text),
        }
    }
}

impl From<LinkError> for Status {
    fn from(error: LinkError) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<ImageError> for Status {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Pull(PullError::NotFound(_)) => Self::not_found(error.to_string()),
            ImageError::Pull(PullError::Denied { .. }) => Self::permission_denied(error.to_string()),
            ImageError::Reference(_) => Self::invalid_argument(error.to_string()),
            _ => Self::unknown(error.to_string()),
        }
    }
}

impl Runtime {
    fn need_sandbox(&self, id: &str) -> Result<Arc<Sandbox>, Status> {
        self.sandbox(id).ok_or_else(|| Status::not_found(format!("sandbox {id:?} not found")))
    }

    fn need_container(&self, id: &str) -> Result<Arc<Container>, Status> {
        self.container(id).ok_or_else(|| Status::not_found(format!("container {id:?} not found")))
    }

    /// Tells listeners, with the pod's whole state as the interface wants it.
    pub(crate) fn announce(&self, sandbox: &str, container: &str, kind: ContainerEventType) {
        if !self.events.has_listeners() {
            return;
        }
        let status = self.sandbox(sandbox).map(|sandbox| sandbox_status(&sandbox));
        let containers = self.containers_of(sandbox).iter().map(|c| container_status(c)).collect();
        self.events.send(ContainerEventResponse {
            container_id: container.to_owned(),
            container_event_type: kind.into(),
            created_at: now(),
            pod_sandbox_status: status,
            containers_statuses: containers,
        });
    }

    fn directory_of(&self, container: &Container) -> Option<PathBuf> {
        self.sandbox(&container.sandbox).map(|sandbox| container_directory(&sandbox.directory, &container.id))
    }

    async fn stats_of(&self, container: Arc<Container>) -> Option<ContainerStats> {
        let directory = self.directory_of(&container)?;
        let running = container_state(&container) == ContainerState::ContainerRunning;
        let layer = container.measured.of(&directory.join("upper")).await;
        Some(stats::container_stats(&container.record(), &directory, layer, running, now()))
    }
}

fn sandbox_status(sandbox: &Sandbox) -> PodSandboxStatus {
    let record = sandbox.record();
    let mut ips = record.ips.iter().map(ToString::to_string);
    let config = record.config.0;
    let options = namespace_options(&config);
    PodSandboxStatus {
        id: record.id,
        metadata: config.metadata,
        state: sandbox_state(record.ready).into(),
        created_at: record.created_at,
        network: Some(PodSandboxNetworkStatus {
            ip: ips.next().unwrap_or_default(),
            additional_ips: ips.map(|ip| PodIp { ip }).collect(),
        }),
        linux: Some(LinuxPodSandboxStatus { namespaces: Some(Namespace { options: Some(options) }) }),
        labels: config.labels,
        annotations: config.annotations,
        runtime_handler: record.runtime_handler,
    }
}

fn sandbox_state(ready: bool) -> PodSandboxState {
    if ready { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready }
}

fn container_state(container: &Container) -> ContainerState {
    let state = container.state();
    match (state.has_ended(), state.started_at) {
        (true, _) => ContainerState::ContainerExited,
        (false, 0) => ContainerState::ContainerCreated,
        (false, _) => ContainerState::ContainerRunning,
    }
}

fn container_status(container: &Container) -> ContainerStatus {
    let (record, state) = (container.record(), container.state());
    let config = record.config.0;
    let (reason, message) = match (&record.start_error, state.has_ended(), state.oom_killed, state.exit_code) {
        (Some(error), ..) => ("StartError", error.clone()),
        (None, true, true, _) => ("OOMKilled", String::new()),
        (None, true, false, 0) => ("Completed", String::new()),
        (None, true, false, 255) if state.pid == 0 => ("Unknown", "the container's end was not seen".to_owned()),
        (None, true, false, _) => ("Error", String::new()),
        (None, false, ..) => ("", String::new()),
    };
    let resources = config.linux.as_ref().and_then(|l| l.resources.clone());
    let groups = record.groups.iter().map(|g| i64::from(*g)).collect();
    let user = LinuxContainerUser { uid: record.uid.into(), gid: record.gid.into(), supplemental_groups: groups };
    ContainerStatus {
        state: container_state(container).into(),
        created_at: record.created_at,
        started_at: state.started_at,
        finished_at: state.finished_at,
        exit_code: state.exit_code,
        reason: reason.to_owned(),
        message,
        image: config.image.clone(),
        image_ref: record.image_ref,
        image_id: record.image_id,
        log_path: record.log_path.unwrap_or_default(),
        resources: resources.map(|linux| ContainerResources { linux: Some(linux) }),
        user: Some(ContainerUser { linux: Some(user) }),
        stop_signal: config.stop_signal,
        id: record.id,
        metadata: config.metadata,
        labels: config.labels,
        annotations: config.annotations,
        mounts: config.mounts,
    }
}

fn selected(
    labels: &std::collections::BTreeMap<String, String>,
    selector: &std::collections::BTreeMap<String, String>,
) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The user an image asks for: a number, or else a name.
fn user_of(config: &ProcessConfig) -> (Option<Int64Value>, String) {
    let user = config.user.as_deref().unwrap_or_default();
    let user = user.split(':').next().unwrap_or_default();
    match Principal::parse(user) {
        Principal::Id(uid) => (Some(Int64Value { value: uid.into() }), String::new()),
        // As a name, such a user is not known to be other than root.
        Principal::Name(_) | Principal::OutOfRange => (None, user.to_owned()),
    }
}

fn image_message(image: &StoredImage) -> Image {
    let (uid, username) = user_of(&image.config);
    Image {
        id: image.id.to_string(),
        repo_tags: image.tags.iter().cloned().collect(),
        repo_digests: image.digests.iter().cloned().collect(),
        size: image.size,
        uid,
        username,
        spec: Some(ImageSpec { image: image.id.to_string(), ..Default::default() }),
        pinned: image.pinned,
    }
}

#[async_trait]
impl Cri for Runtime {
    async fn version(&self, _: VersionRequest) -> Result<VersionResponse, Status> {
        Ok(VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "ferry".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn run_pod_sandbox(&self, request: RunPodSandboxRequest) -> Result<RunPodSandboxResponse, Status> {
        let config = request.config.ok_or_else(|| Status::invalid_argument("no sandbox configuration"))?;
        let pod_sandbox_id = self.run_sandbox(config, request.runtime_handler).await?;
        Ok(RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn stop_pod_sandbox(&self, request: StopPodSandboxRequest) -> Result<StopPodSandboxResponse, Status> {
        // What does not exist is stopped: the kubelet repeats itself until it hears so.
        if let Some(sandbox) = self.sandbox(&request.pod_sandbox_id) {
            self.stop_sandbox(&sandbox).await?;
        }
        Ok(StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(&self, request: RemovePodSandboxRequest) -> Result<RemovePodSandboxResponse, Status> {
        if let Some(sandbox) = self.sandbox(&request.pod_sandbox_id) {
            self.remove_sandbox(&sandbox).await?;
        }
        Ok(RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(&self, request: PodSandboxStatusRequest) -> Result<PodSandboxStatusResponse, Status> {
        let sandbox = self.need_sandbox(&request.pod_sandbox_id)?;
        let status = sandbox_status(&sandbox);
        let containers = self.containers_of(&status.id).iter().map(|c| container_status(c)).collect();
        Ok(PodSandboxStatusResponse {
            status: Some(status),
            info: Default::default(),
            containers_statuses: containers,
            timestamp: now(),
        })
    }

    async fn list_pod_sandbox(&self, request: ListPodSandboxRequest) -> Result<ListPodSandboxResponse, Status> {
        let filter = request.filter.unwrap_or_default();
        let all: Vec<_> = self.pods.read().sandboxes.values().cloned().collect();
        let items = all.iter().map(|sandbox| sandbox.record()).filter(|record| {
            record.id.starts_with(&filter.id)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state() == sandbox_state(record.ready))
                && selected(&record.config.0.labels, &filter.label_selector)
        });
        let items = items.map(|record| PodSandbox {
            state: sandbox_state(record.ready).into(),
            id: record.id,
            metadata: record.config.0.metadata,
            created_at: record.created_at,
            labels: record.config.0.labels,
            annotations: record.config.0.annotations,
            runtime_handler: record.runtime_handler,
        });
        Ok(ListPodSandboxResponse { items: items.collect() })
    }

    async fn create_container(&self, request: CreateContainerRequest) -> Result<CreateContainerResponse, Status> {
        let sandbox = self.need_sandbox(&request.pod_sandbox_id)?;
        let config = request.config.ok_or_else(|| Status::invalid_argument("no container configuration"))?;
        Ok(CreateContainerResponse { container_id: self.create(&sandbox, config).await? })
    }

    async fn start_container(&self, request: StartContainerRequest) -> Result<StartContainerResponse, Status> {
        self.start(&self.need_container(&request.container_id)?).await?;
        Ok(StartContainerResponse {})
    }

    async fn stop_container(&self, request: StopContainerRequest) -> Result<StopContainerResponse, Status> {
        if let Some(container) = self.container(&request.container_id) {
            self.stop(&container, Duration::from_secs(request.timeout.max(0).unsigned_abs())).await?;
        }
        Ok(StopContainerResponse {})
    }

    async fn remove_container(&self, request: RemoveContainerRequest) -> Result<RemoveContainerResponse, Status> {
        if let Some(container) = self.container(&request.container_id) {
            self.remove(&container).await?;
        }
        Ok(RemoveContainerResponse {})
    }

    async fn list_containers(&self, request: ListContainersRequest) -> Result<ListContainersResponse, Status> {
        let filter = request.filter.unwrap_or_default();
        let all: Vec<_> = self.pods.read().containers.values().cloned().collect();
        let containers = all.iter().map(|c| (c.record(), container_state(c))).filter(|(record, state)| {
            record.id.starts_with(&filter.id)
                && record.sandbox.starts_with(&filter.pod_sandbox_id)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state() == *state)
                && selected(&record.config.0.labels, &filter.label_selector)
        });
        let containers = containers.map(|(record, state)| cri::v1::Container {
            id: record.id,
            pod_sandbox_id: record.sandbox,
            metadata: record.config.0.metadata,
            image: record.config.0.image,
            image_ref: record.image_ref,
            state: state.into(),
            created_at: record.created_at,
            labels: record.config.0.labels,
            annotations: record.config.0.annotations,
            image_id: record.image_id,
        });
        Ok(ListContainersResponse { containers: containers.collect() })
    }

    async fn container_status(&self, request: ContainerStatusRequest) -> Result<ContainerStatusResponse, Status> {
        let container = self.need_container(&request.container_id)?;
        let mut info = std::collections::BTreeMap::new();
        if request.verbose {
            info.insert("pid".to_owned(), container.state().pid.to_string());
        }
        Ok(ContainerStatusResponse { status: Some(container_status(&container)), info })
    }

    async fn update_container_resources(
        &self,
        request: UpdateContainerResourcesRequest,
    ) -> Result<UpdateContainerResourcesResponse, Status> {
        let container = self.need_container(&request.container_id)?;
        let resources = request.linux.unwrap_or_default();
        if container_state(&container) == ContainerState::ContainerRunning {
            cgroup::update(&container.record().cgroup_path, &resources).map_err(|e| Status::unknown(e.to_string()))?;
        }
        self.remember_resources(&container, resources).await.map_err(|e| Status::unknown(e.to_string()))?;
        Ok(UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(
        &self,
        request: ReopenContainerLogRequest,
    ) -> Result<ReopenContainerLogResponse, Status> {
        let container = self.need_container(&request.container_id)?;
        let sandbox = self.need_sandbox(&container.sandbox)?;
        sandbox.link()?.tell(Request::ReopenLog { container: container.id.clone() }).await?;
        Ok(ReopenContainerLogResponse {})
    }

    async fn exec_sync(&self, request: ExecSyncRequest) -> Result<ExecSyncResponse, Status> {
        let container = self.need_container(&request.container_id)?;
        let timeout = (request.timeout > 0).then(|| Duration::from_secs(request.timeout.unsigned_abs()));
        streaming::exec_sync(self, &container, &request.cmd, timeout).await
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResponse, Status> {
        let container = self.need_container(&request.container_id)?;
        if container_state(&container) != ContainerState::ContainerRunning {
            return Err(Status::failed_precondition(format!("container {} is not running", container.id)));
        }
        let request = ExecRequest { container_id: container.id.clone(), ..request };
        Ok(ExecResponse { url: self.streaming.url(Session::Exec(request)) })
    }

    async fn attach(&self, request: AttachRequest) -> Result<AttachResponse, Status> {
        let container = self.need_container(&request.container_id)?;
        if container_state(&container) != ContainerState::ContainerRunning {
            return Err(Status::failed_precondition(format!("container {} is not running", container.id)));
        }
        let request = AttachRequest { container_id: container.id.clone(), ..request };
        Ok(AttachResponse { url: self.streaming.url(Session::Attach(request)) })
    }

    async fn port_forward(&self, request: PortForwardRequest) -> Result<PortForwardResponse, Status> {
        let sandbox = self.need_sandbox(&request.pod_sandbox_id)?;
        let request = PortForwardRequest { pod_sandbox_id: sandbox.record().id, ..request };
        Ok(PortForwardResponse { url: self.streaming.url(Session::PortForward(request)) })
    }

    async fn container_stats(&self, request: ContainerStatsRequest) -> Result<ContainerStatsResponse, Status> {
        let container = self.need_container(&request.container_id)?;
        Ok(ContainerStatsResponse { stats: self.stats_of(container).await })
    }

    async fn list_container_stats(
        &self,
        request: ListContainerStatsRequest,
    ) -> Result<ListContainerStatsResponse, Status> {
        let filter = request.filter.unwrap_or_default();
        let all: Vec<_> = self.pods.read().containers.values().cloned().collect();
        let mut stats = Vec::new();
        for container in all {
            let fits = container.id.starts_with(&filter.id)
                && container.sandbox.starts_with(&filter.pod_sandbox_id)
                && selected(&container.record().config.0.labels, &filter.label_selector);
            if fits && container_state(&container) == ContainerState::ContainerRunning {
                stats.extend(self.stats_of(container).await);
            }
        }
        Ok(ListContainerStatsResponse { stats })
    }

    async fn update_runtime_config(
        &self,
        _: UpdateRuntimeConfigRequest,
    ) -> Result<UpdateRuntimeConfigResponse, Status> {
        // The pod range reaches the network through the node object; there is nothing to do here.
        Ok(UpdateRuntimeConfigResponse {})
    }

    async fn status(&self, _: StatusRequest) -> Result<StatusResponse, Status> {
        let condition = |kind: &str, problem: Option<String>| RuntimeCondition {
            r#type: kind.to_owned(),
            status: problem.is_none(),
            reason: if problem.is_some() { format!("{kind}IsNotSet") } else { String::new() },
            message: problem.unwrap_or_default(),
        };
        let conditions =
            vec![condition("RuntimeReady", None), condition("NetworkReady", self.config.network.not_ready())];
        let features = RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: false };
        Ok(StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            info: Default::default(),
            runtime_handlers: vec![RuntimeHandler { name: String::new(), features: Some(features) }],
            features: Some(RuntimeFeatures { supplemental_groups_policy: true, user_namespaces_host_network: false }),
        })
    }

    async fn runtime_config(&self, _: RuntimeConfigRequest) -> Result<RuntimeConfigResponse, Status> {
        let linux = LinuxRuntimeConfiguration { cgroup_driver: CgroupDriver::Cgroupfs.into() };
        Ok(RuntimeConfigResponse { linux: Some(linux) })
    }

    async fn list_images(&self, request: ListImagesRequest) -> Result<ListImagesResponse, Status> {
        let wanted =
            request.filter.and_then(|filter| filter.image).map(|spec| spec.image).filter(|name| !name.is_empty());
        let images = match wanted {
            Some(name) => self.images.find(&name).into_iter().collect(),
            None => self.images.list(),
        };
        Ok(ListImagesResponse { images: images.iter().map(image_message).collect() })
    }

    async fn image_status(&self, request: ImageStatusRequest) -> Result<ImageStatusResponse, Status> {
        let name = request.image.unwrap_or_default().image;
        let image = self.images.find(&name).as_ref().map(image_message);
        Ok(ImageStatusResponse { image, info: Default::default() })
    }

    async fn pull_image(&self, request: PullImageRequest) -> Result<PullImageResponse, Status> {
        let name = request.image.unwrap_or_default().image;
        let credentials = request.auth.map(Credentials::from);
        let image = self.images.pull(&name, credentials.as_ref()).await?;
        Ok(PullImageResponse { image_ref: image.id.to_string() })
    }

    async fn remove_image(&self, request: RemoveImageRequest) -> Result<RemoveImageResponse, Status> {
        let name = request.image.unwrap_or_default().image;
        match self.images.remove(&name).await {
            // What is not there is removed.
            Ok(()) | Err(ImageError::Store(crate::StoreError::NotFound(_))) => Ok(RemoveImageResponse {}),
            Err(error) => Err(error.into()),
        }
    }

    async fn image_fs_info(&self, _: ImageFsInfoRequest) -> Result<ImageFsInfoResponse, Status> {
        let root = self.config.root.clone();
        let (bytes, layers) = (self.images.used_bytes(), self.images.list().len() as u64);
        let containers = tokio::task::spawn_blocking(move || {
            let sandboxes = root.join("sandboxes");
            stats::filesystem(&sandboxes, now())
        });
        let containers = containers.await.map_err(|e| Status::internal(e.to_string()))?;
        let images = stats::usage_of(&self.config.root.join("images"), bytes, layers, now());
        Ok(ImageFsInfoResponse { image_filesystems: vec![images], container_filesystems: vec![containers] })
    }

    async fn events(&self) -> Result<Events, Status> {
        Ok(self.events.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_user_is_a_number_in_range_or_a_name() {
        for (user, uid, name) in [
            ("", Some(0), ""),
            ("0:5", Some(0), ""),
            ("+0", Some(0), ""),
            ("007:web", Some(7), ""),
            ("web:web", None, "web"),
            ("-1", None, "-1"),
            ("4294967296", None, "4294967296"),
        ] {
            let config = crate::ProcessConfig { user: Some(user.to_owned()), ..Default::default() };
            let (got, username) = user_of(&config);
            assert_eq!((got.map(|uid| uid.value), username.as_str()), (uid, name), "{user}");
        }
    }
}
