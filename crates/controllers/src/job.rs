//! Runs a Job's pods until enough have succeeded or too many have failed.
//!
//! [`plan::plan`] decides. Every pod carries a finalizer until its end is counted in the Job's status, so that none is forgotten or
//! counted twice, whoever deletes it and whenever the controller restarts.

mod indexes;
mod plan;
mod pods;

use std::sync::Arc;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, Recorder, WorkQueue, reference};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use self::pods::{FINALIZER, pod_for};
use crate::controller::{Context, Controller};
use crate::expectations::Expectations;
use crate::pod_control::PodControl;
use crate::written::Written;
use crate::{meta, pod};

const OURS: &str = "kubernetes.io/job-controller";

pub(crate) struct Jobs {
    client: kube::Client,
    /// What deletes finished Jobs is a controller of its own upstream, with a role of its own.
    after_finished: kube::Client,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    written: Arc<Written>,
    pod_control: PodControl,
    recorder: Recorder,
}

impl Controller for Jobs {
    const ACCOUNT: &'static str = "job-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (jobs, pods) = (context.informers.of::<Job>(), context.informers.of::<Pod>());
        pod::index_by_controller(&pods);
        let (expectations, written) = (Arc::new(Expectations::default()), Arc::new(Written::default()));
        jobs.subscribe({
            let (queue, expectations, written) = (queue.clone(), expectations.clone(), written.clone());
            move |change| {
                if let Change::Deleted(job) = change {
                    expectations.forget(&Key::of(&**job));
                    written.forget(&Key::of(&**job));
                }
                queue.add(Key::of(&**change.object()));
            }
        });
        pods.subscribe({
            let expectations = expectations.clone();
            move |change| on_pod(change, &expectations, &queue)
        });
        let recorder = context.recorder("job-controller");
        let pod_control = PodControl::new(context.client.clone(), recorder.clone());
        let after_finished = context.of("ttl-after-finished-controller").client;
        Self {
            client: context.client.clone(),
            after_finished,
            jobs,
            pods,
            expectations,
            written,
            pod_control,
            recorder,
        }
    }
}

fn on_pod(change: &Change<Pod>, expectations: &Expectations, queue: &WorkQueue) {
    let pod = &**change.object();
    let Some(owner) = meta::controller_of(&pod.metadata).filter(|owner| owner.kind == "Job") else { return };
    let owner = Key::new(meta::namespace(pod), &*owner.name);
    match change {
        Change::Added(_) => expectations.creation_observed(&owner),
        Change::Deleted(_) => expectations.deletion_observed(&owner, meta::uid(pod)),
        Change::Updated { .. } if meta::is_deleting(pod) => expectations.deletion_observed(&owner, meta::uid(pod)),
        Change::Updated { .. } => (),
    }
    queue.add(owner);
}

#[async_trait]
impl Reconciler for Jobs {
    const NAME: &'static str = "job";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(job) = self.jobs.get(key) else { return self.release_orphans(key).await };
        if job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref()).is_some_and(|by| by != OURS) {
            return Ok(Next::OnChange);
        }
        // Counts from before our last write would count the same pods again, or not at all.
        if !self.written.is_seen(&*job) {
            return Ok(Next::OnChange);
        }
        if let Some(feature) = plan::unsupported(&job) {
            let message = format!("spec.{feature} is not supported by this version; the job is not started");
            self.recorder.warning(&reference(&*job), "Unsupported", message);
            return Ok(Next::OnChange);
        }
        // Asked before the pods are: what the cache shows later may fulfil it, but is not what the plan saw.
        let trusted = self.expectations.satisfied(key);
        let pods = self.pods.by_index(pod::BY_CONTROLLER, meta::uid(&*job));
        let now = Timestamp::now();
        let plan = plan::plan(&job, &pods, now);
        if meta::is_deleting(&*job) || plan::is_finished(&job) {
            self.release(&plan.release).await?;
            return self.expire(&job, now).await;
        }
        self.write_status(&job, plan.status).await?;
        for (reason, message) in plan.events {
            match reason {
                "Completed" | "Suspended" | "Resumed" => self.recorder.normal(&reference(&*job), reason, message),
                _ => self.recorder.warning(&reference(&*job), reason, message),
            }
        }
        self.release(&plan.release).await?;
        if trusted {
            self.act(key, &job, plan.create, plan.delete).await?;
        }
        Ok(plan.next.map_or(Next::OnChange, Next::After))
    }
}

