//! The scheduling loop: take a pod, choose its node, assume it there, bind it beside the loop; or say why it cannot be placed.

use std::sync::Arc;

use client::{Informer, Key, Recorder, reference};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use crate::cache::Cache;
use crate::fit::{FitError, explain, select_node};
use crate::framework::{Framework, PostFilterResult};
use crate::node_info::PodInfo;
use crate::queue::{Queue, Queued, Rejection};

const FAILED: &str = "FailedScheduling";
const UNSCHEDULABLE: &str = "Unschedulable";
const SCHEDULER_ERROR: &str = "SchedulerError";

pub(crate) struct Scheduler {
    client: kube::Client,
    framework: Framework,
    cache: Arc<Cache>,
    queue: Arc<Queue>,
    pods: Informer<Pod>,
    recorder: Recorder,
}

impl Scheduler {
    pub(crate) fn new(
        client: kube::Client,
        framework: Framework,
        cache: Arc<Cache>,
        queue: Arc<Queue>,
        pods: Informer<Pod>,
        recorder: Recorder,
    ) -> Self {
        Self { client, framework, cache, queue, pods, recorder }
    }

    pub(crate) async fn run(self: Arc<Self>) {
        let mut turn = 0_u64;
        loop {
            let queued = self.queue.pop().await;
            turn = turn.wrapping_add(1);
            self.schedule_one(queued, turn);
        }
    }

    /// Decides without waiting for anything; what must be written is written beside the loop.
    fn schedule_one(self: &Arc<Self>, queued: Queued, turn: u64) {
        let pod = queued.pod;
        if pod.is_terminating() {
            return self.queue.remove(pod.uid());
        }
        let snapshot = self.cache.snapshot();
        let nominated = self.cache.nominated(pod.priority, pod.uid());
        match select_node(&self.framework, &pod, &snapshot, &nominated, turn) {
            Ok(node) => {
                self.cache.clear_nomination(pod.uid());
                self.cache.assume(&pod, &node);
                for plugin in &self.framework.reserve {
                    if let Err(verdict) = plugin.reserve(&pod, &node) {
                        self.unreserve(&pod, &node);
                        let message = explain(snapshot.nodes.len(), &[verdict]);
                        let error = FitError {
                            message,
                            rejected_by: vec![Rejection { plugin: plugin.name(), resolvable: true }],
                            preemption: PostFilterResult::default(),
                        };
                        return self.reject(pod, error);
                    }
                }
                let this = self.clone();
                tokio::spawn(async move { this.bind(pod, node).await });
            }
            Err(error) => {
                tracing::debug!(
                    pod = pod.name(),
                    namespace = pod.namespace(),
                    attempts = queued.attempts,
                    reason = error.message,
                    "no node fits"
                );
                if let Some(node) = &error.preemption.nominated_node {
                    self.cache.nominate(&pod, node);
                }
                self.reject(pod, error);
            }
        }
    }

    fn reject(self: &Arc<Self>, pod: Arc<PodInfo>, error: FitError) {
        self.queue.unschedulable(pod.uid(), error.rejected_by.clone());
        let this = self.clone();
        tokio::spawn(async move { this.report(&pod, error).await });
    }

    fn unreserve(&self, pod: &PodInfo, node: &str) {
        self.framework.reserve.iter().rev().for_each(|plugin| plugin.unreserve(pod, node));
        self.cache.forget(pod.uid());
    }

    async fn bind(&self, pod: Arc<PodInfo>, node: String) {
        match self.try_bind(&pod, &node).await {
            Ok(()) => {
                self.queue.remove(pod.uid());
                let message = format!("Successfully assigned {}/{} to {node}", pod.namespace(), pod.name());
                self.recorder.normal(&reference(&*pod.pod), "Scheduled", message);
            }
            Err(error) => {
                self.unreserve(&pod, &node);
                self.queue.failed(pod.uid());
                // Deleted or bound by someone else meanwhile: there is nothing left to say.
                if self.is_waiting(&pod) {
                    let message = format!("binding rejected: {error}");
                    self.write_condition(&pod, SCHEDULER_ERROR, &message, None).await;
                    self.recorder.warning(&reference(&*pod.pod), FAILED, message);
                }
            }
        }
    }

