//! Adoption and release: which of the objects that match a selector belong to a controller.

use std::sync::Arc;

use api::selector::Selector;
use client::{Object, ReconcileError};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::meta;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Owned,
    /// An orphan that the selector matches.
    Adopt,
    /// Owned, but its labels have left the selector.
    Release,
    NotMine,
}

/// A controller on its way out neither adopts nor releases: its children are the garbage collector's then.
pub(crate) fn decide<O: kube::Resource, K: kube::Resource>(owner: &O, selector: &Selector, object: &K) -> Claim {
    let matches = selector.matches(meta::labels(object));
    match meta::controller_of(object.meta()) {
        Some(controller) if controller.uid != meta::uid(owner) => Claim::NotMine,
        Some(_) if matches => Claim::Owned,
        Some(_) if meta::is_deleting(owner) => Claim::NotMine,
        Some(_) => Claim::Release,
        None if !matches || meta::is_deleting(owner) || meta::is_deleting(object) => Claim::NotMine,
        None => Claim::Adopt,
    }
}

/// Adopts and releases, and gives what then belongs to `owner`.
pub(crate) async fn claim<O, K>(
    client: &kube::Client,
    owner: &O,
    selector: &Selector,
    objects: Vec<Arc<K>>,
) -> Result<Vec<Arc<K>>, ReconcileError>
where
    O: Object + kube::Resource<Scope = NamespaceResourceScope>,
    K: Object + kube::Resource<Scope = NamespaceResourceScope>,
{
    let mut claimed = Vec::new();
    let mut may_adopt = None;
    let api = Api::<K>::namespaced(client.clone(), meta::namespace(owner));
    for object in objects {
        match decide(owner, selector, &*object) {
            Claim::Owned => claimed.push(object),
            Claim::NotMine => (),
            Claim::Release => {
                let owners = json!([{ "$patch": "delete", "uid": meta::uid(owner) }]);
                patch_owners(&api, &*object, owners).await?;
            }
            Claim::Adopt => {
                let alive = match may_adopt {
                    Some(known) => known,
                    None => is_alive(client, owner).await?,
                };
                may_adopt = Some(alive);
                if alive {
                    let owners = json!([meta::controller_reference(owner)]);
                    claimed.extend(patch_owners(&api, &*object, owners).await?.map(Arc::new));
                }
            }
        }
    }
    Ok(claimed)
}

/// The cache may still show an owner that was deleted, or replaced under the same name.
async fn is_alive<O>(client: &kube::Client, owner: &O) -> Result<bool, ReconcileError>
where
    O: Object + kube::Resource<Scope = NamespaceResourceScope>,
{
    let live = Api::<O>::namespaced(client.clone(), meta::namespace(owner)).get_opt(meta::name(owner)).await?;
    Ok(live.is_some_and(|live| meta::uid(&live) == meta::uid(owner) && !meta::is_deleting(&live)))
}

/// `None` if the object is gone, or is another one of the same name by now.
async fn patch_owners<K: Object>(
    api: &Api<K>,
    object: &K,
    owners: serde_json::Value,
) -> Result<Option<K>, ReconcileError> {
    let patch = json!({ "metadata": { "uid": meta::uid(object), "ownerReferences": owners } });
    match api.patch(meta::name(object), &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(patched) => Ok(Some(patched)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_matching_orphans_are_adopted_and_only_own_pods_released() {
        check("", "app=web", "", Claim::Adopt);
        check("", "app=api", "", Claim::NotMine);
        check("web", "app=web", "", Claim::Owned);
        check("web", "app=api", "", Claim::Release);
        check("other", "app=web", "", Claim::NotMine);
    }

    #[test]
    fn the_dying_neither_adopt_nor_are_adopted() {
        check("", "app=web", "owner", Claim::NotMine);
        check("web", "app=api", "owner", Claim::NotMine);
        check("web", "app=web", "owner", Claim::Owned);
        check("", "app=web", "pod", Claim::NotMine);
    }

    #[track_caller]
    fn check(controller: &str, labels: &str, deleting: &str, want: Claim) {
        let dying = |who: &str| (deleting == who).then_some("2026-01-01T00:00:00Z");
        let owner: ReplicaSet =
            serde_json::from_value(json!({ "metadata": { "uid": "web", "deletionTimestamp": dying("owner") } }))
                .unwrap();
        let owners = match controller {
            "" => json!([]),
            uid => json!([{ "apiVersion": "v1", "kind": "K", "name": uid, "uid": uid, "controller": true }]),
        };
        let (key, value) = labels.split_once('=').unwrap();
        let pod: Pod = serde_json::from_value(json!({ "metadata": {
            "labels": { key: value }, "ownerReferences": owners, "deletionTimestamp": dying("pod"),
        }}))
        .unwrap();
        let selector = Selector::parse("app=web").unwrap();
        assert_eq!(decide(&owner, &selector, &pod), want, "{controller} {labels} {deleting}");
    }
}
