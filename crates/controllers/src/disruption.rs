//! Counts the healthy pods of each PodDisruptionBudget, and so how many of them may be evicted: upstream's `pkg/controller/disruption`.
//!
//! The API server's eviction subresource only spends what this controller has counted: a budget that was never counted lets no pod go.

mod plan;
mod scale;
pub(crate) mod stale;

use std::sync::Arc;
use std::time::Duration;

use api::selector::Selector;
use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, Recorder, WorkQueue, reference};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use kube::api::{Api, PostParams};

use self::plan::Counted;
use self::scale::Scales;
use crate::controller::{Clock, Context, Controller};
use crate::{meta, pod};

pub(crate) struct Disruption {
    client: kube::Client,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    scales: Scales,
    recorder: Recorder,
    clock: Clock,
}

impl Controller for Disruption {
    const ACCOUNT: &'static str = "disruption-controller";
    const WORKERS: usize = 1;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let budgets = context.informers.of::<PodDisruptionBudget>();
        budgets.subscribe({
            let queue = queue.clone();
            move |change| queue.add(Key::of(&**change.object()))
        });
        let pods = context.informers.of::<Pod>();
        pods.subscribe({
            let budgets = budgets.clone();
            move |change| on_pod(change, &budgets, &queue)
        });
        Self {
            client: context.client.clone(),
            budgets,
            pods,
            scales: Scales::new(context),
            recorder: context.recorder("controllermanager"),
            clock: context.clock.clone(),
        }
    }
}

/// Wakes every budget that selects the pod, or selected it before.
fn on_pod(change: &Change<Pod>, budgets: &Informer<PodDisruptionBudget>, queue: &WorkQueue) {
    let new = &**change.object();
    let old = match change {
        Change::Updated { old, .. } if plan::is_same(old, new) => return,
        Change::Updated { old, .. } => Some(&**old),
        Change::Added(_) | Change::Deleted(_) => None,
    };
    for budget in budgets.in_namespace(meta::namespace(new)) {
        let Ok(selector) = selector(&budget) else { continue };
        if std::iter::once(new).chain(old).any(|pod| selector.matches(meta::labels(pod))) {
            queue.add(Key::of(&*budget));
        }
    }
}

fn selector(budget: &PodDisruptionBudget) -> Result<Selector, ReconcileError> {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    Selector::from_label_selector(selector).map_err(ReconcileError::other)
}

#[async_trait]
impl Reconciler for Disruption {
    const NAME: &'static str = "disruption";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(budget) = self.budgets.get(key) else { return Ok(Next::OnChange) };
        match self.count(&budget).await {
            Ok(next) => Ok(next),
            Err(error) if error.is_conflict() => Err(error),
            Err(error) => {
                tracing::warn!(budget = %key, %error, "a PodDisruptionBudget cannot be counted, so it allows no eviction");
                let status = plan::failed(&budget, &error.to_string(), (self.clock)());
                self.write(&budget, status).await.map(|()| Next::OnChange)
            }
        }
    }
}

impl Disruption {
    async fn count(&self, budget: &PodDisruptionBudget) -> Result<Next, ReconcileError> {
        let selector = selector(budget)?;
        let mut pods = self.pods.in_namespace(meta::namespace(budget));
        pods.retain(|pod| selector.matches(meta::labels(&**pod)));
        if pods.is_empty() {
            self.recorder.normal(&reference(budget), "NoPods", "No matching pods found".to_owned());
        }
        let scale = match plan::needs_scale(budget) {
            true => self.scale(budget, &pods).await?,
            false => 0,
        };
        let now = (self.clock)();
        let Counted { status, recheck, not_deleted } = plan::count(budget, &pods, scale, now);
        for pod in not_deleted {
            // Upstream's message names the namespace twice.
            let namespace = meta::namespace(budget);
            let message = format!("Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't");
            self.recorder.warning(&reference(&*pod), "NotDeleted", message);
        }
        self.write(budget, status).await?;
        Ok(recheck.map_or(Next::OnChange, |at| Next::After(pod::until(at, now).max(Duration::from_millis(1)))))
    }

    /// The replicas of all controllers of the pods.
    async fn scale(&self, budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> Result<i32, ReconcileError> {
        let found = self.scales.sum(pods).await.inspect_err(|error| {
            let message = format!("Failed to calculate the number of expected pods: {error}");
            self.recorder.warning(&reference(budget), "CalculateExpectedPodCountFailed", message);
        })?;
        if found.has_unmanaged {
            let message = format!(
                "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of the \
                 PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please \
                 set \".spec.minAvailable\" field of the PDB to an integer value.",
                plan::selector_text(budget)
            );
            self.recorder.warning(&reference(budget), "UnmanagedPods", message);
        }
        Ok(found.replicas)
    }

    async fn write(
        &self,
        budget: &PodDisruptionBudget,
        status: PodDisruptionBudgetStatus,
    ) -> Result<(), ReconcileError> {
        if budget.status.as_ref().is_some_and(|old| plan::normalized(old) == status) {
            return Ok(());
        }
        let api = Api::<PodDisruptionBudget>::namespaced(self.client.clone(), meta::namespace(budget));
        let updated = PodDisruptionBudget { status: Some(status), ..budget.clone() };
        match api.replace_status(meta::name(budget), &PostParams::default(), &updated).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}
