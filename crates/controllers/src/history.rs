//! ControllerRevisions: the templates a DaemonSet or StatefulSet has had, so that users can look at them and go back.

use std::sync::Arc;

use client::{Informer, Object, ReconcileError};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::hash::compute_hash;
use crate::meta;

/// The label by which pods and revisions say which template they are of.
pub(crate) const REVISION_HASH: &str = "controller-revision-hash";

/// What going back to a revision patches into the owner.
fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(fields) = template.as_object_mut() {
        fields.insert("$patch".into(), "replace".into());
    }
    json!({ "spec": { "template": template } })
}

/// The owner's revisions, oldest first.
pub(crate) fn of<O: Object>(revisions: &Informer<ControllerRevision>, owner: &O) -> Vec<Arc<ControllerRevision>> {
    let mut all = revisions.in_namespace(meta::namespace(owner));
    all.retain(|revision| meta::is_controlled_by(&revision.metadata, meta::uid(owner)));
    all.sort_by_key(|revision| revision.revision);
    all
}

/// Makes the template the newest revision, and gives the hash that stands for it. A template that was there before keeps its
/// revision's name and gets a new number.
pub(crate) async fn record<O>(
    client: &kube::Client,
    known: &[Arc<ControllerRevision>],
    owner: &O,
    template: &PodTemplateSpec,
    labels: &meta::Labels,
    collision_count: Option<i32>,
) -> Result<ControllerRevision, ReconcileError>
where
    O: Object + kube::Resource<Scope = NamespaceResourceScope>,
{
    let api = Api::<ControllerRevision>::namespaced(client.clone(), meta::namespace(owner));
    let newest = known.last().map_or(0, |revision| revision.revision);
    let data = data(template);
    let same = |revision: &&Arc<ControllerRevision>| revision.data.as_ref().is_some_and(|known| known.0 == data);
    if let Some(known) = known.iter().rev().find(same) {
        if known.revision == newest {
            return Ok((**known).clone());
        }
        let patch = Patch::Merge(json!({ "revision": newest + 1 }));
        return Ok(api.patch(meta::name(&**known), &PatchParams::default(), &patch).await?);
    }
    let hash = compute_hash(template, collision_count);
    let mut labels = labels.clone();
    labels.insert(REVISION_HASH.into(), hash.clone());
    let revision = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", meta::name(owner))),
            namespace: owner.meta().namespace.clone(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![meta::controller_reference(owner)]),
            ..Default::default()
        },
        data: Some(RawExtension(data.clone())),
        revision: newest + 1,
    };
    match api.create(&PostParams::default(), &revision).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let live = api.get(meta::name(&revision)).await?;
            match live.data.as_ref().is_some_and(|known| known.0 == data) {
                true => Ok(live), // The cache is behind.
                false => Err(ReconcileError::Other("two templates share a hash".into())),
            }
        }
        other => Ok(other?),
    }
}

pub(crate) fn hash(revision: &ControllerRevision) -> &str {
    meta::labels(revision).get(REVISION_HASH).map(String::as_str).unwrap_or_default()
}

/// Deletes the oldest revisions beyond `limit` that no pod is of.
pub(crate) async fn trim(
    client: &kube::Client,
    known: &[Arc<ControllerRevision>],
    limit: i32,
    is_live: impl Fn(&str) -> bool,
) -> Result<(), ReconcileError> {
    let unused: Vec<_> = known.iter().filter(|revision| !is_live(hash(revision))).collect();
    let surplus = unused.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    for revision in unused.into_iter().take(surplus) {
        let api = Api::<ControllerRevision>::namespaced(client.clone(), meta::namespace(&**revision));
        match api.delete(meta::name(&**revision), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => (),
            other => drop(other?),
        }
    }
    Ok(())
}
