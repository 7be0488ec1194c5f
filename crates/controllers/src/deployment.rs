//! Rolls a Deployment from its old ReplicaSets to its new one.
//!
//! [`plan::plan`] decides one step without I/O or clock; [`Deployments::reconcile`] performs it and writes status. Invariants: a pass
//! never takes available pods below `replicas - maxUnavailable`, never lifts total pods above `replicas + maxSurge`, and creates the
//! new ReplicaSet before it scales an old one.

mod plan;
mod proportion;
mod revision;
mod rolling;
mod rollout;
mod status;

use std::sync::Arc;

use api::selector::Selector;
use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, Recorder, WorkQueue, reference};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};

use self::plan::{Scale, Step};
use self::revision::REVISION;
use self::rollout::Rollout;
use crate::controller::{Context, Controller};
use crate::pod_control;
use crate::{claim, meta, pod};

pub(crate) struct Deployments {
    client: kube::Client,
    deployments: Informer<Deployment>,
    replica_sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
    recorder: Recorder,
}

impl Controller for Deployments {
    const ACCOUNT: &'static str = "deployment-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let deployments = context.informers.of::<Deployment>();
        let (replica_sets, pods) = (context.informers.of::<ReplicaSet>(), context.informers.of::<Pod>());
        pod::index_by_controller(&pods);
        deployments.subscribe({
            let queue = queue.clone();
            move |change| queue.add(Key::of(&**change.object()))
        });
        replica_sets.subscribe({
            let (queue, deployments) = (queue.clone(), deployments.clone());
            move |change| on_replica_set(change, &deployments, &queue)
        });
        pods.subscribe({
            let replica_sets = replica_sets.clone();
            move |change| on_pod(change, &replica_sets, &queue)
        });
        let recorder = context.recorder("deployment-controller");
        Self { client: context.client.clone(), deployments, replica_sets, pods, recorder }
    }
}

fn on_replica_set(change: &Change<ReplicaSet>, deployments: &Informer<Deployment>, queue: &WorkQueue) {
    let owner = |set: &ReplicaSet| {
        let owner = meta::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment")?;
        Some(Key::new(meta::namespace(set), &*owner.name))
    };
    let set = &**change.object();
    owner(set).into_iter().for_each(|owner| queue.add(owner));
    if let Change::Updated { old, .. } = change {
        owner(old).into_iter().for_each(|owner| queue.add(owner));
    }
    if meta::controller_of(&set.metadata).is_none() && !matches!(change, Change::Deleted(_)) {
        for deployment in deployments.in_namespace(meta::namespace(set)) {
            if selector(&deployment).is_ok_and(|all| !all.is_everything() && all.matches(meta::labels(set))) {
                queue.add(Key::of(&*deployment));
            }
        }
    }
}

/// A Recreate rollout waits for the last old pod to be gone or finished; nothing else depends on pods directly.
fn on_pod(change: &Change<Pod>, replica_sets: &Informer<ReplicaSet>, queue: &WorkQueue) {
    let pod = &**change.object();
    let ended = matches!(change, Change::Deleted(_)) || pod::is_finished(pod);
    let Some(owner) = meta::controller_of(&pod.metadata).filter(|owner| ended && owner.kind == "ReplicaSet") else {
        return;
    };
    let Some(set) = replica_sets.get(&Key::new(meta::namespace(pod), &*owner.name)) else { return };
    if let Some(owner) = meta::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment") {
        queue.add(Key::new(meta::namespace(pod), &*owner.name));
    }
}

fn selector(deployment: &Deployment) -> Result<Selector, ReconcileError> {
    let selector = deployment.spec.as_ref().map(|spec| &spec.selector);
    Selector::from_label_selector(selector).map_err(ReconcileError::other)
}

#[async_trait]
impl Reconciler for Deployments {
    const NAME: &'static str = "deployment";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(cached) = self.deployments.get(key) else {
            return Ok(Next::OnChange); // Deleted; the garbage collector owns the children.
        };
        let selector = selector(&cached)?;
        if selector.is_everything() {
            let message = "This deployment is selecting all pods. A non-empty selector is required.".to_owned();
            self.recorder.warning(&reference(&*cached), "SelectingAll", message);
            return Ok(Next::OnChange);
        }
        let mut sets = self.replica_sets.in_namespace(&key.namespace);
        sets.retain(|set| meta::controller_of(&set.metadata).is_none_or(|owner| owner.uid == meta::uid(&*cached)));
        let sets = claim::claim(&self.client, &*cached, &selector, sets).await?;

        let mut rollout = Rollout::new((*cached).clone(), sets);
        let now = Timestamp::now();
        let step = if meta::is_deleting(&*cached) {
            Step::Settled
        } else {
            status::note_pause(&mut rollout.deployment, now);
            plan::plan(&rollout, || self.old_pods_running(&rollout))
        };
        let is_scaling = rollout.is_paused() || rollout.is_scaling_event();
        let acted = self.act(&mut rollout, step, now).await;
        let wanted = match is_scaling || meta::is_deleting(&*cached) {
            true => status::counts(&rollout, now),
            false => status::of_rollout(&rollout, now),
        };
        let requeue = status::next_progress_check(&rollout, &wanted, now);
        self.write_status(&cached, rollout, wanted).await?;
        acted?;
        Ok(requeue.map_or(Next::OnChange, Next::After))
    }
}

