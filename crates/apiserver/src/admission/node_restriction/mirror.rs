//! What a node may create: the images of its own static pods, which refer to nothing in the API.

use api::{ApiError, GroupResource, Object, ObjectExt as _};
use serde_json::Value;

use super::super::Attributes;
use super::node_of;
use crate::auth::node::references;
use crate::server::ApiServer;

const MIRROR: &str = "kubernetes.io/config.mirror";
/// Volumes a node can mount without the API's help.
const LOCAL_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];
const REFERENCES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];
const PROJECTED: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

pub(super) fn check(server: &ApiServer, node: &str, attributes: &Attributes<'_>, pod: &Object) -> Result<(), ApiError> {
    let refuse = |why: String| Err(attributes.forbidden(why));
    if pod.at(&["metadata", "annotations", MIRROR]).is_none() {
        return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if node_of(pod) != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod.at(&["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let owner = match owners.as_slice() {
        [Value::Object(owner)] => owner,
        [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
        _ => return refuse(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    let text = |field: &str| owner.text(&[field]);
    if (text("apiVersion"), text("kind"), text("name")) != ("v1", "Node", node) {
        return refuse(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner.get("controller") != Some(&Value::Bool(true)) {
        return refuse(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)) {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let resource = GroupResource { group: "", resource: "node" };
    let known = server.cached("", "nodes", node).ok_or_else(|| ApiError::not_found(resource, node))?;
    if text("uid") != known.uid() {
        return refuse(format!("node {node} UID mismatch: expected {} got {}", text("uid"), known.uid()));
    }
    match referenced(pod) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => refuse(format!("node {node:?} can not create pods that reference {what}")),
        Err(why) => refuse(format!("error checking mirror pod for API references: {why}")),
    }
}

/// What in the API the pod needs.
fn referenced(pod: &Object) -> Result<Option<&'static str>, String> {
    if !pod.text(&["spec", "serviceAccountName"]).is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if !references::secrets(pod).is_empty() {
        return Ok(Some("secrets"));
    }
    if !references::config_maps(pod).is_empty() {
        return Ok(Some("configmaps"));
    }
    let list = |path: &[&str]| pod.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    if !list(&["spec", "resourceClaims"]).is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in list(&["spec", "volumes"]) {
        let has = |source: &str| volume.get(source).is_some();
        if LOCAL_VOLUMES.iter().any(|source| has(source)) {
            continue;
        }
        if let Some((_, what)) = REFERENCES.iter().find(|(source, _)| has(source)) {
            return Ok(Some(what));
        }
        let name = volume.get("name").cloned().unwrap_or_default();
        let Some(sources) = volume.get("projected") else {
            return Err(format!("unknown volume type for volume  {name}"));
        };
        for source in sources.get("sources").and_then(Value::as_array).into_iter().flatten() {
            match PROJECTED.iter().find(|(kind, _)| source.get(kind).is_some()) {
                Some((_, what)) => return Ok(Some(what)),
                None if source.get("downwardAPI").is_some() => (),
                None => return Err(format!("unknown source for projected volume {name}")),
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(spec: Value, want: Result<Option<&str>, &str>) {
        let pod = json!({"spec": spec});
        assert_eq!(referenced(pod.as_object().unwrap()).as_ref().map(|what| *what).map_err(String::as_str), want);
    }

    #[test]
    fn a_static_pod_needs_nothing_of_the_api() {
        check(json!({"volumes": [{"name": "a", "hostPath": {}}, {"name": "b", "emptyDir": {}}]}), Ok(None));
        check(json!({"volumes": [{"name": "a", "projected": {"sources": [{"downwardAPI": {}}]}}]}), Ok(None));
        check(json!({"serviceAccountName": "x"}), Ok(Some("serviceaccounts")));
        check(json!({"imagePullSecrets": [{"name": "x"}]}), Ok(Some("secrets")));
        check(json!({"resourceClaims": [{}]}), Ok(Some("resourceclaims")));
        check(json!({"volumes": [{"name": "a", "csi": {}}]}), Ok(Some("csidrivers (via CSI volumes)")));
        let token = json!({"volumes": [{"name": "a", "projected": {"sources": [{"serviceAccountToken": {}}]}}]});
        check(token, Ok(Some("serviceaccounts (via projected volumes)")));
        check(json!({"volumes": [{"name": "a", "unheard": {}}]}), Err("unknown volume type for volume  \"a\""));
    }
}
