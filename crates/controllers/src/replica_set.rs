//! Keeps the wanted number of pods of a ReplicaSet, and of a ReplicationController, which is the same with older types.
//!
//! [`plan::plan`] decides without I/O or clock. Invariant: a pass that cannot trust the cache (expectations open) only writes status.

mod plan;
mod rank;
mod replicated;
mod status;

use std::sync::Arc;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};

use self::plan::Action;
pub(crate) use self::replicated::Replicated;
use crate::controller::{Context, Controller};
use crate::expectations::Expectations;
use crate::pod_control::{self, PodControl};
use crate::{claim, meta, pod};

pub(crate) struct ReplicaSets<R: Replicated> {
    client: kube::Client,
    sets: Informer<R>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    pod_control: PodControl,
}

impl<R: Replicated> Controller for ReplicaSets<R> {
    const ACCOUNT: &'static str = R::COMPONENT;
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (sets, pods) = (context.informers.of::<R>(), context.informers.of::<Pod>());
        pod::index_by_controller(&pods);
        let expectations = Arc::new(Expectations::default());
        sets.subscribe({
            let (queue, expectations) = (queue.clone(), expectations.clone());
            move |change| {
                if let Change::Deleted(set) = change {
                    expectations.forget(&Key::of(&**set));
                }
                queue.add(Key::of(&**change.object()));
            }
        });
        pods.subscribe({
            let (sets, expectations) = (sets.clone(), expectations.clone());
            move |change| on_pod(change, &sets, &expectations, &queue)
        });
        let pod_control = PodControl::new(context.client.clone(), context.recorder(R::COMPONENT));
        Self { client: context.client.clone(), sets, pods, expectations, pod_control }
    }
}

/// Wakes the set a pod belongs to or has left, and those that may want an orphan.
fn on_pod<R: Replicated>(change: &Change<Pod>, sets: &Informer<R>, expectations: &Expectations, queue: &WorkQueue) {
    let pod = &**change.object();
    let owner = owner_key::<R>(pod);
    if let Some(owner) = &owner {
        match change {
            Change::Deleted(_) => expectations.deletion_observed(owner, meta::uid(pod)),
            // Born terminating: seen after a restart, never counted as a creation of ours.
            Change::Added(_) | Change::Updated { .. } if meta::is_deleting(pod) => {
                expectations.deletion_observed(owner, meta::uid(pod));
            }
            Change::Added(_) => expectations.creation_observed(owner),
            Change::Updated { .. } => (),
        }
        queue.add(owner.clone());
    }
    if let Change::Updated { old, .. } = change
        && let Some(before) = owner_key::<R>(old).filter(|before| Some(before) != owner.as_ref())
    {
        queue.add(before);
    }
    let is_orphan = meta::controller_of(&pod.metadata).is_none() && !matches!(change, Change::Deleted(_));
    if is_orphan {
        for set in sets.in_namespace(meta::namespace(pod)) {
            if set.selector().is_ok_and(|selector| !selector.is_everything() && selector.matches(meta::labels(pod))) {
                queue.add(Key::of(&*set));
            }
        }
    }
}

fn owner_key<R: Replicated>(pod: &Pod) -> Option<Key> {
    let owner = meta::controller_of(&pod.metadata).filter(|owner| owner.kind == R::kind(&()))?;
    Some(Key::new(meta::namespace(pod), &*owner.name))
}

#[async_trait]
impl<R: Replicated> Reconciler for ReplicaSets<R> {
    const NAME: &'static str = R::COMPONENT;

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(set) = self.sets.get(key) else {
            self.expectations.forget(key);
            return Ok(Next::OnChange); // Deleted; the garbage collector owns the pods.
        };
        let trusted = self.expectations.satisfied(key);
        let selector = set.selector().map_err(ReconcileError::other)?;
        let mut all = pod::candidates(&self.pods, meta::namespace(&*set), meta::uid(&*set));
        let terminating = all.iter().filter(|pod| is_terminating(pod, &*set)).count();
        all.retain(|pod| pod::is_active(pod));
        let active = claim::claim(&self.client, &*set, &selector, all).await?;

