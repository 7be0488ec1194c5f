//! Decides the one next step of a Deployment.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use kube::api::ObjectMeta;

use super::proportion::{self, Share};
use super::rolling::{self, Roll, Size, Want};
use super::rollout::{POD_TEMPLATE_HASH, Rollout, fenceposts, is_rolling, replicas, wanted};
use super::{revision, status};
use crate::hash::compute_hash;
use crate::meta;

const MAX_NAME: usize = 253;

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Create(Box<ReplicaSet>),
    /// The new ReplicaSet exists, but its revision, passed-down annotations or minReadySeconds are behind.
    Annotate(Box<ReplicaSet>),
    Scale(Vec<Scale>),
    /// Old ReplicaSets beyond the history limit.
    Clean(Vec<Arc<ReplicaSet>>),
    Settled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) name: String,
    pub(super) replicas: i32,
}

pub(super) fn plan(rollout: &Rollout, old_pods_running: impl FnOnce() -> bool) -> Step {
    if let Some(step) = annotate(rollout) {
        return step;
    }
    if rollout.is_paused() || rollout.is_scaling_event() {
        return match scale(rollout) {
            scales if !scales.is_empty() => Step::Scale(scales),
            _ if rollout.is_paused() => clean(rollout),
            _ => Step::Settled,
        };
    }
    let step = if is_rolling(&rollout.deployment) { roll(rollout) } else { recreate(rollout, old_pods_running) };
    match step {
        Step::Settled
            if status::is_complete(&rollout.deployment, &status::normalized(rollout.deployment.status.as_ref())) =>
        {
            clean(rollout)
        }
        step => step,
    }
}

fn annotate(rollout: &Rollout) -> Option<Step> {
    let new = rollout.new.as_ref()?;
    let mut set = (**new).clone();
    revision::annotate(&mut set, &rollout.deployment, newest_revision(rollout));
    let min_ready_seconds = rollout.spec()?.min_ready_seconds;
    let spec = set.spec.as_mut()?;
    if spec.min_ready_seconds.unwrap_or(0) != min_ready_seconds.unwrap_or(0) {
        spec.min_ready_seconds = min_ready_seconds;
    }
    (set != **new).then(|| Step::Annotate(Box::new(set)))
}

fn newest_revision(rollout: &Rollout) -> i64 {
    rollout.old.iter().map(|set| revision::revision(set)).max().unwrap_or(0) + 1
}

fn want(rollout: &Rollout) -> Want {
    let (max_surge, max_unavailable) = fenceposts(&rollout.deployment);
    Want { replicas: wanted(&rollout.deployment), max_surge, max_unavailable }
}

fn size(set: &ReplicaSet) -> Size {
    Size { replicas: replicas(set), available: status::available_of(set) }
}

fn roll(rollout: &Rollout) -> Step {
    let old: Vec<Size> = rollout.old.iter().map(|set| size(set)).collect();
    let Some(new) = &rollout.new else {
        let total = old.iter().map(|size| size.replicas).sum();
        return create(rollout, rolling::new_replicas(want(rollout), 0, total));
    };
    match rolling::roll(want(rollout), size(new), &old) {
        Roll::Settled => Step::Settled,
        Roll::New(replicas) => Step::Scale(vec![Scale { name: meta::name(&**new).to_owned(), replicas }]),
        Roll::Old(sizes) => Step::Scale(changed(rollout.old.iter().zip(sizes))),
    }
}

/// All old pods must be gone before the first new one comes.
fn recreate(rollout: &Rollout, old_pods_running: impl FnOnce() -> bool) -> Step {
    let down = changed(rollout.old.iter().map(|set| (set, 0)));
    if !down.is_empty() {
        return Step::Scale(down);
    }
    if old_pods_running() {
        return Step::Settled;
    }
    let wanted = wanted(&rollout.deployment);
    match &rollout.new {
        None => create(rollout, wanted),
        Some(new) if replicas(new) != wanted => {
            Step::Scale(vec![Scale { name: meta::name(&**new).to_owned(), replicas: wanted }])
        }
        Some(_) => Step::Settled,
    }
}

