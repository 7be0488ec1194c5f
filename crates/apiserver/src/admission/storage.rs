//! DefaultStorageClass, PersistentVolumeClaimResize, StorageObjectInUseProtection, and DefaultIngressClass, which chooses
//! in the same way.

use std::sync::Arc;

use api::quantity::Quantity;
use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::server::ApiServer;

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_STORAGE: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const DEFAULT_INGRESS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];

/// The newest of those that are marked as the default; by name where two are of the same second.
fn default_of(classes: Vec<Object>, marks: &[&str]) -> Option<String> {
    let is_default = |class: &Object| marks.iter().any(|mark| class.text(&["metadata", "annotations", mark]) == "true");
    let defaults = classes.iter().filter(|class| is_default(class));
    let newest = defaults.min_by(|a, b| {
        let born = |class: &Object| class.text(&["metadata", "creationTimestamp"]).to_owned();
        born(b).cmp(&born(a)).then(a.name().cmp(b.name()))
    });
    newest.map(|class| class.name().to_owned())
}

pub(super) struct DefaultStorageClass;

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.creates("", "persistentvolumeclaims")
    }

    async fn admit(&self, server: &Arc<ApiServer>, _: &Attributes<'_>, claim: &mut Object) -> Result<(), ApiError> {
        let annotated = claim.at(&["metadata", "annotations", BETA_CLASS]).is_some();
        if annotated || claim.at(&["spec", "storageClassName"]).is_some() {
            return Ok(());
        }
        let classes = server.cached_all("storage.k8s.io", "storageclasses", "");
        if let Some(class) = default_of(classes, &DEFAULT_STORAGE) {
            claim.at_mut(&["spec"]).insert("storageClassName".into(), class.into());
        }
        Ok(())
    }
}

pub(super) struct DefaultIngressClass;

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.creates("networking.k8s.io", "ingresses")
    }

    async fn admit(&self, server: &Arc<ApiServer>, _: &Attributes<'_>, ingress: &mut Object) -> Result<(), ApiError> {
        let annotated = ingress.at(&["metadata", "annotations", "kubernetes.io/ingress.class"]).is_some();
        if annotated || ingress.at(&["spec", "ingressClassName"]).is_some() {
            return Ok(());
        }
        let classes = server.cached_all("networking.k8s.io", "ingressclasses", "");
        if let Some(class) = default_of(classes, &DEFAULT_INGRESS) {
            ingress.at_mut(&["spec"]).insert("ingressClassName".into(), class.into());
        }
        Ok(())
    }
}

pub(super) struct PersistentVolumeClaimResize;

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update && attributes.is("", "persistentvolumeclaims")
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        claim: &Object,
    ) -> Result<(), ApiError> {
        let Some(old) = attributes.old else { return Ok(()) };
        let size = |claim: &Object| {
            let text = claim.text(&["spec", "resources", "requests", "storage"]);
            Quantity::parse(text).unwrap_or(Quantity::ZERO)
        };
        if size(claim) <= size(old) {
            return Ok(());
        }
        if old.text(&["status", "phase"]) != "Bound" {
            return Err(attributes.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = class_of(claim);
        let found = server.cached("storage.k8s.io", "storageclasses", class).filter(|_| class == class_of(old));
        match found.is_some_and(|class| class.get("allowVolumeExpansion") == Some(&Value::Bool(true))) {
            true => Ok(()),
            false => Err(attributes.forbidden(
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
            )),
        }
    }
}

fn class_of(claim: &Object) -> &str {
    match claim.text(&["metadata", "annotations", BETA_CLASS]) {
        "" => claim.text(&["spec", "storageClassName"]),
        class => class,
    }
}

/// What is in use is only marked for deletion; controllers take the mark off when nobody uses it.
pub(super) struct StorageObjectInUseProtection;

fn finalizer(attributes: &Attributes<'_>) -> Option<&'static str> {
    let finalizers = [
        ("", "persistentvolumes", "kubernetes.io/pv-protection"),
        ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
        ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
    ];
    finalizers.into_iter().find(|(group, plural, _)| attributes.creates(group, plural)).map(|(_, _, name)| name)
}

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        finalizer(attributes).is_some()
    }

    async fn admit(
        &self,
        _: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &mut Object,
    ) -> Result<(), ApiError> {
        let Some(name) = finalizer(attributes) else { return Ok(()) };
        if !object.finalizers().contains(&name) {
            let list = object.metadata().entry("finalizers").or_insert_with(|| json!([]));
            list.as_array_mut().map(|list| list.push(name.into())).unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_default_is_chosen() {
        let class = |name: &str, born: &str, mark: &str| {
            let class = json!({"metadata": {"name": name, "creationTimestamp": born, "annotations": {"ingressclass.kubernetes.io/is-default-class": mark}}});
            class.as_object().cloned().unwrap()
        };
        let check = |classes: &[(&str, &str, &str)], want: Option<&str>| {
            let classes = classes.iter().map(|(name, born, mark)| class(name, born, mark)).collect();
            assert_eq!(default_of(classes, &DEFAULT_INGRESS).as_deref(), want);
        };
        check(&[("a", "2026-01-01T00:00:00Z", "false")], None);
        check(&[("a", "2026-01-01T00:00:00Z", "true"), ("b", "2026-01-02T00:00:00Z", "true")], Some("b"));
        check(&[("b", "2026-01-01T00:00:00Z", "true"), ("a", "2026-01-01T00:00:00Z", "true")], Some("a"));
    }
}
