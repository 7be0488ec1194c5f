//! The fields that a path resets, and which its writers therefore never manage.

use api::apply::Reset;

use crate::registry::Served;

pub(super) fn of(served: &Served, subresource: &str) -> Reset {
    let plural = served.info.plural.as_str();
    match (subresource, plural) {
        ("", "certificatesigningrequests") => Reset::Fields(&[&["spec"], &["status"]]),
        ("", "podcertificaterequests") => Reset::Fields(&[]),
        ("", _) if served.info.has_subresource("status") => Reset::Fields(&[&["status"]]),
        ("finalize", _) => Reset::Fields(&[&["status"]]),
        ("status", _) if served.custom().is_some() => Reset::Fields(&[&["metadata"], &["spec"]]),
        ("status", "deployments") => Reset::Fields(&[&["spec"], &["metadata", "labels"]]),
        ("status", "pods") => {
            Reset::Fields(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]])
        }
        ("status", "certificatesigningrequests") => Reset::Fields(&[&["spec"], &["status", "conditions"]]),
        ("approval", _) => Reset::Fields(&[&["spec"], &["status", "certificate"]]),
        (
            "status",
            "validatingadmissionpolicies"
            | "storageversions"
            | "flowschemas"
            | "prioritylevelconfigurations"
            | "servicecidrs"
            | "devicetaintrules"
            | "resourceclaims"
            | "resourcepoolstatusrequests"
            | "podgroups"
            | "volumeattachments"
            | "storageversionmigrations"
            | "apiservices",
        ) => Reset::Fields(&[&["metadata"], &["spec"]]),
        ("status", _) => Reset::Fields(&[&["spec"]]),
        ("ephemeralcontainers", _) => Reset::AllBut(&[&["spec", "ephemeralContainers"]]),
        ("resize", _) => Reset::AllBut(&[
            &["spec", "containers", "*", "resources"],
            &["spec", "containers", "*", "resizePolicy"],
            &["spec", "initContainers", "*", "resources"],
            &["spec", "initContainers", "*", "resizePolicy"],
        ]),
        ("scale", _) if replicas_elsewhere(served) => Reset::Fields(&[&["metadata"]]),
        ("scale", _) => Reset::AllBut(&[&["spec", "replicas"]]),
        _ => Reset::Fields(&[]),
    }
}

/// A custom resource can have its replicas anywhere.
fn replicas_elsewhere(served: &Served) -> bool {
    let scale = served.custom().and_then(|custom| custom.version().scale.as_ref());
    scale.is_some_and(|scale| scale.spec_replicas != ["spec", "replicas"])
}