fn changed<'a>(sizes: impl Iterator<Item = (&'a Arc<ReplicaSet>, i32)>) -> Vec<Scale> {
    let differs = sizes.filter(|(set, size)| replicas(set) != *size);
    differs.map(|(set, replicas)| Scale { name: meta::name(&**set).to_owned(), replicas }).collect()
}

fn create(rollout: &Rollout, replicas: i32) -> Step {
    let deployment = &rollout.deployment;
    let Some(spec) = rollout.spec() else { return Step::Settled };
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = compute_hash(&spec.template, collisions);
    let mut template = spec.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(POD_TEMPLATE_HASH.into(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(POD_TEMPLATE_HASH.into(), hash.clone());
    let prefix: String = meta::name(deployment).chars().take(MAX_NAME - 1 - hash.len()).collect();
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![meta::controller_reference(deployment)]),
            ..Default::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    revision::annotate(&mut set, deployment, newest_revision(rollout));
    revision::set_replicas(&mut set, deployment);
    Step::Create(Box::new(set))
}

/// Follows a change of the wanted size without moving the rollout.
fn scale(rollout: &Rollout) -> Vec<Scale> {
    let wanted = wanted(&rollout.deployment);
    let active: Vec<&Arc<ReplicaSet>> = rollout.all().filter(|set| replicas(set) > 0).collect();
    let scale = |set: &Arc<ReplicaSet>, replicas| Scale { name: meta::name(&**set).to_owned(), replicas };
    let only = match active.as_slice() {
        [] => rollout.new.as_ref().or(rollout.old.last()),
        [only] => Some(*only),
        _ => None,
    };
    if let Some(only) = only {
        let behind =
            replicas(only) != wanted || revision::desired_replicas(only).is_some_and(|desired| desired != wanted);
        return if behind { vec![scale(only, wanted)] } else { Vec::new() };
    }
    if active.is_empty() {
        return Vec::new();
    }
    if rollout.new.as_ref().is_some_and(|new| is_saturated(new, wanted)) {
        return changed(rollout.old.iter().map(|set| (set, 0)));
    }
    if !is_rolling(&rollout.deployment) {
        return Vec::new();
    }
    let shares: Vec<Share> = active.iter().map(|set| share(set)).collect();
    let allowed = if wanted > 0 { wanted + fenceposts(&rollout.deployment).0 } else { 0 };
    let sizes = proportion::spread(&shares, allowed);
    // Also those that keep their size: their annotations say for which size they were made.
    active.iter().zip(sizes).map(|(set, size)| scale(set, size)).collect()
}

fn share(set: &ReplicaSet) -> Share {
    Share { replicas: replicas(set), max_replicas: revision::max_replicas(set), created: meta::created(set) }
}

fn is_saturated(new: &ReplicaSet, wanted: i32) -> bool {
    replicas(new) == wanted && revision::desired_replicas(new) == Some(wanted) && status::available_of(new) == wanted
}

/// Old ReplicaSets beyond `revisionHistoryLimit`, lowest revision first, and only those that have no pods.
fn clean(rollout: &Rollout) -> Step {
    let Some(limit) = rollout.spec().and_then(|spec| spec.revision_history_limit).filter(|limit| *limit != i32::MAX)
    else {
        return Step::Settled;
    };
    let mut alive: Vec<_> = rollout.old.iter().filter(|set| !meta::is_deleting(&***set)).cloned().collect();
    alive.sort_by_key(|set| (revision::revision(set), meta::created(&**set)));
    let surplus = alive.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    alive.truncate(surplus);
    alive.retain(|set| status::replicas_of(set) == 0 && replicas(set) == 0 && status::is_observed(set));
    if alive.is_empty() { Step::Settled } else { Step::Clean(alive) }
}
