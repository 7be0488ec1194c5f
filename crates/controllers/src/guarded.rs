//! Objects that a finalizer keeps while they are used, as the controllers that guard them see them: metadata in types, all else as
//! it came, so that a whole update loses nothing.

use std::borrow::Cow;
use std::marker::PhantomData;

use client::ReconcileError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{DynamicResourceScope, TypeMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::meta;

/// Where a kind is served.
pub(crate) trait Kind: Clone + std::fmt::Debug + Send + Sync + 'static {
    const GROUP: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
    /// What keeps one from going while it is used.
    const FINALIZER: &'static str;
}

#[derive(Clone, Debug)]
pub(crate) struct Claim;
#[derive(Clone, Debug)]
pub(crate) struct Volume;
#[derive(Clone, Debug)]
pub(crate) struct AttributesClass;
#[derive(Clone, Debug)]
pub(crate) struct ServiceCidr;

impl Kind for Claim {
    const GROUP: &'static str = "";
    const KIND: &'static str = "PersistentVolumeClaim";
    const PLURAL: &'static str = "persistentvolumeclaims";
    const FINALIZER: &'static str = "kubernetes.io/pvc-protection";
}

impl Kind for Volume {
    const GROUP: &'static str = "";
    const KIND: &'static str = "PersistentVolume";
    const PLURAL: &'static str = "persistentvolumes";
    const FINALIZER: &'static str = "kubernetes.io/pv-protection";
}

impl Kind for AttributesClass {
    const GROUP: &'static str = "storage.k8s.io";
    const KIND: &'static str = "VolumeAttributesClass";
    const PLURAL: &'static str = "volumeattributesclasses";
    const FINALIZER: &'static str = "kubernetes.io/vac-protection";
}

impl Kind for ServiceCidr {
    const GROUP: &'static str = "networking.k8s.io";
    const KIND: &'static str = "ServiceCIDR";
    const PLURAL: &'static str = "servicecidrs";
    const FINALIZER: &'static str = "networking.k8s.io/service-cidr-finalizer";
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Guarded<T> {
    object: DynamicObject,
    #[serde(skip)]
    kind: PhantomData<T>,
}

impl<T: Kind> kube::Resource for Guarded<T> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        T::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        T::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.object.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.object.metadata
    }
}

/// What is to become of the finalizer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    Keep,
    /// It was created before the API server put one on it.
    Add,
    /// It is to go; so it does if nobody uses it.
    RemoveIfUnused,
}

impl<T: Kind> Guarded<T> {
    /// The list at a JSON pointer; empty if there is none.
    pub(crate) fn list(&self, pointer: &str) -> &[Value] {
        self.object.data.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The string at a JSON pointer; empty if there is none.
    pub(crate) fn text(&self, pointer: &str) -> &str {
        self.object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn guard(&self) -> Guard {
        let guarded = self.object.metadata.finalizers.iter().flatten().any(|name| name == T::FINALIZER);
        match (meta::is_deleting(self), guarded) {
            (true, true) => Guard::RemoveIfUnused,
            (false, false) => Guard::Add,
            _ => Guard::Keep,
        }
    }

    fn guarded(&self, guarded: bool) -> Self {
        let mut new = self.clone();
        let api_version = <Self as kube::Resource>::api_version(&()).into_owned();
        new.object.types = Some(TypeMeta { api_version, kind: T::KIND.to_owned() });
        let finalizers = new.object.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|name| name != T::FINALIZER);
        if guarded {
            finalizers.push(T::FINALIZER.to_owned());
        }
        new
    }

    /// Writes it with or without its finalizer. One that is gone, or is another one by now, needs neither.
    pub(crate) async fn set_guard(&self, client: &kube::Client, guarded: bool) -> Result<(), ReconcileError> {
        let api = match meta::namespace(self) {
            "" => Api::<Self>::all_with(client.clone(), &()),
            namespace => Api::<Self>::namespaced_with(client.clone(), namespace, &()),
        };
        match api.replace(meta::name(self), &PostParams::default(), &self.guarded(guarded)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(finalizers: &[&str], deleting: bool) -> Guarded<Claim> {
        let ends = deleting.then_some("2026-01-01T00:00:00Z");
        let whole = json!({
            "metadata": {"name": "a", "finalizers": finalizers, "deletionTimestamp": ends}, "spec": {"volumeName": "v"},
        });
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn what_lives_is_guarded_and_what_is_to_go_is_let_go_once() {
        let own = Claim::FINALIZER;
        for (finalizers, deleting, want) in [
            (&[][..], false, Guard::Add),
            (&["other"], false, Guard::Add),
            (&[own], false, Guard::Keep),
            (&["other", own], true, Guard::RemoveIfUnused),
            (&["other"], true, Guard::Keep),
        ] {
            assert_eq!(read(finalizers, deleting).guard(), want, "{finalizers:?} {deleting}");
        }
    }

    #[test]
    fn an_update_changes_only_the_finalizer() {
        let check = |before: &[&str], guarded: bool, after: &[&str]| {
            let new: Value = serde_json::to_value(read(before, false).guarded(guarded)).unwrap();
            let want = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a", "finalizers": after},
                "spec": {"volumeName": "v"},
            });
            assert_eq!(new, want);
        };
        check(&["other"], true, &["other", Claim::FINALIZER]);
        check(&[Claim::FINALIZER, "other"], false, &["other"]);
        check(&[Claim::FINALIZER], false, &[]);
    }
}
