//! Evicts pods from nodes whose `NoExecute` taints they do not tolerate, or no longer: `tolerationSeconds` after the taint came.

use std::collections::HashMap;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, Recorder, WorkQueue, reference};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::json;

use crate::controller::{Context, Controller};
use crate::node_lifecycle::{BY_NODE, index_by_node};
use crate::placement::tolerates;
use crate::{meta, pod};

pub(crate) struct TaintEviction {
    client: kube::Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// Since when a pod is under taints that do not say when they came.
    since: Mutex<HashMap<Key, Timestamp>>,
    recorder: Recorder,
}

impl Controller for TaintEviction {
    const ACCOUNT: &'static str = "node-controller";
    const WORKERS: usize = 8;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (nodes, pods) = (context.informers.of::<Node>(), context.informers.of::<Pod>());
        index_by_node(&pods);
        pods.subscribe({
            let queue = queue.clone();
            move |change| {
                let moved = |old: &Pod, new: &Pod| {
                    pod::node_name(old) != pod::node_name(new) || tolerations(old) != tolerations(new)
                };
                if !matches!(change, Change::Updated { old, new } if !moved(old, new)) {
                    queue.add(Key::of(&**change.object()));
                }
            }
        });
        nodes.subscribe({
            let pods = pods.clone();
            move |change| {
                let same = matches!(change, Change::Updated { old, new } if taints(old).eq(taints(new)));
                if !same {
                    for pod in pods.by_index(BY_NODE, meta::name(&**change.object())) {
                        queue.add(Key::of(&*pod));
                    }
                }
            }
        });
        let recorder = context.recorder("taint-eviction-controller");
        Self { client: context.client.clone(), nodes, pods, since: Mutex::default(), recorder }
    }
}

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    all.filter(|taint| taint.effect == "NoExecute")
}

fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default()
}

#[derive(Debug, PartialEq, Eq)]
enum Eviction {
    Never,
    At(Timestamp),
}

/// `seen` stands in for taints that do not say when they were added.
fn eviction<'a>(taints: impl Iterator<Item = &'a Taint>, tolerations: &[Toleration], seen: Timestamp) -> Eviction {
    let mut due: Option<Timestamp> = None;
    for taint in taints {
        let matching: Vec<_> = tolerations.iter().filter(|toleration| tolerates(toleration, taint)).collect();
        let added = taint.time_added.as_ref().map_or(seen, |time| time.0);
        // The shortest of the matching tolerations counts; one without a limit limits nothing.
        let limit = matching.iter().filter_map(|toleration| toleration.toleration_seconds).min();
        let at = match (matching.is_empty(), limit) {
            (true, _) => added,
            (false, None) => continue,
            (false, Some(seconds)) => added + SignedDuration::from_secs(seconds.max(0)),
        };
        due = Some(due.map_or(at, |due| due.min(at)));
    }
    due.map_or(Eviction::Never, Eviction::At)
}

#[async_trait]
impl Reconciler for TaintEviction {
    const NAME: &'static str = "taint-eviction";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let now = Timestamp::now();
        let pod = self.pods.get(key).filter(|pod| !meta::is_deleting(&**pod) && !pod::is_finished(pod));
        let node = pod.as_ref().and_then(|pod| self.nodes.get(&Key::new("", pod::node_name(pod))));
        let (Some(pod), Some(node)) = (pod, node.filter(|node| taints(node).next().is_some())) else {
            self.since.lock().remove(key);
            return Ok(Next::OnChange);
        };
        let seen = *self.since.lock().entry(key.clone()).or_insert(now);
        match eviction(taints(&node), tolerations(&pod), seen) {
            Eviction::Never => Ok(Next::OnChange),
            Eviction::At(due) if due > now => Ok(Next::After(pod::until(due, now))),
            Eviction::At(_) => self.evict(&pod).await.map(|()| Next::OnChange),
        }
    }
}

impl TaintEviction {
    async fn evict(&self, pod: &Pod) -> Result<(), ReconcileError> {
        let message = format!("Marking for deletion Pod {}", Key::of(pod));
        self.recorder.normal(&reference(pod), "TaintManagerEviction", message);
        let api = Api::<Pod>::namespaced(self.client.clone(), meta::namespace(pod));
        let condition = json!({ "metadata": { "uid": meta::uid(pod) }, "status": { "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": Time(Timestamp::now()),
        }]}});
        match api.patch_status(meta::name(pod), &PatchParams::default(), &Patch::Strategic(condition)).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
            other => drop(other?),
        }
        let only_this = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        match api.delete(meta::name(pod), &DeleteParams::default().preconditions(only_this)).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Taints as "key@added", tolerations as "key" or "key/seconds", `*` for every key; times in seconds.
    #[track_caller]
    fn check(taints: &str, tolerations: &str, want: Option<i64>) {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let taint = |text: &str| {
            let (key, added) = text.split_once('@').unwrap_or((text, ""));
            let time_added = added.parse().ok().map(|second| Time(at(second)));
            Taint { key: key.into(), effect: "NoExecute".into(), time_added, value: None }
        };
        let toleration = |text: &str| {
            let (key, seconds) = text.split_once('/').unwrap_or((text, ""));
            let key = Some(key).filter(|key| *key != "*").map(str::to_owned);
            Toleration {
                key,
                operator: Some("Exists".into()),
                toleration_seconds: seconds.parse().ok(),
                ..Default::default()
            }
        };
        let taints: Vec<_> = taints.split_whitespace().map(taint).collect();
        let all: Vec<_> = tolerations.split_whitespace().map(toleration).collect();
        let want = want.map_or(Eviction::Never, |second| Eviction::At(at(second)));
        assert_eq!(eviction(taints.iter(), &all, at(1000)), want, "{tolerations}");
    }

    #[test]
    fn tolerations_delay_or_prevent_eviction() {
        check("a@100", "", Some(100));
        check("a@100", "a", None);
        check("a@100", "*", None);
        check("a@100", "a/300", Some(400));
        check("a@100 b@150", "a/300 b/10", Some(160));
        check("a@100", "a/300 a/50", Some(150));
        check("a@100 b@150", "a/300", Some(150));
        check("a", "a/5", Some(1005));
    }
}