impl Deployments {
    fn old_pods_running(&self, rollout: &Rollout) -> bool {
        rollout.old.iter().any(|set| {
            status::replicas_of(set) > 0
                || self.pods.by_index(pod::BY_CONTROLLER, meta::uid(&**set)).iter().any(|pod| !pod::is_finished(pod))
        })
    }

    async fn act(&self, rollout: &mut Rollout, step: Step, now: Timestamp) -> Result<(), ReconcileError> {
        let api = Api::<ReplicaSet>::namespaced(self.client.clone(), meta::namespace(&rollout.deployment));
        match step {
            Step::Settled => (),
            Step::Create(set) => self.create(&api, rollout, *set, now).await?,
            Step::Annotate(set) => {
                let updated = api.replace(meta::name(&*set), &PostParams::default(), &set).await?;
                rollout.new = Some(Arc::new(updated));
            }
            Step::Scale(scales) => {
                for scale in scales {
                    self.scale(&api, rollout, &scale).await?;
                }
            }
            Step::Clean(sets) => {
                for set in sets {
                    let only_this = Preconditions {
                        uid: set.metadata.uid.clone(),
                        resource_version: set.metadata.resource_version.clone(),
                    };
                    match api.delete(meta::name(&*set), &DeleteParams::background().preconditions(only_this)).await {
                        Err(kube::Error::Api(status)) if status.code == 404 => (),
                        other => drop(other?),
                    }
                }
            }
        }
        Ok(())
    }

    async fn create(
        &self,
        api: &Api<ReplicaSet>,
        rollout: &mut Rollout,
        set: ReplicaSet,
        now: Timestamp,
    ) -> Result<(), ReconcileError> {
        match api.create(&PostParams::default(), &set).await {
            Ok(created) => {
                let replicas = rollout::replicas(&created);
                if replicas > 0 {
                    let message = format!("Scaled up replica set {} from 0 to {replicas}", meta::name(&created));
                    self.recorder.normal(&reference(&rollout.deployment), "ScalingReplicaSet", message);
                }
                status::note_created(&mut rollout.deployment, &created, now);
                rollout.new = Some(Arc::new(created));
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                let live = api.get(meta::name(&set)).await?;
                let ours = meta::is_controlled_by(&live.metadata, meta::uid(&rollout.deployment));
                if ours && rollout::same_template(&rollout.deployment, &live) {
                    rollout.new = Some(Arc::new(live)); // The cache is behind.
                } else if let Some(status) = rollout.deployment.status.as_mut() {
                    // Two templates share a hash: the next pass makes another name. The status write brings it about.
                    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
                }
                Ok(())
            }
            Err(error) => {
                if !pod_control::is_namespace_terminating(&error) {
                    let reason = pod_control::reason(&error);
                    let message = format!("Failed to create new replica set \"{}\": {reason}", meta::name(&set));
                    status::note_failed(&mut rollout.deployment, message.clone(), now);
                    self.recorder.warning(&reference(&rollout.deployment), status::FAILED_RS_CREATE, message);
                }
                Err(error.into())
            }
        }
    }

    async fn scale(&self, api: &Api<ReplicaSet>, rollout: &mut Rollout, scale: &Scale) -> Result<(), ReconcileError> {
        let Some(known) = rollout.all().find(|set| meta::name(&***set) == scale.name).cloned() else { return Ok(()) };
        let mut set = (*known).clone();
        revision::set_replicas(&mut set, &rollout.deployment);
        let from = rollout::replicas(&known);
        if let Some(spec) = set.spec.as_mut() {
            spec.replicas = Some(scale.replicas);
        }
        if set == *known {
            return Ok(());
        }
        let updated = api.replace(&scale.name, &PostParams::default(), &set).await?;
        if from != scale.replicas {
            let way = if from < scale.replicas { "up" } else { "down" };
            let message = format!("Scaled {way} replica set {} from {from} to {}", scale.name, scale.replicas);
            self.recorder.normal(&reference(&rollout.deployment), "ScalingReplicaSet", message);
        }
        rollout.replace(Arc::new(updated));
        Ok(())
    }

    /// The revision is an annotation, which a status write does not carry.
    async fn write_status(
        &self,
        cached: &Deployment,
        rollout: Rollout,
        wanted: k8s_openapi::api::apps::v1::DeploymentStatus,
    ) -> Result<(), ReconcileError> {
        let api = Api::<Deployment>::namespaced(self.client.clone(), meta::namespace(cached));
        let revision = rollout.new.as_ref().and_then(|set| meta::annotation(&**set, REVISION));
        let mut base = cached.clone();
        if let Some(revision) = revision.filter(|revision| meta::annotation(cached, REVISION) != Some(revision)) {
            base.metadata.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision.to_owned());
            base = api.replace(meta::name(cached), &PostParams::default(), &base).await?;
        }
        if status::normalized(base.status.as_ref()) == wanted {
            return Ok(());
        }
        base.status = Some(wanted);
        match api.replace_status(meta::name(cached), &PostParams::default(), &base).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()), // Deleted meanwhile.
            other => Ok(other.map(drop)?),
        }
    }
}
