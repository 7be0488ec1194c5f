//! The node's own object: registered, kept up to date, its lease renewed.

pub(crate) mod info;
mod lease;
mod register;
pub(crate) mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::quantity::Quantity;
use client::{Drain, Key};
use cri::v1::{ListImagesRequest, NetworkConfig, RuntimeConfig, StatusRequest, UpdateRuntimeConfigRequest};
use k8s_openapi::api::core::v1::{Node, NodeStatus, ObjectReference};
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use self::info::Machine;
use self::status::{Facts, Image, Runtime, status};
use crate::context::Context;
use crate::eviction::thresholds::Thresholds;

/// How often the status is looked at once the node is ready, and the lease renewed.
const PERIOD: Duration = Duration::from_secs(10);
/// How often while it is not: a starting node should not wait for a tick.
const FAST: Duration = Duration::from_millis(100);
const FAST_FOR: u32 = 600;
/// The status is written at least this often, changed or not.
const REPORT: Duration = Duration::from_secs(300);

pub(crate) struct NodeKeeper {
    pub(crate) context: Arc<Context>,
    pub(crate) machine: Machine,
    pub(crate) port: u16,
    /// Given by the caller; otherwise the controller's choice is taken.
    pub(crate) pod_cidr: Option<String>,
    pub(crate) register: bool,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    pub(crate) taints: Vec<k8s_openapi::api::core::v1::Taint>,
    pub(crate) thresholds: Thresholds,
    pub(crate) reserved: BTreeMap<String, Quantity>,
    pub(crate) ready: watch::Sender<bool>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    last: Option<NodeStatus>,
    written_at: Option<tokio::time::Instant>,
    told_cidr: Option<String>,
}

pub(crate) struct Setup {
    pub(crate) machine: Machine,
    pub(crate) port: u16,
    pub(crate) pod_cidr: Option<String>,
    pub(crate) register: bool,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    pub(crate) taints: Vec<k8s_openapi::api::core::v1::Taint>,
    pub(crate) thresholds: Thresholds,
    pub(crate) reserved: BTreeMap<String, Quantity>,
}

