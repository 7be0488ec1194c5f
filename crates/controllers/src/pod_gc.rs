//! Removes pods nobody else will: finished ones beyond a limit, those of nodes that are gone, and those deleted before they had one.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::controller::{Context, Controller};
use crate::node_lifecycle::{BY_NODE, index_by_node};
use crate::{meta, pod};

const TERMINATED_POD_THRESHOLD: usize = 12_500;
/// A node that comes back within this time finds its pods.
const QUARANTINE: Duration = Duration::from_secs(40);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub(crate) struct PodGc {
    client: kube::Client,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    /// Since when a node that pods name is missing.
    missing: Mutex<HashMap<String, Instant>>,
}

impl Controller for PodGc {
    const ACCOUNT: &'static str = "pod-garbage-collector";
    const WORKERS: usize = 4;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (pods, nodes) = (context.informers.of::<Pod>(), context.informers.of::<Node>());
        index_by_node(&pods);
        pods.subscribe({
            let (queue, nodes) = (queue.clone(), nodes.clone());
            move |change| {
                let pod = &**change.object();
                let node = pod::node_name(pod);
                let suspicious =
                    pod::is_finished(pod) || meta::is_deleting(pod) || nodes.get(&Key::new("", node)).is_none();
                if suspicious && !matches!(change, Change::Deleted(_)) {
                    queue.add(Key::of(pod));
                }
            }
        });
        nodes.subscribe({
            let pods = pods.clone();
            move |change| {
                if !matches!(change, Change::Added(_)) {
                    for pod in pods.by_index(BY_NODE, meta::name(&**change.object())) {
                        let gone = matches!(change, Change::Deleted(_)) || meta::is_deleting(&*pod);
                        if gone {
                            queue.add(Key::of(&*pod));
                        }
                    }
                }
            }
        });
        Self { client: context.client.clone(), pods, nodes, missing: Mutex::default() }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    /// Its node is gone; certain only after the quarantine.
    Orphaned,
    NeverScheduled,
    OutOfService,
}

fn fate(pod: &Pod, node: Option<&Node>) -> Fate {
    let is_out_of_service = |node: &Node| {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
    };
    match (pod::node_name(pod), node) {
        ("", _) if meta::is_deleting(pod) => Fate::NeverScheduled,
        ("", _) => Fate::Keep,
        (_, None) => Fate::Orphaned,
        (_, Some(node)) if meta::is_deleting(pod) && is_out_of_service(node) => Fate::OutOfService,
        _ => Fate::Keep,
    }
}

#[async_trait]
impl Reconciler for PodGc {
    const NAME: &'static str = "pod-garbage-collector";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(pod) = self.pods.get(key) else { return Ok(Next::OnChange) };
        let name = pod::node_name(&pod);
        let node = self.nodes.get(&Key::new("", name));
        if node.is_some() {
            self.missing.lock().remove(name);
        }
        match fate(&pod, node.as_deref()) {
            Fate::Keep => self.trim_finished(&pod).await?,
            Fate::NeverScheduled => self.delete(&pod, None).await?,
            Fate::OutOfService => self.delete(&pod, Some("PodGC: node is out of service")).await?,
            Fate::Orphaned => {
                let missing = self.missing.lock().entry(name.to_owned()).or_insert_with(Instant::now).elapsed();
                if missing < QUARANTINE {
                    return Ok(Next::After(QUARANTINE - missing));
                }
                if Api::<Node>::all(self.client.clone()).get_opt(name).await?.is_none() {
                    self.delete(&pod, Some("PodGC: node no longer exists")).await?;
                }
            }
        }
        Ok(Next::OnChange)
    }
}

impl PodGc {
    async fn trim_finished(&self, pod: &Pod) -> Result<(), ReconcileError> {
        if !pod::is_finished(pod) {
            return Ok(());
        }
        let all = self.pods.list();
        if all.len() <= TERMINATED_POD_THRESHOLD {
            return Ok(());
        }
        let mut finished: Vec<_> = all.into_iter().filter(|pod| pod::is_finished(pod)).collect();
        let surplus = finished.len().saturating_sub(TERMINATED_POD_THRESHOLD);
        finished.sort_by_key(|pod| meta::created(&**pod));
        for pod in finished.iter().take(surplus) {
            self.delete(pod, None).await?;
        }
        Ok(())
    }

    /// Without grace: there is nobody to grant it. A running pod is called failed first, so that its controllers count it right.
    async fn delete(&self, pod: &Pod, disruption: Option<&str>) -> Result<(), ReconcileError> {
        let api = Api::<Pod>::namespaced(self.client.clone(), meta::namespace(pod));
        if let Some(message) = disruption.filter(|_| !pod::is_finished(pod)) {
            let patch = json!({ "metadata": { "uid": meta::uid(pod) }, "status": { "phase": "Failed", "conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": message,
                "lastTransitionTime": Time(Timestamp::now()),
            }]}});
            match api.patch_status(meta::name(pod), &PatchParams::default(), &Patch::Strategic(patch)).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
                other => drop(other?),
            }
        }
        let only_this = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams::default().grace_period(0).preconditions(only_this);
        match api.delete(meta::name(pod), &params).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}
