//! Decides what a Job's status is, which pods to make and remove, and which are counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::indexes;
use super::pods::{index_of, is_indexed, is_tracked};
use crate::{meta, pod};

/// After a failure the next pod waits, longer each time.
const BACKOFF_MIN: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(600);
const BURST: usize = 500;

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) status: JobStatus,
    /// Pods to make, with their index if the Job has indexes.
    pub(super) create: Vec<Option<i32>>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods to take the finalizer off, once the status is written.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) events: Vec<(&'static str, String)>,
    pub(super) next: Option<Duration>,
}

/// What a Job may ask for that this controller does not do.
pub(super) fn unsupported(job: &Job) -> Option<&'static str> {
    let spec = job.spec.as_ref()?;
    match () {
        () if spec.pod_failure_policy.is_some() => Some("podFailurePolicy"),
        () if spec.success_policy.is_some() => Some("successPolicy"),
        () if spec.backoff_limit_per_index.is_some() => Some("backoffLimitPerIndex"),
        () => None,
    }
}

fn condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn holds(status: &JobStatus, kind: &str) -> bool {
    condition(status, kind).is_some_and(|condition| condition.status == "True")
}

pub(super) fn is_finished(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|status| holds(status, "Complete") || holds(status, "Failed"))
}

/// When a finished Job is to be deleted.
pub(super) fn expiry(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let status = job.status.as_ref()?;
    let end =
        ["Complete", "Failed"].iter().find_map(|kind| condition(status, kind).filter(|end| end.status == "True"))?;
    Some(end.last_transition_time.as_ref()?.0 + SignedDuration::from_secs(i64::from(ttl)))
}

fn set(status: &mut JobStatus, kind: &str, value: &str, reason: &str, message: &str, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|known| known.type_ != kind);
    conditions.push(JobCondition {
        type_: kind.into(),
        status: value.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
}

pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let mut plan = Plan { status: job.status.clone().unwrap_or_default(), ..Plan::default() };
    let Some(spec) = &job.spec else { return plan };
    if is_finished(job) || meta::is_deleting(job) {
        plan.release = pods.iter().filter(|pod| is_tracked(pod)).cloned().collect();
        return plan;
    }
    count(&mut plan, job, pods);
    let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod::is_active(pod)).cloned().collect();
    let terminating = pods.iter().filter(|pod| meta::is_deleting(&***pod) && !pod::is_finished(pod)).count();
    plan.status.active = Some(active.len() as i32).filter(|count| *count > 0);
    plan.status.ready = Some(active.iter().filter(|pod| pod::is_ready(pod)).count() as i32);
    plan.status.terminating = Some(terminating as i32);

    if suspend(&mut plan, spec, now) {
        plan.delete = active;
        return plan;
    }
    plan.status.start_time.get_or_insert(Time(now));
    let outcome = outcome(&plan.status, spec, &active, now);
    if let Some(outcome) = &outcome {
        plan.delete = active.clone();
        conclude(&mut plan, outcome, active.is_empty() && terminating == 0, now);
        return plan;
    }
    size(&mut plan, job, spec, pods, active, now);
    let deadline = spec.active_deadline_seconds.zip(plan.status.start_time.as_ref());
    let deadline = deadline.map(|(seconds, start)| pod::until(start.0 + SignedDuration::from_secs(seconds), now));
    plan.next = plan.next.into_iter().chain(deadline).min();
    plan
}

fn uids(list: Option<&Vec<String>>) -> BTreeSet<String> {
    list.into_iter().flatten().cloned().collect()
}

