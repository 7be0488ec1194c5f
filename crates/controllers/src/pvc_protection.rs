//! Lets a deleted claim go once no pod on a node uses it.
//!
//! A pass looks at all claims of a namespace: the pods it must ask the API server about, because its cache may not know the
//! newest, are then asked for once, however many claims wait.

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use crate::controller::{Context, Controller};
use crate::guarded::{Claim, Guard, Guarded};
use crate::{meta, pod};

const BY_CLAIM: &str = "claim";

pub(crate) struct PvcProtection {
    client: kube::Client,
    claims: Informer<Guarded<Claim>>,
    pods: Informer<Pod>,
}

/// The claims a pod's volumes stand for, with whether they were made for that pod alone.
fn claims_of(pod: &Pod) -> impl Iterator<Item = (String, bool)> + '_ {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some((claim.claim_name.clone(), false)),
        (None, Some(_)) => Some((format!("{}-{}", meta::name(pod), volume.name), true)),
        (None, None) => None,
    })
}

/// A kubelet starts no pod with a claim that is to go, so a pod that is on no node does not use it.
fn uses(pod: &Pod, claim: &Guarded<Claim>) -> bool {
    // What waits only to be removed may itself wait for the claim.
    let is_shut_down = meta::is_deleting(pod) && pod.metadata.deletion_grace_period_seconds == Some(0);
    let is_own = || meta::is_controlled_by(kube::Resource::meta(claim), meta::uid(pod));
    !pod::node_name(pod).is_empty()
        && claims_of(pod)
            .any(|(name, ephemeral)| name == meta::name(claim) && (!ephemeral || !is_shut_down && is_own()))
}

impl Controller for PvcProtection {
    const ACCOUNT: &'static str = "pvc-protection-controller";
    const WORKERS: usize = 2;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let claims = context.informers.of::<Guarded<Claim>>();
        claims.subscribe({
            let queue = queue.clone();
            move |change| {
                if !matches!(change, Change::Deleted(_)) && change.object().guard() != Guard::Keep {
                    queue.add(Key::new("", meta::namespace(&**change.object())));
                }
            }
        });
        let pods = context.informers.of::<Pod>();
        pods.add_index(BY_CLAIM, |pod| {
            claims_of(pod).map(|(name, _)| format!("{}/{name}", meta::namespace(pod))).collect()
        });
        pods.subscribe({
            let claims = claims.clone();
            move |change| {
                let pod = &**change.object();
                let lets_go = matches!(change, Change::Deleted(_)) || pod::is_finished(pod) || meta::is_deleting(pod);
                let namespace = meta::namespace(pod);
                let waits = |name: String| {
                    claims.get(&Key::new(namespace, name)).is_some_and(|claim| claim.guard() == Guard::RemoveIfUnused)
                };
                if lets_go && claims_of(pod).any(|(name, _)| waits(name)) {
                    queue.add(Key::new("", namespace));
                }
            }
        });
        Self { client: context.client.clone(), claims, pods }
    }
}

#[async_trait]
impl Reconciler for PvcProtection {
    const NAME: &'static str = "persistentvolumeclaim-protection";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let mut outcome = Ok(Next::OnChange);
        let mut unused = Vec::new();
        for claim in self.claims.in_namespace(&key.name) {
            match claim.guard() {
                Guard::Keep => (),
                Guard::Add => outcome = claim.set_guard(&self.client, true).await.and(outcome),
                Guard::RemoveIfUnused => {
                    let known = self.pods.by_index(BY_CLAIM, &format!("{}/{}", key.name, meta::name(&*claim)));
                    if !known.iter().any(|pod| uses(pod, &claim)) {
                        unused.push(claim);
                    }
                }
            }
        }
        if unused.is_empty() {
            return outcome;
        }
        let pods = Api::<Pod>::namespaced(self.client.clone(), &key.name).list(&ListParams::default()).await?;
        for claim in unused.iter().filter(|claim| !pods.items.iter().any(|pod| uses(pod, claim))) {
            outcome = claim.set_guard(&self.client, false).await.and(outcome);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_is_used_by_pods_on_nodes() {
        let plain = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
        check("c", plain.clone(), "node=n", true);
        check("c", plain.clone(), "", false);
        check("other", plain.clone(), "node=n", false);
        check("c", plain.clone(), "node=n ends=30", true);
        check("c", plain, "node=n ends=0", true);
    }

    #[test]
    fn a_claim_made_for_a_pod_is_used_by_that_pod_until_it_is_shut_down() {
        let own = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]);
        check("p-data", own.clone(), "node=n owner=u", true);
        check("p-data", own.clone(), "node=n owner=another", false);
        check("p-data", own.clone(), "node=n owner=u ends=30", true);
        check("p-data", own, "node=n owner=u ends=0", false);
    }

    #[track_caller]
    fn check(claim: &str, volumes: Value, facts: &str, want: bool) {
        let fact = |name: &str| {
            facts.split(' ').filter_map(|fact| fact.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
        };
        let ends: Option<i64> = fact("ends").map(|seconds| seconds.parse().unwrap());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "d", "uid": "u", "deletionGracePeriodSeconds": ends,
                "deletionTimestamp": ends.map(|_| "2026-01-01T00:00:00Z"),
            },
            "spec": {"nodeName": fact("node"), "containers": [], "volumes": volumes},
        }))
        .unwrap();
        let owners: Vec<Value> = fact("owner")
            .map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}))
            .into_iter()
            .collect();
        let claim = json!({"metadata": {"name": claim, "namespace": "d", "ownerReferences": owners}});
        assert_eq!(uses(&pod, &serde_json::from_value(claim).unwrap()), want, "{facts}");
    }
}
