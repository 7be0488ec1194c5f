//! Watches over nodes: taints them by their conditions, and calls those that fell silent Unknown.
//!
//! A node is alive as long as its lease or its status changes, judged by this process's clock. The `not-ready` taint that every new
//! node is born with is removed in the same moment the node's status says Ready.

mod health;
mod taints;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, Recorder, WorkQueue, reference};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use self::health::Health;
use crate::controller::{Context, Controller};
use crate::{meta, pod};

/// How long a node may be silent, and how long a new one may take to speak at all.
const MONITOR_GRACE: Duration = Duration::from_secs(50);
const STARTUP_GRACE: Duration = Duration::from_secs(60);
const LEASES: &str = "kube-node-lease";
/// Pods by the name of their node.
pub(crate) const BY_NODE: &str = "node";

pub(crate) struct NodeLifecycle {
    client: kube::Client,
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Informer<Pod>,
    health: Mutex<HashMap<String, Health>>,
    recorder: Recorder,
}

impl Controller for NodeLifecycle {
    const ACCOUNT: &'static str = "node-controller";
    const WORKERS: usize = 4;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (nodes, leases) = (context.informers.of::<Node>(), context.informers.of::<Lease>());
        let pods = context.informers.of::<Pod>();
        index_by_node(&pods);
        nodes.subscribe({
            let queue = queue.clone();
            move |change| queue.add(Key::of(&**change.object()))
        });
        leases.subscribe(move |change| {
            let lease = change.object();
            if meta::namespace(&**lease) == LEASES && !matches!(change, Change::Deleted(_)) {
                queue.add(Key::new("", meta::name(&**lease)));
            }
        });
        let recorder = context.recorder("node-controller");
        Self { client: context.client.clone(), nodes, leases, pods, health: Mutex::default(), recorder }
    }
}

pub(crate) fn index_by_node(pods: &Informer<Pod>) {
    pods.add_index(BY_NODE, |pod| {
        Some(pod::node_name(pod)).filter(|node| !node.is_empty()).map(str::to_owned).into_iter().collect()
    });
}

#[async_trait]
impl Reconciler for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(node) = self.nodes.get(key) else {
            self.health.lock().remove(&key.name);
            return Ok(Next::OnChange);
        };
        let lease = self.leases.get(&Key::new(LEASES, &*key.name));
        let (silent_for, was_ready) = self.observe(&node, lease.as_deref());
        let grace = if health::ready(&node).is_some() { MONITOR_GRACE } else { STARTUP_GRACE };
        let node = if silent_for >= grace { self.mark_unknown(node).await? } else { node };

        self.taint(&node).await?;
        if was_ready && !health::is_ready(&node) {
            let message = format!("Node {} status is now: NodeNotReady", key.name);
            self.recorder.normal(&reference(&*node), "NodeNotReady", message);
            self.mark_pods_not_ready(&key.name).await?;
        }
        let ready = health::is_ready(&node);
        if let Some(health) = self.health.lock().get_mut(&key.name) {
            health.ready = ready;
        }
        // A node that was called Unknown is looked at again when it speaks.
        Ok(if silent_for < grace { Next::After(grace - silent_for) } else { Next::OnChange })
    }
}

impl NodeLifecycle {
    /// How long the node has said nothing, and whether it was ready at the last look.
    fn observe(&self, node: &Node, lease: Option<&Lease>) -> (Duration, bool) {
        let mut all = self.health.lock();
        let sign = health::sign_of_life(node, lease);
        let health =
            all.entry(meta::name(node).to_owned()).or_insert_with(|| Health::new(sign.clone(), Instant::now()));
        health.see(sign, Instant::now());
        (health.silent_for(Instant::now()), health.ready)
    }

    async fn mark_unknown(&self, node: Arc<Node>) -> Result<Arc<Node>, ReconcileError> {
        let marked = health::unknown(&node, Timestamp::now());
        if marked == *node {
            return Ok(node);
        }
        let api = Api::<Node>::all(self.client.clone());
        let marked = api.replace_status(meta::name(&*node), &PostParams::default(), &marked).await?;
        // Our own write must not look like a sign of life.
        if let Some(health) = self.health.lock().get_mut(meta::name(&marked)) {
            health.sign =
                health::sign_of_life(&marked, self.leases.get(&Key::new(LEASES, meta::name(&marked))).as_deref());
        }
        Ok(Arc::new(marked))
    }

    async fn taint(&self, node: &Node) -> Result<(), ReconcileError> {
        let Some(wanted) = taints::changed(node, Time(Timestamp::now())) else { return Ok(()) };
        let patch = json!({
            "metadata": { "resourceVersion": node.metadata.resource_version },
            "spec": { "taints": wanted },
        });
        Api::<Node>::all(self.client.clone())
            .patch(meta::name(node), &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Services must not send to pods whose node cannot say how they are.
    async fn mark_pods_not_ready(&self, node: &str) -> Result<(), ReconcileError> {
        for pod in self.pods.by_index(BY_NODE, node) {
            if !pod::is_ready(&pod) {
                continue;
            }
            let patch = json!({ "metadata": { "uid": meta::uid(&*pod) }, "status": { "conditions": [
                { "type": "Ready", "status": "False", "lastTransitionTime": Time(Timestamp::now()) },
            ]}});
            let api = Api::<Pod>::namespaced(self.client.clone(), meta::namespace(&*pod));
            match api.patch_status(meta::name(&*pod), &PatchParams::default(), &Patch::Strategic(patch)).await {
                Ok(_) => self.recorder.warning(&reference(&*pod), "NodeNotReady", "Node is not ready".into()),
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