/// Moves pods that ended from "seen" (written down, finalizer still on) to "counted" (finalizer off).
fn count(plan: &mut Plan, job: &Job, pods: &[Arc<Pod>]) {
    let status = &mut plan.status;
    let before = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let (mut succeeded, mut failed) = (uids(before.succeeded.as_ref()), uids(before.failed.as_ref()));
    let mut completed = indexes::parse(status.completed_indexes.as_deref().unwrap_or_default());
    let is_held = |uid: &String| pods.iter().any(|pod| meta::uid(&**pod) == uid && is_tracked(pod));
    let counted_failed = failed.iter().filter(|uid| !is_held(uid)).count() as i32;
    let counted_succeeded = succeeded.iter().filter(|uid| !is_held(uid)).count() as i32;
    succeeded.retain(is_held);
    failed.retain(is_held);
    for pod in pods.iter().filter(|pod| is_tracked(pod)) {
        let uid = meta::uid(&**pod).to_owned();
        let was_seen = succeeded.contains(&uid) || failed.contains(&uid);
        match pod::phase(pod) {
            "Succeeded" if !was_seen => {
                completed.extend(index_of(pod));
                succeeded.insert(uid);
            }
            // A pod deleted while it ran has failed, whatever it might have become.
            phase if !was_seen && (phase == "Failed" || meta::is_deleting(&**pod)) => {
                failed.insert(uid);
            }
            _ => (),
        }
    }
    // What is seen in this pass is written with it; its finalizer can go right after.
    let seen = pods.iter().filter(|pod| {
        let uid = meta::uid(&***pod);
        is_tracked(pod) && (succeeded.contains(uid) || failed.contains(uid))
    });
    plan.release = seen.cloned().collect();
    status.failed = Some(status.failed.unwrap_or(0) + counted_failed).filter(|count| *count > 0);
    let total = if is_indexed(job) {
        completed.len() as i32 - succeeded.len() as i32
    } else {
        status.succeeded.unwrap_or(0) + counted_succeeded
    };
    status.succeeded = Some(total.max(0)).filter(|count| *count > 0);
    status.completed_indexes = Some(indexes::format(&completed)).filter(|text| is_indexed(job) && !text.is_empty());
    let list = |all: BTreeSet<String>| Some(all.into_iter().collect::<Vec<_>>()).filter(|all| !all.is_empty());
    status.uncounted_terminated_pods =
        Some(UncountedTerminatedPods { succeeded: list(succeeded), failed: list(failed) });
}

fn ended(status: &JobStatus) -> (i32, i32) {
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let len = |list: Option<Vec<String>>| list.map_or(0, |list| list.len() as i32);
    (status.succeeded.unwrap_or(0) + len(uncounted.succeeded), status.failed.unwrap_or(0) + len(uncounted.failed))
}

/// Whether the Job is to have no pods for the time being.
fn suspend(plan: &mut Plan, spec: &JobSpec, now: Timestamp) -> bool {
    let suspended = spec.suspend == Some(true);
    match (suspended, holds(&plan.status, "Suspended")) {
        (true, false) => {
            set(&mut plan.status, "Suspended", "True", "JobSuspended", "Job suspended", now);
            plan.status.start_time = None;
            plan.events.push(("Suspended", "Job suspended".into()));
        }
        (false, true) => {
            set(&mut plan.status, "Suspended", "False", "JobResumed", "Job resumed", now);
            plan.status.start_time = Some(Time(now));
            plan.events.push(("Resumed", "Job resumed".into()));
        }
        _ => (),
    }
    suspended
}

enum Outcome {
    Complete,
    Failed(&'static str, &'static str),
}

fn outcome(status: &JobStatus, spec: &JobSpec, active: &[Arc<Pod>], now: Timestamp) -> Option<Outcome> {
    if let Some(target) = condition(status, "FailureTarget").filter(|target| target.status == "True") {
        let deadline = target.reason.as_deref() == Some("DeadlineExceeded");
        return Some(if deadline { DEADLINE } else { BACKOFF_LIMIT });
    }
    if holds(status, "SuccessCriteriaMet") {
        return Some(Outcome::Complete);
    }
    let (succeeded, failed) = ended(status);
    let limit = spec.backoff_limit.unwrap_or(6);
    let restarts_count = spec.template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref()) == Some("OnFailure");
    let restarts: i32 = active.iter().map(|pod| pod::restarts(pod)).sum();
    let too_many_restarts = restarts_count && restarts > 0 && restarts >= limit;
    if failed > limit || too_many_restarts {
        return Some(BACKOFF_LIMIT);
    }
    let deadline = spec.active_deadline_seconds.zip(status.start_time.as_ref());
    if deadline.is_some_and(|(seconds, start)| start.0 + SignedDuration::from_secs(seconds) <= now) {
        return Some(DEADLINE);
    }
    let complete = match spec.completions {
        Some(completions) => succeeded >= completions,
        // A work queue: one success means there is no work left; the others may finish theirs.
        None => succeeded > 0 && active.is_empty(),
    };
    complete.then_some(Outcome::Complete)
}

