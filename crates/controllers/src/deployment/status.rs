//! The status of a Deployment: counts, and the conditions Available, Progressing and ReplicaFailure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::rollout::{Rollout, fenceposts, replicas, wanted};
use crate::{meta, pod};

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const REPLICA_SET_UPDATED: &str = "ReplicaSetUpdated";
pub(super) const FAILED_RS_CREATE: &str = "ReplicaSetCreateError";
const NEW_REPLICA_SET: &str = "NewReplicaSetCreated";
const FOUND_NEW_RS: &str = "FoundNewReplicaSet";
const NEW_RS_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
const RESUMED: &str = "DeploymentResumed";
const MINIMUM_AVAILABLE: &str = "MinimumReplicasAvailable";
const MINIMUM_UNAVAILABLE: &str = "MinimumReplicasUnavailable";

pub(super) fn replicas_of(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

pub(super) fn available_of(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// Its controller has seen the latest spec, so that its counts can be believed.
pub(super) fn is_observed(set: &ReplicaSet) -> bool {
    let observed = set.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(0);
    set.metadata.generation.unwrap_or(0) <= observed
}

/// Absent counts are zero, so that equal statuses compare equal.
pub(super) fn normalized(status: Option<&DeploymentStatus>) -> DeploymentStatus {
    let status = status.cloned().unwrap_or_default();
    DeploymentStatus {
        available_replicas: Some(status.available_replicas.unwrap_or(0)),
        conditions: Some(status.conditions.unwrap_or_default()),
        observed_generation: Some(status.observed_generation.unwrap_or(0)),
        ready_replicas: Some(status.ready_replicas.unwrap_or(0)),
        replicas: Some(status.replicas.unwrap_or(0)),
        terminating_replicas: Some(status.terminating_replicas.unwrap_or(0)),
        unavailable_replicas: Some(status.unavailable_replicas.unwrap_or(0)),
        updated_replicas: Some(status.updated_replicas.unwrap_or(0)),
        collision_count: status.collision_count,
    }
}

/// Counts and availability; says nothing about progress.
pub(super) fn counts(rollout: &Rollout, now: Timestamp) -> DeploymentStatus {
    let deployment = &rollout.deployment;
    let sum = |of: &dyn Fn(&ReplicaSet) -> i32| rollout.all().map(|set| of(set)).sum::<i32>();
    let field = |set: &ReplicaSet, of: fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> Option<i32>| {
        set.status.as_ref().and_then(of).unwrap_or(0)
    };
    let available = sum(&available_of);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: Some(sum(&replicas_of)),
        updated_replicas: Some(rollout.new.as_deref().map_or(0, replicas_of)),
        ready_replicas: Some(sum(&|set| field(set, |status| status.ready_replicas))),
        available_replicas: Some(available),
        unavailable_replicas: Some((sum(&replicas) - available).max(0)),
        terminating_replicas: Some(sum(&|set| field(set, |status| status.terminating_replicas))),
        ..normalized(deployment.status.as_ref())
    };
    let minimum = wanted(deployment) - fenceposts(deployment).1;
    let availability = if available >= minimum {
        condition(AVAILABLE, "True", MINIMUM_AVAILABLE, "Deployment has minimum availability.".into(), now)
    } else {
        condition(AVAILABLE, "False", MINIMUM_UNAVAILABLE, "Deployment does not have minimum availability.".into(), now)
    };
    set(&mut status, availability);
    status
}

/// Counts, availability, progress and failures.
pub(super) fn of_rollout(rollout: &Rollout, now: Timestamp) -> DeploymentStatus {
    let deployment = &rollout.deployment;
    let mut status = counts(rollout, now);
    match deadline(deployment) {
        None => remove(&mut status, PROGRESSING),
        Some(deadline) => note_progress(&mut status, rollout, deadline, now),
    }
    let failure = |set: &ReplicaSet| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE).cloned()
    };
    match rollout.new.as_deref().and_then(failure).or_else(|| rollout.old.iter().find_map(|set| failure(set))) {
        None => remove(&mut status, REPLICA_FAILURE),
        Some(failure) => {
            let at = failure.last_transition_time.as_ref().map_or(now, |time| time.0);
            let message = failure.message.unwrap_or_default();
            let reason = failure.reason.unwrap_or_default();
            set(&mut status, condition(REPLICA_FAILURE, &failure.status, &reason, message, at));
        }
    }
    status
}