        let acted = if trusted && !meta::is_deleting(&*set) {
            self.act(key, &set, plan::plan(set.replicas(), &active, &self.related(&set), Timestamp::now())).await
        } else {
            Ok(())
        };
        let now = Timestamp::now();
        let failure = acted.as_ref().err().map(|error| (active.len() as i64 - i64::from(set.replicas()), error));
        let wanted = status::status_of(&*set, &active, terminating, failure, now);
        self.write_status(&set, wanted).await?;
        acted?;
        Ok(pod::next_availability(&active, set.min_ready_seconds(), now).map_or(Next::OnChange, Next::After))
    }
}

fn is_terminating<R: Replicated>(pod: &Pod, set: &R) -> bool {
    meta::is_deleting(pod) && !pod::is_finished(pod) && meta::is_controlled_by(&pod.metadata, meta::uid(set))
}

impl<R: Replicated> ReplicaSets<R> {
    /// The active pods of all sets under the same controller: scaling down spreads over nodes with them in mind.
    fn related(&self, set: &R) -> Vec<Arc<Pod>> {
        let Some(parent) = meta::controller_of(set.meta()) else {
            return self.pods.by_index(pod::BY_CONTROLLER, meta::uid(set));
        };
        let siblings = self.sets.in_namespace(meta::namespace(set));
        let siblings = siblings.iter().filter(|sibling| meta::is_controlled_by(sibling.meta(), &parent.uid));
        siblings.flat_map(|sibling| self.pods.by_index(pod::BY_CONTROLLER, meta::uid(&**sibling))).collect()
    }

    async fn act(&self, key: &Key, set: &R, action: Action) -> Result<(), ReconcileError> {
        match action {
            Action::Nothing => Ok(()),
            Action::Create(count) => self.create(key, set, count).await,
            Action::Delete(pods) => {
                self.expectations.expect_deletions(key, pods.iter().map(|pod| meta::uid(&**pod).to_owned()));
                let deletions = join_all(pods.iter().map(|pod| async {
                    let deleted = self.pod_control.delete(set, pod).await;
                    if deleted.is_err() {
                        self.expectations.deletion_observed(key, meta::uid(&**pod));
                    }
                    deleted
                }));
                Ok(deletions.await.into_iter().collect::<kube::Result<()>>()?)
            }
        }
    }

    /// In batches of 1, 2, 4, …: if pods cannot be created (quota, admission), few attempts tell so.
    async fn create(&self, key: &Key, set: &R, count: usize) -> Result<(), ReconcileError> {
        let Some(template) = set.template() else { return Ok(()) };
        let pod = pod_control::from_template(set, template);
        self.expectations.expect_creations(key, count);
        let (mut left, mut batch) = (count, 1);
        while left > 0 {
            let size = batch.min(left);
            let created = join_all((0..size).map(|_| self.pod_control.create(set, &pod))).await;
            left -= size;
            batch *= 2;
            let mut failed = Ok(());
            for error in created.into_iter().filter_map(Result::err) {
                self.expectations.creation_observed(key);
                if !pod_control::is_namespace_terminating(&error) {
                    failed = Err(error.into());
                }
            }
            if failed.is_err() {
                (0..left).for_each(|_| self.expectations.creation_observed(key));
                return failed;
            }
        }
        Ok(())
    }

    async fn write_status(&self, set: &R, wanted: status::Status) -> Result<(), ReconcileError> {
        if set.status() == wanted {
            return Ok(());
        }
        let api = Api::<R>::namespaced(self.client.clone(), meta::namespace(set));
        let updated = set.with_status(wanted);
        match api.replace_status(meta::name(set), &PostParams::default(), &updated).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}
