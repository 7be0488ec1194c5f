//! ServiceAccount: every pod runs as an account, with that account's token in its file system.

use std::sync::Arc;
use std::time::Duration;

use api::{ApiError, Object, ObjectExt as _};
use rand::Rng as _;
use serde_json::{Value, json};

use super::Attributes;
use crate::server::ApiServer;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A little over an hour, so that the kubelet's refresh is told from a user's own request.
const TOKEN_SECONDS: i64 = 3607;
/// The account of a new namespace is made by a controller; a pod created right after waits this long for it.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) async fn admit(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    pod: &mut Object,
) -> Result<(), ApiError> {
    if pod.at(&["metadata", "annotations", "kubernetes.io/config.mirror"]).is_some() {
        return Ok(()); // A static pod's image in the API: the node runs it whatever is written here.
    }
    let spec = pod.at_mut(&["spec"]);
    if spec.text(&["serviceAccountName"]).is_empty() {
        spec.insert("serviceAccountName".into(), "default".into());
        spec.insert("serviceAccount".into(), "default".into());
    }
    let name = spec.text(&["serviceAccountName"]).to_owned();
    let account = find(server, attributes.namespace, &name).await.ok_or_else(|| {
        let namespace = attributes.namespace;
        attributes.forbidden(format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        ))
    })?;
    if let (None, Some(secrets)) = (spec.get("imagePullSecrets"), account.get("imagePullSecrets")) {
        spec.insert("imagePullSecrets".into(), secrets.clone());
    }
    let automount = spec.get("automountServiceAccountToken").or_else(|| account.get("automountServiceAccountToken"));
    if automount != Some(&Value::Bool(false)) {
        mount_token(spec);
    }
    Ok(())
}

async fn find(server: &Arc<ApiServer>, namespace: &str, name: &str) -> Option<Object> {
    let cache = server.registry.find("", "v1", "serviceaccounts")?.cache.as_ref()?;
    let key = format!("{namespace}/{name}");
    let mut progress = server.feed.progress();
    let wait = async {
        loop {
            if let Some(stored) = cache.get(&key) {
                return Some(stored.decode());
            }
            progress.changed().await.ok()?;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.ok().flatten()
}

/// Adds the projected volume and mounts it wherever nothing is mounted at its place.
fn mount_token(spec: &mut Object) {
    let mounts =
        |container: &Object| container.get("volumeMounts").and_then(Value::as_array).cloned().unwrap_or_default();
    let suffix: String = {
        let mut rng = rand::rng();
        (0..5)
            .map(|_| char::from(b"bcdfghjklmnpqrstvwxz2456789".get(rng.random_range(0..27)).copied().unwrap_or(b'x')))
            .collect()
    };
    let volume = format!("kube-api-access-{suffix}");
    let mut used = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let mut own = mounts(container);
            if own.iter().any(|mount| mount.get("mountPath").is_some_and(|path| path == MOUNT_PATH)) {
                continue;
            }
            own.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
            container.insert("volumeMounts".into(), own.into());
            used = true;
        }
    }
    if !used {
        return;
    }
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]);
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    if let Some(list) = volumes.as_array_mut() {
        list.push(json!({"name": volume, "projected": {"defaultMode": 420, "sources": sources}}));
    }
}
