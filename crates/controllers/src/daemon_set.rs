//! Runs a DaemonSet's pod on every node that suits it, and rolls them to a new template node by node.
//!
//! [`plan::plan`] decides. The scheduler places the pods: each names its node by affinity.

mod plan;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::selector::Selector;
use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, Recorder, WorkQueue, reference};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::plan::{Plan, pod_for};
use crate::controller::{Context, Controller};
use crate::expectations::Expectations;
use crate::pod_control::PodControl;
use crate::{claim, history, meta, pod};

const BURST: usize = 250;
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(15 * 60);

pub(crate) struct DaemonSets {
    client: kube::Client,
    sets: Informer<DaemonSet>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    revisions: Informer<ControllerRevision>,
    expectations: Arc<Expectations>,
    pod_control: PodControl,
    recorder: Recorder,
    /// A pod that fails at once everywhere must not be made again at once for ever: by set and node.
    backoff: Mutex<HashMap<(String, String), (Duration, Instant)>>,
}

impl Controller for DaemonSets {
    const ACCOUNT: &'static str = "daemon-set-controller";
    const WORKERS: usize = 2;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (sets, pods) = (context.informers.of::<DaemonSet>(), context.informers.of::<Pod>());
        let nodes = context.informers.of::<Node>();
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
            let (queue, sets, expectations) = (queue.clone(), sets.clone(), expectations.clone());
            move |change| on_pod(change, &sets, &expectations, &queue)
        });
        nodes.subscribe({
            let sets = sets.clone();
            move |change| {
                let matters = |node: &Node| {
                    (node.metadata.labels.clone(), node.spec.as_ref().and_then(|spec| spec.taints.clone()))
                };
                if !matches!(change, Change::Updated { old, new } if matters(old) == matters(new)) {
                    sets.list().iter().for_each(|set| queue.add(Key::of(&**set)));
                }
            }
        });
        let recorder = context.recorder("daemonset-controller");
        let pod_control = PodControl::new(context.client.clone(), recorder.clone());
        let revisions = context.informers.of();
        let backoff = Mutex::default();
        Self {
            client: context.client.clone(),
            sets,
            pods,
            nodes,
            revisions,
            expectations,
            pod_control,
            recorder,
            backoff,
        }
    }
}

fn on_pod(change: &Change<Pod>, sets: &Informer<DaemonSet>, expectations: &Expectations, queue: &WorkQueue) {
    let pod = &**change.object();
    match meta::controller_of(&pod.metadata) {
        Some(owner) if owner.kind == "DaemonSet" => {
            let owner = Key::new(meta::namespace(pod), &*owner.name);
            match change {
                Change::Deleted(_) => expectations.deletion_observed(&owner, meta::uid(pod)),
                Change::Added(_) => expectations.creation_observed(&owner),
                Change::Updated { .. } if meta::is_deleting(pod) => {
                    expectations.deletion_observed(&owner, meta::uid(pod))
                }
                Change::Updated { .. } => (),
            }
            queue.add(owner);
        }
        None if !matches!(change, Change::Deleted(_)) => {
            for set in sets.in_namespace(meta::namespace(pod)) {
                if selector(&set).is_ok_and(|all| !all.is_everything() && all.matches(meta::labels(pod))) {
                    queue.add(Key::of(&*set));
                }
            }
        }
        _ => (),
    }
}

fn selector(set: &DaemonSet) -> Result<Selector, ReconcileError> {
    Selector::from_label_selector(set.spec.as_ref().map(|spec| &spec.selector)).map_err(ReconcileError::other)
}

#[async_trait]
impl Reconciler for DaemonSets {
    const NAME: &'static str = "daemonset";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(set) = self.sets.get(key) else { return Ok(Next::OnChange) };
        let Some(spec) = set.spec.as_ref().filter(|_| !meta::is_deleting(&*set)) else { return Ok(Next::OnChange) };
        let selector = selector(&set)?;
        if selector.is_everything() {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.".to_owned();
            self.recorder.warning(&reference(&*set), "SelectingAll", message);
            return Ok(Next::OnChange);
        }
        let known = history::of(&self.revisions, &*set);
        let labels = spec.template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let current = history::record(&self.client, &known, &*set, &spec.template, &labels, collisions).await?;
        let hash = history::hash(&current).to_owned();

