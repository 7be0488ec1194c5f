//! Deletes what is in a namespace and tells what is left of it.

use std::collections::BTreeMap;
use std::time::Duration;

use client::ReconcileError;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PartialObjectMeta};
use kube::core::ApiResource;
use kube::discovery::verbs;

use crate::discovery::{self, Served};
use crate::pod_control;

/// Content that was asked to go and has not yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Remaining {
    resources: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
    /// The longest time a pod may still take.
    grace_seconds: u64,
    /// Groups and versions whose own API server does not answer: what of them is here, nobody knows.
    unknown: Vec<String>,
}

impl Remaining {
    pub(super) fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.unknown.is_empty()
    }

    /// For content whose end no watch of ours shows.
    pub(super) fn retry_after(&self) -> Duration {
        Duration::from_secs(self.grace_seconds / 2 + 1)
    }

    fn add(&mut self, resource: &str, meta: &ObjectMeta) {
        *self.resources.entry(resource.to_owned()).or_default() += 1;
        for finalizer in meta.finalizers.iter().flatten() {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
        let grace = meta.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
        self.grace_seconds = self.grace_seconds.max(grace);
    }
}

/// Pods go first: while one runs, the policies, secrets and claims it lives by stay.
/// Then every resource is tried even if one fails, so that one bad API does not keep everything alive.
pub(super) async fn delete(client: &kube::Client, namespace: &str) -> Result<Remaining, ReconcileError> {
    let mut remaining = Remaining::default();
    let mut failed = None;
    let discovery::Discovered { served: all, stale } = discovery::deletable(client).await?;
    let (pods, rest): (Vec<&Served>, Vec<&Served>) =
        all.iter().filter(|served| served.namespaced).partition(|served| is_pods(&served.resource));
    for served in pods {
        delete_all(client, namespace, served, &mut remaining).await?;
    }
    remaining.unknown = stale;
    if !remaining.resources.is_empty() {
        return Ok(remaining);
    }
    for served in rest {
        if let Err(error) = delete_all(client, namespace, served, &mut remaining).await {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(remaining), |error| Err(error.into()))
}

fn is_pods(resource: &ApiResource) -> bool {
    resource.group.is_empty() && resource.plural == "pods"
}

async fn delete_all(
    client: &kube::Client,
    namespace: &str,
    served: &Served,
    remaining: &mut Remaining,
) -> kube::Result<()> {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &served.resource);
    let metadata =
        Api::<PartialObjectMeta<DynamicObject>>::namespaced_with(client.clone(), namespace, &served.resource);
    // An empty list spares the delete, which most resources of most namespaces need not.
    let present = metadata.list(&ListParams::default()).await?.items;
    if present.is_empty() {
        return Ok(());
    }
    if served.supports(&[verbs::DELETE_COLLECTION]) {
        api.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
    } else {
        for object in &present {
            match api.delete(object.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::background()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => (),
                other => drop(other?),
            }
        }
    }
    let plural = match served.resource.group.as_str() {
        "" => format!("{}.", served.resource.plural),
        group => format!("{}.{group}", served.resource.plural),
    };
    for object in metadata.list(&ListParams::default()).await?.items {
        remaining.add(&plural, &object.metadata);
    }
    Ok(())
}

/// What `kubectl describe namespace` shows about a deletion that takes its time.
pub(super) fn with_conditions(
    namespace: &Namespace,
    outcome: &Result<Remaining, ReconcileError>,
    now: Timestamp,
) -> Namespace {
    let mut namespace = namespace.clone();
    let conditions = namespace.status.get_or_insert_default().conditions.get_or_insert_default();
    let list = |of: &BTreeMap<String, usize>| of.iter().map(|(name, count)| (name.clone(), *count)).collect::<Vec<_>>();
    let (resources, finalizers) = match outcome {
        Ok(remaining) => (list(&remaining.resources), list(&remaining.finalizers)),
        Err(_) => (Vec::new(), Vec::new()),
    };
    let joined = |all: &[(String, usize)], what: &str| {
        all.iter()
            .map(|(name, count)| format!("{name} {what} {count} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let failure = outcome.as_ref().err().map(|error| match error {
        ReconcileError::Api(error) => pod_control::reason(error),
        other => other.to_string(),
    });
    let unknown = outcome.as_ref().map(|remaining| remaining.unknown.as_slice()).unwrap_or_default();
    let unknown = (!unknown.is_empty()).then(|| {
        let all: Vec<String> =
            unknown.iter().map(|one| format!("{one}: stale GroupVersion discovery: {one}")).collect();
        let all = format!("unable to retrieve the complete list of server APIs: {}", all.join(", "));
        ("DiscoveryFailed", format!("Discovery failed for some groups, {} failing: {all}", unknown.len()))
    });
    let discovered = ("ResourcesDiscovered", "All resources successfully discovered");
    set(conditions, "NamespaceDeletionDiscoveryFailure", unknown, discovered, now);
    set(
        conditions,
        "NamespaceDeletionContentFailure",
        failure.map(|error| ("ContentDeletionFailed", format!("Failed to delete all resource types: {error}"))),
        ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        now,
    );
    let left = (!resources.is_empty())
        .then(|| ("SomeResourcesRemain", format!("Some resources are remaining: {}", joined(&resources, "has"))));
    set(conditions, "NamespaceContentRemaining", left, ("ContentRemoved", "All content successfully removed"), now);
    let held = (!finalizers.is_empty()).then(|| {
        let all = joined(&finalizers, "in");
        ("SomeFinalizersRemain", format!("Some content in the namespace has finalizers remaining: {all}"))
    });
    set(
        conditions,
        "NamespaceFinalizersRemaining",
        held,
        ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        now,
    );
    namespace
}

fn set(
    conditions: &mut Vec<NamespaceCondition>,
    kind: &str,
    problem: Option<(&str, String)>,
    fine: (&str, &str),
    now: Timestamp,
) {
    let (status, (reason, message)) = match problem {
        Some(problem) => ("True", problem),
        None => ("False", (fine.0, fine.1.to_owned())),
    };
    let condition = NamespaceCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_transition_time: Some(Time(now)),
    };
    match conditions.iter_mut().find(|known| known.type_ == kind) {
        None => conditions.push(condition),
        Some(known) if known.status == condition.status && known.message == condition.message => (),
        Some(known) => *known = condition,
    }
}