fn note_progress(status: &mut DeploymentStatus, rollout: &Rollout, deadline: i32, now: Timestamp) {
    let deployment = &rollout.deployment;
    let before = normalized(deployment.status.as_ref());
    let current = get(&before, PROGRESSING).cloned();
    let was_complete = current.as_ref().is_some_and(|current| current.reason.as_deref() == Some(NEW_RS_AVAILABLE));
    if status.replicas == status.updated_replicas && was_complete {
        return;
    }
    let what = match &rollout.new {
        Some(new) => format!("ReplicaSet \"{}\"", meta::name(&**new)),
        None => format!("Deployment \"{}\"", meta::name(deployment)),
    };
    if is_complete(deployment, status) {
        let message = format!("{what} has successfully progressed.");
        set(status, condition(PROGRESSING, "True", NEW_RS_AVAILABLE, message, now));
    } else if is_progressing(&before, status) {
        let mut progress = condition(PROGRESSING, "True", REPLICA_SET_UPDATED, format!("{what} is progressing."), now);
        if let Some(current) = current.as_ref().filter(|current| current.status == "True") {
            progress.last_transition_time = current.last_transition_time.clone();
        }
        // Replaced even when equal: its update time is what the deadline counts from.
        remove(status, PROGRESSING);
        set(status, progress);
    } else if is_timed_out(status, deadline, now) {
        let message = format!("{what} has timed out progressing.");
        set(status, condition(PROGRESSING, "False", TIMED_OUT, message, now));
    } else if let (None, Some(new)) = (&current, &rollout.new) {
        let message = format!("Found new replica set \"{}\"", meta::name(&**new));
        set(status, condition(PROGRESSING, "True", FOUND_NEW_RS, message, now));
    }
}

pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = Some(wanted(deployment));
    status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

fn is_progressing(before: &DeploymentStatus, status: &DeploymentStatus) -> bool {
    let old = |status: &DeploymentStatus| status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0);
    status.updated_replicas > before.updated_replicas
        || old(status) < old(before)
        || status.ready_replicas > before.ready_replicas
        || status.available_replicas > before.available_replicas
}

fn is_timed_out(status: &DeploymentStatus, deadline: i32, now: Timestamp) -> bool {
    let Some(progress) = get(status, PROGRESSING) else { return false };
    match progress.reason.as_deref() {
        Some(NEW_RS_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => progress.last_update_time.as_ref().is_some_and(|since| since.0 + pod::seconds(deadline) < now),
    }
}

/// When to look whether the deadline has passed, if nothing happens before.
pub(super) fn next_progress_check(rollout: &Rollout, status: &DeploymentStatus, now: Timestamp) -> Option<Duration> {
    let deadline = deadline(&rollout.deployment).filter(|_| !rollout.is_paused())?;
    let progress = get(status, PROGRESSING)?;
    if is_complete(&rollout.deployment, status) || progress.reason.as_deref() == Some(TIMED_OUT) {
        return None;
    }
    let due = progress.last_update_time.as_ref()?.0 + pod::seconds(deadline);
    Some(pod::until(due, now) + Duration::from_secs(1))
}

fn deadline(deployment: &Deployment) -> Option<i32> {
    deployment.spec.as_ref()?.progress_deadline_seconds.filter(|seconds| *seconds != i32::MAX)
}

/// A paused Deployment is not late, and one that was paused for long is not late the moment it goes on.
pub(super) fn note_pause(deployment: &mut Deployment, now: Timestamp) {
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    let mut status = normalized(deployment.status.as_ref());
    let reason = get(&status, PROGRESSING).and_then(|progress| progress.reason.clone());
    if deadline(deployment).is_none() || reason.as_deref() == Some(TIMED_OUT) {
        return;
    }
    let change = match (paused, reason.as_deref() == Some(PAUSED)) {
        (true, false) => condition(PROGRESSING, "Unknown", PAUSED, "Deployment is paused".into(), now),
        (false, true) => condition(PROGRESSING, "Unknown", RESUMED, "Deployment is resumed".into(), now),
        _ => return,
    };
    set(&mut status, change);
    deployment.status = Some(status);
}

pub(super) fn note_created(deployment: &mut Deployment, new: &ReplicaSet, now: Timestamp) {
    let message = format!("Created new replica set \"{}\"", meta::name(new));
    note(deployment, condition(PROGRESSING, "True", NEW_REPLICA_SET, message, now));
}

pub(super) fn note_failed(deployment: &mut Deployment, message: String, now: Timestamp) {
    note(deployment, condition(PROGRESSING, "False", FAILED_RS_CREATE, message, now));
}

fn note(deployment: &mut Deployment, change: DeploymentCondition) {
    if deadline(deployment).is_some() {
        let mut status = normalized(deployment.status.as_ref());
        set(&mut status, change);
        deployment.status = Some(status);
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

fn get<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Keeps an equal condition as it is, and the transition time of one whose status stays.
fn set(status: &mut DeploymentStatus, mut change: DeploymentCondition) {
    if let Some(old) = get(status, &change.type_) {
        if old.status == change.status && old.reason == change.reason {
            return;
        }
        if old.status == change.status {
            change.last_transition_time = old.last_transition_time.clone();
        }
    }
    remove(status, &change.type_);
    status.conditions.get_or_insert_default().push(change);
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    status.conditions.get_or_insert_default().retain(|condition| condition.type_ != kind);
}