    async fn try_bind(&self, pod: &PodInfo, node: &str) -> Result<(), String> {
        for plugin in &self.framework.permit {
            plugin.permit(&pod.pod, node).await?;
        }
        self.framework.bind.bind(&pod.pod, node).await.map_err(|error| match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        })
    }

    fn is_waiting(&self, pod: &PodInfo) -> bool {
        let known = self.pods.get(&Key::new(pod.namespace(), pod.name()));
        known.is_some_and(|known| {
            known.metadata.uid == pod.pod.metadata.uid
                && known.metadata.deletion_timestamp.is_none()
                && known.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default().is_empty()
        })
    }

    async fn report(&self, pod: &PodInfo, error: FitError) {
        for victim in &error.preemption.victims {
            self.preempt(pod, victim, error.preemption.nominated_node.as_deref().unwrap_or_default()).await;
        }
        self.recorder.warning(&reference(&*pod.pod), FAILED, error.message.clone());
        self.write_condition(pod, UNSCHEDULABLE, &error.message, error.preemption.nominated_node.as_deref()).await;
    }

    async fn preempt(&self, pod: &PodInfo, victim: &Pod, node: &str) {
        let (name, namespace) =
            (victim.metadata.name.as_deref().unwrap_or_default(), victim.metadata.namespace.as_deref());
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace.unwrap_or_default());
        let condition = json!({ "status": { "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": "default-scheduler: preempting to accommodate a higher priority pod",
            "lastTransitionTime": Time(Timestamp::now()),
        }]}});
        if let Err(error) = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(condition)).await {
            tracing::debug!(victim = name, %error, "victim not marked");
        }
        let only_this = Preconditions { uid: victim.metadata.uid.clone(), resource_version: None };
        match api.delete(name, &DeleteParams::default().preconditions(only_this)).await {
            Ok(_) => {
                let by = format!("{}/{}", pod.namespace(), pod.name());
                self.recorder.normal(&reference(victim), "Preempted", format!("Preempted by pod {by} on node {node}"));
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => (),
            Err(error) => tracing::warn!(victim = name, %error, "victim not deleted"),
        }
    }

    /// Written only if it says something new, so that a pod that cannot be placed does not write for ever.
    async fn write_condition(&self, pod: &PodInfo, reason: &str, message: &str, nominated: Option<&str>) {
        let status = pod.pod.status.as_ref();
        let known =
            status.and_then(|status| status.conditions.as_ref()?.iter().find(|known| known.type_ == "PodScheduled"));
        let same = known.is_some_and(|known| {
            known.status == "False"
                && known.reason.as_deref() == Some(reason)
                && known.message.as_deref() == Some(message)
        });
        let was_nominated = status.and_then(|status| status.nominated_node_name.as_deref());
        if same && (nominated.is_none() || nominated == was_nominated) {
            return;
        }
        let since = known.filter(|known| known.status == "False").and_then(|known| known.last_transition_time.clone());
        let mut status = json!({ "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": since.unwrap_or(Time(Timestamp::now())),
            "observedGeneration": pod.pod.metadata.generation,
        }]});
        if let (Some(node), Some(fields)) = (nominated, status.as_object_mut()) {
            fields.insert("nominatedNodeName".into(), node.into());
        }
        let patch = json!({ "metadata": { "uid": pod.uid() }, "status": status });
        let api = Api::<Pod>::namespaced(self.client.clone(), pod.namespace());
        match api.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(_) => (),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => (),
            Err(error) => {
                tracing::warn!(pod = pod.name(), namespace = pod.namespace(), %error, "condition not written")
            }
        }
    }
}
