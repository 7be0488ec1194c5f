//! Facts about object metadata: who controls an object, how it points back to its owner.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

pub(crate) type Labels = BTreeMap<String, String>;

/// The one owner that manages this object.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

pub(crate) fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// A reference from a managed object to its controller; the controller cannot go in the foreground before the object does.
pub(crate) fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: name(owner).to_owned(),
        uid: uid(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub(crate) fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

pub(crate) fn namespace<K: Resource>(object: &K) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

pub(crate) fn uid<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

pub(crate) fn labels<K: Resource>(object: &K) -> &Labels {
    static NONE: Labels = BTreeMap::new();
    object.meta().labels.as_ref().unwrap_or(&NONE)
}

pub(crate) fn annotation<'a, K: Resource>(object: &'a K, key: &str) -> Option<&'a str> {
    object.meta().annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn is_deleting<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Objects without a time (not yet stored) count as the oldest.
pub(crate) fn created<K: Resource>(object: &K) -> Timestamp {
    object.meta().creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
}
