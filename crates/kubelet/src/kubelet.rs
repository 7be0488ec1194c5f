//! Builds a kubelet from its configuration and runs its parts until the drain.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::{Drain, Informers, Recorder};
use cri::v1::{
    ListContainersRequest, ListPodSandboxRequest, RemovePodSandboxRequest, StopContainerRequest, StopPodSandboxRequest,
    VersionRequest,
};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::app_armor;
use crate::cgroups::Cgroups;
use crate::clock::Clock;
use crate::config::Config;
use crate::context::Context;
use crate::eviction::Eviction;
use crate::eviction::usage::max_processes;
use crate::images::Images;
use crate::log_rotation::LogRotation;
use crate::node::info::Machine;
use crate::node::{NodeKeeper, Setup};
use crate::pod::labels;
use crate::pods::Pods;
use crate::server::Server;
use crate::sources::Sources;
use crate::statics::Statics;

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("cannot make {path}: {source}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("cannot listen on port {port}: {source}")]
    Listen { port: u16, source: std::io::Error },
    #[error("the container runtime does not answer: {0}")]
    Runtime(#[source] Box<tonic::Status>),
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("a part of the kubelet failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A kubelet that has its folders, its port and its runtime, and has not started anything.
pub struct Kubelet {
    config: Config,
    machine: Machine,
    runtime: String,
    listener: TcpListener,
}

impl Kubelet {
    /// Makes folders, binds the port, asks the runtime who it is.
    ///
    /// # Errors
    /// When one of these fails; nothing is left running.
    pub async fn build(config: Config) -> Result<Self, BuildError> {
        let pods = config.root_dir.join("pods");
        for path in [&pods, &config.pod_logs_dir] {
            std::fs::create_dir_all(path).map_err(|source| BuildError::Folder { path: path.clone(), source })?;
        }
        // Volumes hold secrets, and files whose owners are users of the node by number alone.
        std::fs::set_permissions(&pods, std::fs::Permissions::from_mode(0o700))
            .map_err(|source| BuildError::Folder { path: pods, source })?;
        let version = config.cri.version(VersionRequest { version: "0.1.0".to_owned() }).await;
        let version = version.map_err(|status| BuildError::Runtime(Box::new(status)))?;
        let machine =
            Machine::look(&config.root_dir, format!("{}://{}", version.runtime_name, version.runtime_version));
        let address = SocketAddr::from(([0, 0, 0, 0], config.port));
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| BuildError::Listen { port: config.port, source })?;
        Ok(Self { config, machine, runtime: version.runtime_name, listener })
    }

    /// The port that was bound, for a configuration that asked for any.
    pub fn port(&self) -> u16 {
        self.listener.local_addr().map_or(self.config.port, |address| address.port())
    }

    /// Runs until `drain`; `ready` is called when the node is registered and Ready. Containers keep running afterwards.
    ///
    /// # Errors
    /// When a part of the kubelet panicked.
    pub async fn run(self, ready: impl FnOnce(), drain: Drain) -> Result<(), RunError> {
        let port = self.port();
        let Self { config, machine, runtime, listener } = self;
        let informers = Informers::new(config.client.clone(), drain.clone());
        let recorder = Recorder::new(config.client.clone(), "kubelet", &config.node_name, drain.clone());
        let clock = Clock::system();
        let nodes = informers.selected::<Node>("", &format!("metadata.name={}", config.node_name));
        let pods = informers.selected::<Pod>("", &format!("spec.nodeName={}", config.node_name));
        let context = Arc::new(Context {
            images: Images::new(config.cri.clone(), recorder.clone(), clock.clone(), &config.root_dir),
            node_name: config.node_name,
            node_ip: config.node_ip,
            cri: config.cri,
            runtime,
            sources: Sources::new(config.client.clone()),
            client: config.client,
            recorder,
            clock,
            root_dir: config.root_dir,
            pod_logs_dir: config.pod_logs_dir,
            cluster_dns: config.cluster_dns,
            cluster_domain: config.cluster_domain,
            resolv_conf: config.resolv_conf,
            cgroups: Cgroups::new(&config.cgroup_root),
            cpus: machine.cpus,
            memory: machine.memory,
            max_pods: i64::from(config.max_pods),
            sysctls: config.sysctls,
            has_app_armor: app_armor::is_enabled(),
            log_max_bytes: config.logs.max_bytes,
            pod_max_pids: config.pod_max_pids,
            pressures: watch::Sender::default(),
            released: watch::Sender::default(),
            services: informers.of::<Service>(),
            runtime_classes: informers.of::<RuntimeClass>(),
            nodes,
            admitted: Mutex::default(),
        });
        if let Err(status) = context.images.recover().await {
            tracing::warn!(error = %status, "cannot compare the records of image pulls with the images that are present");
        }
        let setup = Setup {
            machine,
            port,
            pod_cidr: config.pod_cidr,
            register: config.register_node,
            labels: config.node_labels,
            taints: config.register_with_taints,
            thresholds: config.eviction.clone(),
            reserved: config.reserved.clone(),
        };
        let keeper = Arc::new(NodeKeeper::new(context.clone(), setup));
        let mut is_ready = keeper.ready.subscribe();
        let (tell, inputs) = mpsc::unbounded_channel();
        let mut parts = tokio::task::JoinSet::new();
        let reserved = |name: &str| config.reserved.get(name).map_or(0, |reserved| reserved.value());
        let memory = (context.memory - reserved("memory")).max(0);
        // The last tenth of the process table is the node's own, whatever is reserved.
        let pids = max_processes().map(|most| (most / 10 * 9).min(most - reserved("pid")).max(1));
        if let Err(error) = context.cgroups.limit_all(memory, pids) {
            tracing::warn!(%error, "what all pods use together cannot be limited");
        }
        let eviction = Eviction::new(
            context.clone(),
            config.eviction,
            config.eviction_transition,
            keeper.reference(),
            tell.clone(),
        );
        parts.spawn(drain.clone().run_until_cancelled_owned(eviction.run()).map(drop));
        let rotation = LogRotation::new(context.cri.clone(), context.clock.clone(), config.logs);
        parts.spawn(drain.clone().run_until_cancelled_owned(rotation.run()).map(drop));
        parts.spawn(keeper.run(drain.clone()));
        let (news, heard) = watch::channel(0);
        let (shown, static_pods) = watch::channel(Vec::new());
        if let Some(folder) = config.static_pod_path {
            let statics = Statics::new(context.clone(), folder, pods.clone(), tell.clone(), shown);
            parts.spawn(drain.clone().run_until_cancelled_owned(statics.run()).map(drop));
        }
        let server = Server { context: context.clone(), pods: pods.clone(), static_pods, news: heard, tls: config.tls };
        parts.spawn(server.run(listener, drain.clone()));
        parts.spawn(Pods::new(context.clone(), news, drain.clone()).run(pods.clone(), tell, inputs));
        if drain.run_until_cancelled(is_ready.wait_for(|ready| *ready)).await.is_some() {
            ready();
        }
        while let Some(ended) = parts.join_next().await {
            ended?;
        }
        Ok(())
    }
}

/// Stops and removes every pod sandbox of this node that a kubelet made: for a node that goes away with its pods.
///
/// # Errors
/// The first error of the runtime; the other pods are still tried.
pub async fn stop_all_pods(cri: &dyn cri::Cri, grace: Duration) -> Result<(), tonic::Status> {
    let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
    let sandboxes = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await?.items;
    let containers = cri.list_containers(ListContainersRequest::default()).await?.containers;
    let ours = sandboxes.into_iter().filter(|sandbox| sandbox.labels.contains_key(labels::POD_UID));
    let ends = ours.map(|sandbox| {
        let own: Vec<_> = containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id).map(|c| c.id.clone()).collect();
        async move {
            let stops =
                own.into_iter().map(|container_id| cri.stop_container(StopContainerRequest { container_id, timeout }));
            futures::future::join_all(stops).await;
            let pod_sandbox_id = sandbox.id;
            cri.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() }).await?;
            cri.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }).await.map(drop)
        }
    });
    futures::future::join_all(ends).await.into_iter().collect()
}