        // Asked before the pods are: what the cache shows later may fulfil it, but is not what the plan saw.
        let trusted = self.expectations.satisfied(key);
        let all = pod::candidates(&self.pods, &key.namespace, meta::uid(&*set));
        let pods = claim::claim(&self.client, &*set, &selector, all).await?;
        let nodes = self.nodes.list();
        let by_node = plan::by_node(&pods);
        let now = Timestamp::now();
        let mut retry = None;
        if trusted {
            let plan = plan::plan(&set, &nodes, &by_node, &hash, now);
            retry = self.act(key, &set, plan, &hash).await?;
        }
        self.write_status(&set, status::status_of(&set, &nodes, &by_node, &hash, now)).await?;
        let is_live = |hash: &str| {
            pods.iter().any(|pod| meta::labels(&**pod).get(history::REVISION_HASH).is_some_and(|of| of == hash))
        };
        history::trim(&self.client, &known, spec.revision_history_limit.unwrap_or(10), |of| of == hash || is_live(of))
            .await?;
        let due = pod::next_availability(&pods, spec.min_ready_seconds.unwrap_or(0), now);
        Ok(due.into_iter().chain(retry).min().map_or(Next::OnChange, Next::After))
    }
}

impl DaemonSets {
    /// How long to wait for those pods that may not be made again yet.
    async fn act(
        &self,
        key: &Key,
        set: &DaemonSet,
        plan: Plan,
        hash: &str,
    ) -> Result<Option<Duration>, ReconcileError> {
        let mut delete = plan.delete;
        let mut retry: Option<Duration> = None;
        for (node, pod) in plan.failed {
            if let Some(wait) = self.back_off(meta::uid(set), &node) {
                retry = Some(retry.map_or(wait, |retry| retry.min(wait)));
                continue;
            }
            let message = format!("Found failed daemon pod {} on node {node}, will try to kill it", Key::of(&*pod));
            self.recorder.warning(&reference(set), "FailedDaemonPod", message);
            delete.push(pod);
        }
        let mut create = plan.create;
        create.truncate(BURST);
        delete.truncate(BURST);
        let uids = delete.iter().map(|pod| meta::uid(&**pod).to_owned());
        self.expectations.expect(key, create.len(), uids);
        let creations = join_all(create.iter().map(|node| async {
            let created = self.pod_control.create(set, &pod_for(set, node, hash)).await;
            if created.is_err() {
                self.expectations.creation_observed(key);
            }
            created.map(drop)
        }));
        let deletions = join_all(delete.iter().map(|pod| async {
            let deleted = self.pod_control.delete(set, pod).await;
            if deleted.is_err() {
                self.expectations.deletion_observed(key, meta::uid(&**pod));
            }
            deleted
        }));
        let (created, deleted) = futures::join!(creations, deletions);
        created.into_iter().chain(deleted).collect::<kube::Result<()>>()?;
        Ok(retry)
    }

    /// `None` if the pod may be removed now; then the next wait is longer.
    fn back_off(&self, set: &str, node: &str) -> Option<Duration> {
        let mut all = self.backoff.lock();
        let now = Instant::now();
        let (delay, since) = all.get(&(set.to_owned(), node.to_owned())).copied().unwrap_or((Duration::ZERO, now));
        if now < since + delay {
            return Some(since + delay - now);
        }
        // What went well for long enough starts over.
        let next = if now > since + delay * 2 { BACKOFF_MIN } else { (delay * 2).clamp(BACKOFF_MIN, BACKOFF_MAX) };
        all.insert((set.to_owned(), node.to_owned()), (next, now));
        None
    }

    async fn write_status(
        &self,
        set: &DaemonSet,
        wanted: k8s_openapi::api::apps::v1::DaemonSetStatus,
    ) -> Result<(), ReconcileError> {
        if set.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let api = Api::<DaemonSet>::namespaced(self.client.clone(), meta::namespace(set));
        let updated = DaemonSet { status: Some(wanted), ..set.clone() };
        match api.replace_status(meta::name(set), &PostParams::default(), &updated).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

pub(crate) type ByNode = BTreeMap<String, Vec<Arc<Pod>>>;
