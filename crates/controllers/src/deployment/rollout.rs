//! A Deployment with its ReplicaSets, told apart into the new one and the old ones.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;

use super::revision;
use crate::int_or_percent::{Round, scaled};
use crate::meta;

pub(super) const POD_TEMPLATE_HASH: &str = "pod-template-hash";

pub(super) struct Rollout {
    pub(super) deployment: Deployment,
    /// Whose template is the Deployment's.
    pub(super) new: Option<Arc<ReplicaSet>>,
    /// All others, oldest first.
    pub(super) old: Vec<Arc<ReplicaSet>>,
}

impl Rollout {
    pub(super) fn new(deployment: Deployment, mut sets: Vec<Arc<ReplicaSet>>) -> Self {
        sets.sort_by(|a, b| (meta::created(&**a), meta::name(&**a)).cmp(&(meta::created(&**b), meta::name(&**b))));
        let new = sets.iter().position(|set| same_template(&deployment, set)).map(|index| sets.remove(index));
        Self { deployment, new, old: sets }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }

    pub(super) fn replace(&mut self, set: Arc<ReplicaSet>) {
        let slot = self.old.iter_mut().chain(&mut self.new).find(|known| meta::uid(&***known) == meta::uid(&*set));
        if let Some(slot) = slot {
            *slot = set;
        }
    }

    pub(super) fn spec(&self) -> Option<&DeploymentSpec> {
        self.deployment.spec.as_ref()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.spec().and_then(|spec| spec.paused) == Some(true)
    }

    /// The user changed the number of replicas, and nothing else: sizes are adjusted before any rollout goes on.
    pub(super) fn is_scaling_event(&self) -> bool {
        let wanted = wanted(&self.deployment);
        let active = self.all().filter(|set| replicas(set) > 0);
        active.filter_map(|set| revision::desired_replicas(set)).any(|desired| desired != wanted)
    }
}

pub(super) fn wanted(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("Recreate")
}

/// How many pods there may be beyond the wanted ones, and how many may be missing. Never both zero, or nothing could move.
pub(super) fn fenceposts(deployment: &Deployment) -> (i32, i32) {
    if !is_rolling(deployment) {
        return (0, 0);
    }
    let wanted = wanted(deployment);
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = scaled(rolling.and_then(|rolling| rolling.max_surge.as_ref()), wanted, Round::Up);
    let unavailable = scaled(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), wanted, Round::Down);
    match (surge, unavailable) {
        (0, 0) => (0, 1),
        (surge, unavailable) => (surge, unavailable.min(wanted)),
    }
}

pub(super) fn same_template(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let wanted = deployment.spec.as_ref().map(|spec| without_hash(&spec.template));
    let has = set.spec.as_ref().and_then(|spec| spec.template.as_ref()).map(without_hash);
    wanted == has
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
        labels.remove(POD_TEMPLATE_HASH);
    }
    template
}