impl NodeKeeper {
    pub(crate) fn new(context: Arc<Context>, setup: Setup) -> Self {
        Self {
            context,
            machine: setup.machine,
            port: setup.port,
            pod_cidr: setup.pod_cidr,
            register: setup.register,
            labels: setup.labels,
            taints: setup.taints,
            thresholds: setup.thresholds,
            reserved: setup.reserved,
            ready: watch::Sender::new(false),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    pub(crate) async fn run(self: Arc<Self>, drain: Drain) {
        let subscriber = Arc::downgrade(&self);
        let name = self.context.node_name.clone();
        self.context.nodes.subscribe(move |change| {
            if change.object().metadata.name.as_deref() == Some(&name)
                && let Some(keeper) = subscriber.upgrade()
            {
                keeper.changed.notify_one();
            }
        });
        self.context.recorder.normal(&self.reference(), "Starting", "Starting kubelet.".to_owned());
        let keep = async {
            if let Err(error) = self.tell_cidr().await {
                tracing::warn!(%error, "the runtime did not take the pod network");
            }
            if self.register {
                self.register_node().await;
            }
            tokio::join!(self.keep_status(), lease::keep(&self.context, PERIOD));
        };
        drain.run_until_cancelled(keep).await;
    }

    async fn keep_status(&self) {
        let mut tries = 0;
        let mut pressures = self.context.pressures.subscribe();
        loop {
            if let Err(error) = self.sync().await {
                tracing::debug!(%error, "node status could not be written");
            }
            let fast = !*self.ready.borrow() && tries < FAST_FOR;
            tries += 1;
            let pause = tokio::time::sleep(if fast { FAST } else { PERIOD });
            tokio::select! {
                () = pause => (),
                () = self.changed.notified() => (),
                // The sender lives in the context.
                _ = pressures.changed() => (),
            }
        }
    }

    /// Reads the runtime, computes the status, and writes it if it says something new.
    async fn sync(&self) -> Result<(), kube::Error> {
        if let Err(error) = self.tell_cidr().await {
            tracing::debug!(%error, "the runtime did not take the pod network");
        }
        let runtime = self.runtime().await;
        let cached = self.context.nodes.get(&Key::new("", self.context.node_name.clone()));
        let old = cached.as_ref().and_then(|node| node.status.clone());
        let old = self.state.lock().last.clone().or(old).unwrap_or_default();
        let facts = Facts {
            machine: &self.machine,
            node_name: &self.context.node_name,
            node_ip: self.context.node_ip,
            port: self.port,
            max_pods: self.context.max_pods,
            runtime: &runtime,
            pressures: &self.context.pressures.borrow().clone(),
            thresholds: &self.thresholds,
            reserved: &self.reserved,
        };
        let new = status(&facts, &old, self.context.clock.now());
        let overdue = self.state.lock().written_at.is_none_or(|at| at.elapsed() >= REPORT);
        // Others (a controller, an admin) may have changed what we wrote.
        let differs = cached.as_ref().is_some_and(|node| {
            let shown = node.status.as_ref().map(status::without_heartbeats).unwrap_or_default();
            status::ours(&shown) != status::ours(&status::without_heartbeats(&new))
        });
        if overdue || differs || status::without_heartbeats(&new) != status::without_heartbeats(&old) {
            self.write(&old, new.clone()).await?;
        }
        self.ready.send_if_modified(|ready| std::mem::replace(ready, status::is_ready(&new)) != status::is_ready(&new));
        Ok(())
    }

    async fn write(&self, old: &NodeStatus, new: NodeStatus) -> Result<(), kube::Error> {
        let api: Api<Node> = Api::all(self.context.client.clone());
        let patch = serde_json::json!({ "status": new });
        api.patch_status(&self.context.node_name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        for reason in status::events(old, &new) {
            let message = format!("Node {} status is now: {reason}", self.context.node_name);
            self.context.recorder.normal(&self.reference(), reason, message);
        }
        let mut state = self.state.lock();
        state.last = Some(new);
        state.written_at = Some(tokio::time::Instant::now());
        Ok(())
    }

    async fn runtime(&self) -> Runtime {
        let mut errors = Vec::new();
        match self.context.cri.status(StatusRequest { verbose: false }).await {
            Ok(answer) => {
                let conditions = answer.status.unwrap_or_default().conditions;
                for wanted in ["RuntimeReady", "NetworkReady"] {
                    match conditions.iter().find(|condition| condition.r#type == wanted) {
                        Some(condition) if condition.status => (),
                        Some(condition) => errors.push(format!(
                            "container runtime {} not ready: {wanted}=false reason:{} message:{}",
                            if wanted == "NetworkReady" {
                                "network"
                            } else {
                                "status check may not have completed yet"
                            },
                            condition.reason,
                            condition.message
                        )),
                        None => errors.push(format!("container runtime did not report {wanted}")),
                    }
                }
            }
            Err(status) => errors.push(format!("container runtime is down: {}", status.message())),
        }
        let images = self.context.cri.list_images(ListImagesRequest::default()).await;
        let images = images.map(|listed| listed.images).unwrap_or_default();
        let mut images: Vec<Image> = images
            .into_iter()
            .map(|image| Image {
                names: image.repo_digests.into_iter().chain(image.repo_tags).collect(),
                size: i64::try_from(image.size).unwrap_or(i64::MAX),
            })
            .collect();
        images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.names.cmp(&b.names)));
        Runtime { errors, images }
    }

    /// Hands the node's pod network to the runtime, once per value.
    async fn tell_cidr(&self) -> Result<(), tonic::Status> {
        let assigned = || {
            let node = self.context.nodes.get(&Key::new("", self.context.node_name.clone()))?;
            node.spec.as_ref()?.pod_cidr.clone()
        };
        let Some(cidr) = self.pod_cidr.clone().or_else(assigned) else { return Ok(()) };
        if self.state.lock().told_cidr.as_ref() == Some(&cidr) {
            return Ok(());
        }
        let network_config = Some(NetworkConfig { pod_cidr: cidr.clone() });
        let request = UpdateRuntimeConfigRequest { runtime_config: Some(RuntimeConfig { network_config }) };
        self.context.cri.update_runtime_config(request).await?;
        self.state.lock().told_cidr = Some(cidr);
        Ok(())
    }

    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            kind: Some("Node".to_owned()),
            api_version: Some("v1".to_owned()),
            name: Some(self.context.node_name.clone()),
            // What upstream's node events carry, and what `kubectl describe node` looks for.
            uid: Some(self.context.node_name.clone()),
            ..Default::default()
        }
    }
}
