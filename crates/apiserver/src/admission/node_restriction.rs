//! NodeRestriction: a node writes its own object, and of pods only what concerns those bound to it.

mod mirror;
mod token;

use std::sync::Arc;

use api::{ApiError, GroupResource, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::auth::node::identity;
use crate::server::ApiServer;
use crate::strategy;

const LEASES: &str = "kube-node-lease";
/// Labels of Kubernetes' own that a kubelet sets on its node; all else below `kubernetes.io` is others' to set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

pub(super) struct NodeRestriction;

#[async_trait]
impl Plugin for NodeRestriction {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Connect && attributes.user().is_some_and(|user| identity(user).is_some())
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &mut Object,
    ) -> Result<(), ApiError> {
        let Some(user) = attributes.user() else { return Ok(()) };
        let node = identity(user).unwrap_or_default();
        if node.is_empty() {
            return Err(attributes.forbidden(format!("could not determine node from user {:?}", user.name)));
        }
        let info = &attributes.served.info;
        let verdict = match (info.group.as_str(), info.plural.as_str()) {
            ("", "pods") => return pod(server, node, attributes, object),
            ("", "serviceaccounts") => return token::check(server, node, attributes, object).await,
            ("", "nodes") => own_node(node, attributes, object),
            ("", "persistentvolumeclaims") => claim(node, attributes, object),
            ("coordination.k8s.io", "leases") => lease(node, attributes),
            ("storage.k8s.io", "csinodes") => csi_node(node, attributes),
            ("resource.k8s.io", "resourceslices") => resource_slice(node, attributes, object),
            ("certificates.k8s.io", "certificatesigningrequests") => signing_request(node, attributes, object),
            _ => Ok(()),
        };
        verdict.map_err(|why| attributes.forbidden(why))
    }
}

fn node_of(pod: &Object) -> &str {
    pod.text(&["spec", "nodeName"])
}