impl Jobs {
    async fn write_status(&self, job: &Job, wanted: JobStatus) -> Result<(), ReconcileError> {
        if job.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let api = Api::<Job>::namespaced(self.client.clone(), meta::namespace(job));
        let updated = Job { status: Some(wanted), ..job.clone() };
        let written = api.replace_status(meta::name(job), &PostParams::default(), &updated).await?;
        self.written.note(&written);
        Ok(())
    }

    /// Takes our finalizer off pods whose end is counted, or will never be asked for.
    async fn release(&self, pods: &[Arc<Pod>]) -> Result<(), ReconcileError> {
        let released = join_all(pods.iter().map(|pod| async {
            let kept: Vec<_> = pod.metadata.finalizers.iter().flatten().filter(|known| *known != FINALIZER).collect();
            let patch = json!({ "metadata": {
                "uid": meta::uid(&**pod), "resourceVersion": pod.metadata.resource_version, "finalizers": kept,
            }});
            let api = Api::<Pod>::namespaced(self.client.clone(), meta::namespace(&**pod));
            match api.patch(meta::name(&**pod), &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                other => other.map(drop),
            }
        }));
        Ok(released.await.into_iter().collect::<kube::Result<()>>()?)
    }

    /// The Job is gone; its pods must not be held by it.
    async fn release_orphans(&self, key: &Key) -> Result<Next, ReconcileError> {
        let mut held = self.pods.in_namespace(&key.namespace);
        held.retain(|pod| {
            let owner = meta::controller_of(&pod.metadata);
            owner.is_some_and(|owner| owner.kind == "Job" && owner.name == key.name) && pods::is_tracked(pod)
        });
        self.release(&held).await?;
        Ok(Next::OnChange)
    }

    async fn act(
        &self,
        key: &Key,
        job: &Job,
        create: Vec<Option<i32>>,
        delete: Vec<Arc<Pod>>,
    ) -> Result<(), ReconcileError> {
        self.expectations.expect(key, create.len(), delete.iter().map(|pod| meta::uid(&**pod).to_owned()));
        let creations = join_all(create.iter().map(|index| async {
            let created = self.pod_control.create(job, &pod_for(job, *index)).await;
            if created.is_err() {
                self.expectations.creation_observed(key);
            }
            created.map(drop)
        }));
        let deletions = join_all(delete.iter().map(|pod| async {
            let deleted = self.pod_control.delete(job, pod).await;
            if deleted.is_err() {
                self.expectations.deletion_observed(key, meta::uid(&**pod));
            }
            deleted
        }));
        let (created, deleted) = futures::join!(creations, deletions);
        Ok(created.into_iter().chain(deleted).collect::<kube::Result<()>>()?)
    }

    /// `ttlSecondsAfterFinished` after its end a Job is deleted, pods first.
    async fn expire(&self, job: &Job, now: Timestamp) -> Result<Next, ReconcileError> {
        let Some(due) = plan::expiry(job).filter(|_| !meta::is_deleting(job)) else { return Ok(Next::OnChange) };
        if due > now {
            return Ok(Next::After(pod::until(due, now)));
        }
        let api = Api::<Job>::namespaced(self.after_finished.clone(), meta::namespace(job));
        let only_this = Preconditions {
            uid: job.metadata.uid.clone(),
            // Someone may have changed their mind about the time.
            resource_version: job.metadata.resource_version.clone(),
        };
        match api.delete(meta::name(job), &DeleteParams::foreground().preconditions(only_this)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Next::OnChange),
            other => Ok(other.map(|_| Next::OnChange)?),
        }
    }
}
