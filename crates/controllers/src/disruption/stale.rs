//! Sets the condition DisruptionTarget of a pod to False when the pod was not deleted in two minutes: its eviction did not happen.

use std::time::Duration;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::controller::{Clock, Context, Controller};
use crate::{meta, pod};

const TIMEOUT: SignedDuration = SignedDuration::from_mins(2);
const DISRUPTION_TARGET: &str = "DisruptionTarget";

pub(crate) struct StaleDisruptions {
    client: kube::Client,
    pods: Informer<Pod>,
    clock: Clock,
}

impl Controller for StaleDisruptions {
    const ACCOUNT: &'static str = "disruption-controller";
    const WORKERS: usize = 1;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let pods = context.informers.of::<Pod>();
        pods.subscribe(move |change| {
            let pod = &**change.object();
            if !matches!(change, Change::Deleted(_)) && stale_at(pod).is_some() {
                queue.add(Key::of(pod));
            }
        });
        Self { client: context.client.clone(), pods, clock: context.clock.clone() }
    }
}

/// When the pod's disruption is overdue. A kubelet's own conditions never are: it ends pods that nobody deletes.
fn stale_at(pod: &Pod) -> Option<Timestamp> {
    let target = pod::condition(pod, DISRUPTION_TARGET).filter(|condition| condition.status == "True")?;
    let is_by_kubelet = target.reason.as_deref() == Some("TerminationByKubelet");
    if is_by_kubelet || meta::is_deleting(pod) || pod::is_finished(pod) {
        return None;
    }
    Some(
        target
            .last_transition_time
            .as_ref()
            .map_or(Timestamp::MIN, |time| time.0)
            .saturating_add(TIMEOUT)
            .unwrap_or(Timestamp::MIN),
    )
}

#[async_trait]
impl Reconciler for StaleDisruptions {
    const NAME: &'static str = "stale_pod_disruption";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(pod) = self.pods.get(key) else { return Ok(Next::OnChange) };
        let Some(stale_at) = stale_at(&pod) else { return Ok(Next::OnChange) };
        let now = (self.clock)();
        if stale_at > now {
            return Ok(Next::After(pod::until(stale_at, now).max(Duration::from_millis(1))));
        }
        let metadata = json!({ "uid": meta::uid(&*pod), "resourceVersion": pod.metadata.resource_version });
        let condition = json!({
            "type": DISRUPTION_TARGET, "status": "False", "lastTransitionTime": Time(now), "reason": null, "message": null,
        });
        let patch = json!({ "metadata": metadata, "status": { "conditions": [condition] } });
        let api = Api::<Pod>::namespaced(self.client.clone(), &key.namespace);
        match api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Next::OnChange),
            other => Ok(other.map(|_| Next::OnChange)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[track_caller]
    fn check(condition: Value, metadata: Value, phase: &str, want: Option<&str>) {
        let pod = json!({ "metadata": metadata, "status": { "phase": phase, "conditions": [condition] } });
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(stale_at(&pod), want.map(|time| time.parse().unwrap()), "{condition} {metadata}");
    }

    #[test]
    fn a_disruption_is_stale_when_nobody_deletes_the_pod() {
        let condition = |status: &str, reason: &str| json!({ "type": DISRUPTION_TARGET, "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let evicted = condition("True", "EvictionByEvictionAPI");
        check(evicted.clone(), json!({}), "Running", Some("2026-01-01T00:02:00Z"));
        check(evicted.clone(), json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), "Running", None);
        check(evicted, json!({}), "Failed", None);
        check(condition("True", "TerminationByKubelet"), json!({}), "Running", None);
        check(condition("False", ""), json!({}), "Running", None);
    }
}