fn pod(server: &ApiServer, node: &str, attributes: &Attributes<'_>, pod: &Object) -> Result<(), ApiError> {
    let refuse = |why: String| Err(attributes.forbidden(why));
    match (attributes.subresource, attributes.operation) {
        ("", Operation::Create) => mirror::check(server, node, attributes, pod),
        ("", Operation::Delete) => match attributes.old {
            Some(old) if node_of(old) != node => {
                refuse(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            _ => Ok(()),
        },
        ("", operation) => refuse(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            operation.as_str()
        )),
        ("status", Operation::Update) => pod_status(node, attributes.old, pod).or_else(refuse),
        ("eviction", Operation::Create) => {
            let name = if attributes.name.is_empty() { pod.name() } else { attributes.name };
            let found = server.cached("", "pods", &format!("{}/{name}", attributes.namespace));
            let resource = GroupResource { group: "", resource: "pods" };
            let found = found.ok_or_else(|| ApiError::not_found(resource, name))?;
            match node_of(&found) == node {
                true => Ok(()),
                false => refuse(format!("node {node} can only evict pods with spec.nodeName set to itself")),
            }
        }
        ("status" | "eviction", operation) => refuse(format!("unexpected operation {:?}", operation.as_str())),
        (other, _) => refuse(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed")),
    }
}

fn pod_status(node: &str, old: Option<&Object>, new: &Object) -> Result<(), String> {
    let Some(old) = old else { return Ok(()) };
    if node_of(old) != node {
        return Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    let differs = |path: &[&str]| old.at(path) != new.at(path);
    if differs(&["metadata", "labels"]) {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    if differs(&["status", "resourceClaimStatuses"]) {
        return Err(format!("node {node:?} cannot update resource claim statues"));
    }
    if differs(&["status", "extendedResourceClaimStatus"]) {
        return Err(format!("node {node:?} cannot update extended resource claim status"));
    }
    Ok(())
}

fn own_node(node: &str, attributes: &Attributes<'_>, new: &Object) -> Result<(), String> {
    if attributes.name != node {
        return Err(format!("node {node:?} is not allowed to modify node {:?}", attributes.name));
    }
    let source = ["spec", "configSource"];
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => {
            if new.at(&source).is_some() {
                return Err(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
            }
            match forbidden_labels(new, None).as_str() {
                "" => Ok(()),
                labels => Err(format!("node {node:?} is not allowed to set the following labels: {labels}")),
            }
        }
        (Operation::Update, Some(old)) => {
            if new.at(&source).is_some() && new.at(&source) != old.at(&source) {
                return Err(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            if !same(new.at(&["spec", "taints"]), old.at(&["spec", "taints"])) {
                return Err(format!("node {node:?} is not allowed to modify taints"));
            }
            if !same(new.at(&["metadata", "ownerReferences"]), old.at(&["metadata", "ownerReferences"])) {
                return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
            }
            match forbidden_labels(new, Some(old)).as_str() {
                "" => Ok(()),
                labels => Err(format!("is not allowed to modify labels: {labels}")),
            }
        }
        _ => Ok(()),
    }
}

/// Nothing and an empty list are the same.
fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    let full =
        |value: Option<&Value>| value.filter(|value| value.as_array().is_none_or(|list| !list.is_empty())).cloned();
    full(a) == full(b)
}

/// The changed labels a node may not set, separated by commas.
fn forbidden_labels(new: &Object, old: Option<&Object>) -> String {
    let labels = |object: &Object| object.at(&["metadata", "labels"]).and_then(Value::as_object).cloned();
    let new = labels(new).unwrap_or_default();
    let old = old.and_then(labels).unwrap_or_default();
    let changed = new.keys().chain(old.keys()).filter(|key| new.get(*key) != old.get(*key));
    let mut forbidden: Vec<&str> = changed.map(String::as_str).filter(|key| !may_set(key)).collect();
    forbidden.sort_unstable();
    forbidden.dedup();
    forbidden.join(", ")
}

fn may_set(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'));
    let ours = within("kubernetes.io") || within("k8s.io");
    let kubelets = KUBELET_LABELS.contains(&label) || within("kubelet.kubernetes.io") || within("node.kubernetes.io");
    !within("node-restriction.kubernetes.io") && (!ours || kubelets)
}

fn claim(node: &str, attributes: &Attributes<'_>, new: &Object) -> Result<(), String> {
    match (attributes.subresource, attributes.operation, attributes.old) {
        ("status", Operation::Update, Some(old)) => {
            let rest = |object: &Object| {
                let mut rest = object.clone();
                for field in ["resourceVersion", "managedFields"] {
                    rest.metadata().remove(field);
                }
                for field in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
                    rest.at_mut(&["status"]).remove(field);
                }
                rest
            };
            match rest(old) == rest(new) {
                true => Ok(()),
                false => Err(format!(
                    "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
                )),
            }
        }
        ("status", operation, _) => Err(format!("unexpected operation {:?}", operation.as_str())),
        _ => Err("may only update PVC status".into()),
    }
}

fn lease(node: &str, attributes: &Attributes<'_>) -> Result<(), String> {
    if attributes.namespace != LEASES {
        return Err(format!("can only access leases in the {LEASES:?} system namespace"));
    }
    match attributes.name == node {
        true => Ok(()),
        false => Err("can only access node lease with the same name as the requesting node".into()),
    }
}

fn csi_node(node: &str, attributes: &Attributes<'_>) -> Result<(), String> {
    match attributes.name == node {
        true => Ok(()),
        false => Err("can only access CSINode with the same name as the requesting node".into()),
    }
}

fn resource_slice(node: &str, attributes: &Attributes<'_>, new: &Object) -> Result<(), String> {
    let (slice, what) = match (attributes.operation, attributes.old) {
        (Operation::Create, _) => (new, "create"),
        (Operation::Delete, Some(old)) => (old, "delete"),
        _ => return Ok(()),
    };
    match node_of(slice) == node {
        true => Ok(()),
        false => Err(format!("can only {what} ResourceSlice with the same NodeName as the requesting node")),
    }
}

fn signing_request(node: &str, attributes: &Attributes<'_>, request: &Object) -> Result<(), String> {
    let signer = request.text(&["spec", "signerName"]);
    let of_kubelets = matches!(signer, "kubernetes.io/kubelet-serving" | "kubernetes.io/kube-apiserver-client-kubelet");
    if attributes.operation != Operation::Create || !attributes.subresource.is_empty() || !of_kubelets {
        return Ok(());
    }
    match strategy::requested_subject(request) {
        None => Err("unable to parse csr".into()),
        Some(subject) if subject.common_name == format!("system:node:{node}") => Ok(()),
        Some(_) => Err(format!("can only create a node CSR with CN=system:node:{node}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_sets_only_the_labels_of_a_kubelet() {
        for (label, want) in [
            ("example.com/a", true),
            ("plain", true),
            ("kubernetes.io/os", true),
            ("node.kubernetes.io/x", true),
            ("foo.kubelet.kubernetes.io/x", true),
            ("kubernetes.io/role", false),
            ("node-role.kubernetes.io/control-plane", false),
            ("node-restriction.kubernetes.io/x", false),
            ("a.node-restriction.kubernetes.io/x", false),
            ("x.k8s.io/y", false),
            ("notkubernetes.io/y", true),
        ] {
            assert_eq!(may_set(label), want, "{label}");
        }
    }
}