const BACKOFF_LIMIT: Outcome = Outcome::Failed("BackoffLimitExceeded", "Job has reached the specified backoff limit");
const DEADLINE: Outcome = Outcome::Failed("DeadlineExceeded", "Job was active longer than specified deadline");

/// The outcome is said at once; the Job ends when its last pod has, and all are counted.
fn conclude(plan: &mut Plan, outcome: &Outcome, no_pods: bool, now: Timestamp) {
    let (target, end, reason, message) = match outcome {
        Outcome::Complete => {
            ("SuccessCriteriaMet", "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        }
        Outcome::Failed(reason, message) => ("FailureTarget", "Failed", *reason, *message),
    };
    let status = &mut plan.status;
    if !holds(status, target) {
        set(status, target, "True", reason, message, now);
    }
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    if !no_pods || uncounted.succeeded.is_some() || uncounted.failed.is_some() {
        return;
    }
    set(status, end, "True", reason, message, now);
    status.uncounted_terminated_pods = Some(UncountedTerminatedPods::default());
    match outcome {
        Outcome::Complete => {
            status.completion_time = Some(Time(now));
            plan.events.push(("Completed", "Job completed".into()));
        }
        Outcome::Failed(reason, message) => plan.events.push((reason, (*message).into())),
    }
}

fn size(plan: &mut Plan, job: &Job, spec: &JobSpec, pods: &[Arc<Pod>], mut active: Vec<Arc<Pod>>, now: Timestamp) {
    let (succeeded, failed) = ended(&plan.status);
    let parallelism = spec.parallelism.unwrap_or(1).max(0);
    let have = active.len() as i32;
    let wanted = match spec.completions {
        Some(completions) => parallelism.min(completions - succeeded).max(0),
        None if succeeded > 0 => have.min(parallelism),
        None => parallelism,
    };
    if have > wanted {
        active.sort_by_key(|pod| (pod::is_ready(pod), std::cmp::Reverse(meta::created(&**pod))));
        active.truncate((have - wanted) as usize);
        plan.delete = active;
        return;
    }
    // A replacement waits for pods on their way out when the user asked for that.
    let only_failed = spec.pod_replacement_policy.as_deref() == Some("Failed");
    let leaving = if only_failed { plan.status.terminating.unwrap_or(0) } else { 0 };
    let missing = (wanted - have - leaving).max(0) as usize;
    if missing == 0 {
        return;
    }
    let wait = backoff(pods, failed, now);
    if !wait.is_zero() {
        plan.next = Some(wait);
        return;
    }
    plan.create = if is_indexed(job) {
        let done = indexes::parse(plan.status.completed_indexes.as_deref().unwrap_or_default());
        let used: BTreeSet<i32> = active.iter().filter_map(|pod| index_of(pod)).collect();
        let free = (0..spec.completions.unwrap_or(0)).filter(|index| !done.contains(index) && !used.contains(index));
        free.take(missing.min(BURST)).map(Some).collect()
    } else {
        vec![None; missing.min(BURST)]
    };
}

/// How long the next pod must wait after the last failure.
fn backoff(pods: &[Arc<Pod>], failed: i32, now: Timestamp) -> Duration {
    let ends = pods.iter().filter(|pod| pod::phase(pod) == "Failed").filter_map(|pod| finished_at(pod));
    let Some(last) = ends.max().filter(|_| failed > 0) else { return Duration::ZERO };
    let doubled = BACKOFF_MIN.saturating_mul(1u32.checked_shl(failed as u32 - 1).unwrap_or(u32::MAX)).min(BACKOFF_MAX);
    let due = last + SignedDuration::try_from(doubled).unwrap_or_default();
    pod::until(due, now)
}

fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref();
    let ends = containers
        .into_iter()
        .flatten()
        .filter_map(|container| container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0));
    ends.max().or_else(|| pod::condition(pod, "Ready")?.last_transition_time.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests;
