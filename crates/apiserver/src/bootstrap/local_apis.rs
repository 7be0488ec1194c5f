//! An `APIService` for every group and version that is served here, so that clients find what is local and what is not.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{ApiError, ObjectExt as _};
use serde_json::{Value, json};

use crate::handlers::{DeleteOptions, Writer};
use crate::registry::Registry;
use crate::server::ApiServer;

/// Where a group stands among the others; what is not named comes last.
const PRIORITIES: [(&str, u32); 22] = [
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("apiextensions.k8s.io", 16700),
    ("admissionregistration.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("resource.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("internal.apiserver.k8s.io", 16000),
    ("storagemigration.k8s.io", 15800),
];

const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

pub(super) fn objects(registry: &Registry) -> Vec<Value> {
    let served: BTreeSet<(&str, &str)> =
        registry.all().iter().map(|served| (served.info.group.as_str(), served.info.version.as_str())).collect();
    // The aggregator's own group is not one it aggregates.
    served.into_iter().filter(|(group, _)| *group != "apiregistration.k8s.io").map(|(g, v)| object(g, v)).collect()
}

/// Those of versions that are no longer served go.
pub(super) async fn remove_old(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let wanted = objects(&server.registry);
    let is_wanted = |name: &str| wanted.iter().any(|known| known.pointer("/metadata/name").is_some_and(|n| n == name));
    let Some(served) = server.registry.stored("apiregistration.k8s.io", "apiservices") else { return Ok(()) };
    let (context, tracking) = (None, crate::field_manager::Tracking::None);
    let writer = Writer { server, served, context, subresource: "", dry_run: false, tracking };
    for object in server.cached_all("apiregistration.k8s.io", "apiservices", "") {
        let is_own = object.at(&["metadata", "labels", AUTOMANAGED]).is_some_and(|value| value == "onstart");
        if is_own && !is_wanted(object.name()) {
            match writer.delete("", object.name(), &DeleteOptions::default()).await {
                Err(error) if error.code == 404 => (),
                deleted => drop(deleted?),
            }
        }
    }
    Ok(())
}

/// Of the group among groups, of the version among its group's.
pub(crate) fn priorities(group: &str, version: &str) -> (u32, u32) {
    let known = PRIORITIES.iter().find(|(name, _)| *name == group);
    let version_priority = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", "v1") => 21,
        ("coordination.k8s.io", "v1beta1") => 13,
        ("coordination.k8s.io", "v1alpha2") | ("admissionregistration.k8s.io", "v1beta1") => 12,
        ("admissionregistration.k8s.io" | "internal.apiserver.k8s.io", "v1alpha1") => 9,
        (_, "v1") | ("resource.k8s.io", "v1beta2") => 15,
        (_, beta) if beta.contains("beta") => 9,
        _ => 1,
    };
    (known.map_or(1000, |(_, priority)| *priority), version_priority)
}

fn object(group: &str, version: &str) -> Value {
    let (priority, version_priority) = priorities(group, version);
    let available = json!({
        "type": "Available", "status": "True", "reason": "Local", "message": "Local APIServices are always available",
        "lastTransitionTime": crate::handlers::now(),
    });
    let mut spec = json!({"version": version, "groupPriorityMinimum": priority, "versionPriority": version_priority});
    if let (false, Some(spec)) = (group.is_empty(), spec.as_object_mut()) {
        spec.insert("group".into(), group.into());
    }
    json!({
        "metadata": {
            "name": format!("{version}.{group}"), "labels": {AUTOMANAGED: "onstart"},
        },
        "spec": spec, "status": {"conditions": [available]},
    })
}
