//! Facts about pods that several controllers decide on.

use std::sync::Arc;
use std::time::Duration;

use client::Informer;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec};

use crate::meta::{self, controller_of};

/// Pods by the uid of their controller; pods without one by [`orphans`] of their namespace.
pub(crate) const BY_CONTROLLER: &str = "controller";

pub(crate) fn index_by_controller(pods: &Informer<Pod>) {
    pods.add_index(BY_CONTROLLER, |pod| match controller_of(&pod.metadata) {
        Some(owner) => vec![owner.uid.clone()],
        None => vec![orphans(meta::namespace(pod))],
    });
}

pub(crate) fn orphans(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// The pods of a controller and those it might adopt.
pub(crate) fn candidates(pods: &Informer<Pod>, namespace: &str, uid: &str) -> Vec<Arc<Pod>> {
    let mut found = pods.by_index(BY_CONTROLLER, uid);
    found.extend(pods.by_index(BY_CONTROLLER, &orphans(namespace)));
    found
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !meta::is_deleting(pod)
}

pub(crate) fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec: &PodSpec| spec.node_name.as_deref()).unwrap_or_default()
}

pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when the pod is ready, if it is.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod)
        && (min_ready_seconds == 0 || ready_since(pod).is_some_and(|since| since + seconds(min_ready_seconds) <= now))
}

/// How long until the next ready pod becomes available by the passing of time alone.
pub(crate) fn next_availability<'a>(
    pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    if min_ready_seconds == 0 {
        return None;
    }
    let due = pods.into_iter().filter_map(|pod| ready_since(pod)).map(|since| since + seconds(min_ready_seconds));
    due.filter(|due| *due > now).min().map(|due| until(due, now))
}

/// Zero once `due` has passed.
pub(crate) fn until(due: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or_default()
}

pub(crate) fn seconds(seconds: i32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(seconds))
}

/// Restarts of all containers together.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|container| container.restart_count).max().unwrap_or(0)
}
