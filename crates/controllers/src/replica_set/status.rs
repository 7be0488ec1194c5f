//! The status of a ReplicaSet or ReplicationController from its pods.

use std::sync::Arc;

use client::ReconcileError;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::replicated::Replicated;
use crate::pod_control;
use crate::{meta, pod};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// A status in one form: absent counts are written as zero, so that equal statuses compare equal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status(pub(super) ReplicaSetStatus);

impl Status {
    pub(super) fn normalized(status: ReplicaSetStatus) -> Self {
        Self(ReplicaSetStatus {
            available_replicas: Some(status.available_replicas.unwrap_or(0)),
            fully_labeled_replicas: Some(status.fully_labeled_replicas.unwrap_or(0)),
            ready_replicas: Some(status.ready_replicas.unwrap_or(0)),
            observed_generation: Some(status.observed_generation.unwrap_or(0)),
            terminating_replicas: Some(status.terminating_replicas.unwrap_or(0)),
            conditions: status.conditions.filter(|conditions| !conditions.is_empty()),
            replicas: status.replicas,
        })
    }
}

/// `failure` holds how many pods were there beyond the wanted ones (negative: too few) when acting failed.
pub(super) fn status_of<R: Replicated>(
    set: &R,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<(i64, &ReconcileError)>,
    now: Timestamp,
) -> Status {
    static NONE: meta::Labels = meta::Labels::new();
    let template = set.template().and_then(|template| template.metadata.as_ref()?.labels.as_ref()).unwrap_or(&NONE);
    let count = |matches: &dyn Fn(&Pod) -> bool| Some(active.iter().filter(|pod| matches(pod)).count() as i32);
    let fully_labeled = |pod: &Pod| template.iter().all(|(key, value)| meta::labels(pod).get(key) == Some(value));
    let old = set.status().0;
    // A ReplicationController has no field for it.
    let terminating = if R::kind(&()) == "ReplicaSet" { terminating } else { 0 };
    Status::normalized(ReplicaSetStatus {
        replicas: active.len() as i32,
        fully_labeled_replicas: count(&fully_labeled),
        ready_replicas: count(&pod::is_ready),
        available_replicas: count(&|pod| pod::is_available(pod, set.min_ready_seconds(), now)),
        terminating_replicas: Some(terminating as i32),
        observed_generation: set.meta().generation,
        conditions: Some(conditions(old.conditions.unwrap_or_default(), failure, now)),
    })
}

fn conditions(
    mut old: Vec<ReplicaSetCondition>,
    failure: Option<(i64, &ReconcileError)>,
    now: Timestamp,
) -> Vec<ReplicaSetCondition> {
    let Some((surplus, error)) = failure else {
        old.retain(|condition| condition.type_ != REPLICA_FAILURE);
        return old;
    };
    if old.iter().any(|condition| condition.type_ == REPLICA_FAILURE) {
        return old;
    }
    let reason = if surplus < 0 { "FailedCreate" } else { "FailedDelete" };
    let message = match error {
        ReconcileError::Api(error) => pod_control::reason(error),
        other => other.to_string(),
    };
    old.push(ReplicaSetCondition {
        type_: REPLICA_FAILURE.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_transition_time: Some(Time(now)),
    });
    old
}
