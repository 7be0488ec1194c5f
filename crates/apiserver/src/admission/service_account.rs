//! ServiceAccount: every pod runs as an account, with that account's token in its file system.

mod secrets;

use std::sync::Arc;
use std::time::Duration;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use rand::Rng as _;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin, unaskable};
use crate::auth::node::references;
use crate::server::ApiServer;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A little over an hour, so that the kubelet's refresh is told from a user's own request.
const TOKEN_SECONDS: i64 = 3607;
/// The account of a new namespace is made by a controller; a pod created right after waits this long for it.
const PATIENCE: Duration = Duration::from_secs(1);

const ENFORCE_MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

pub(super) struct ServiceAccount;

#[async_trait]
impl Plugin for ServiceAccount {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let ephemeral = attributes.is_of("", "pods") && attributes.subresource == "ephemeralcontainers";
        attributes.creates("", "pods") || (ephemeral && attributes.operation == Operation::Update)
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &mut Object,
    ) -> Result<(), ApiError> {
        if attributes.operation != Operation::Create {
            return Ok(());
        }
        if is_mirror(pod) {
            // The node runs it whatever is written here.
            return check_mirror(pod).map_err(|why| attributes.forbidden(why));
        }
        let spec = pod.at_mut(&["spec"]);
        if spec.text(&["serviceAccountName"]).is_empty() {
            spec.insert("serviceAccountName".into(), "default".into());
            spec.insert("serviceAccount".into(), "default".into());
        }
        let account = account_of(server, attributes, pod).await?;
        let spec = pod.at_mut(&["spec"]);
        let automount = spec.get("automountServiceAccountToken");
        let automount = automount.or_else(|| account.get("automountServiceAccountToken"));
        if automount != Some(&Value::Bool(false)) {
            mount_token(spec);
        }
        let own = spec.get("imagePullSecrets").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        if let (false, Some(secrets)) = (own, account.get("imagePullSecrets")) {
            spec.insert("imagePullSecrets".into(), secrets.clone());
        }
        Ok(())
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &Object,
    ) -> Result<(), ApiError> {
        if is_mirror(pod) {
            return match attributes.operation {
                Operation::Create => check_mirror(pod).map_err(|why| attributes.forbidden(why)),
                _ => Ok(()),
            };
        }
        let account = account_of(server, attributes, pod).await?;
        let enforced = account.text(&["metadata", "annotations", ENFORCE_MOUNTABLE]);
        if !matches!(enforced, "1" | "t" | "T" | "TRUE" | "true" | "True") {
            return Ok(());
        }
        let why = if attributes.operation == Operation::Create {
            secrets::unlisted(&account, pod)
        } else {
            secrets::unlisted_ephemeral(&account, pod)
        };
        why.map_or(Ok(()), |why| Err(attributes.forbidden(why)))
    }
}

fn is_mirror(pod: &Object) -> bool {
    pod.at(&["metadata", "annotations", "kubernetes.io/config.mirror"]).is_some()
}

/// The image of a static pod refers to nothing that only the API has.
fn check_mirror(pod: &Object) -> Result<(), &'static str> {
    if !pod.text(&["spec", "serviceAccountName"]).is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if !references::secrets(pod).is_empty() {
        return Err("a mirror pod may not reference secrets");
    }
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let mut sources = volumes.filter_map(|volume| volume.pointer("/projected/sources")?.as_array()).flatten();
    if sources.any(|source| source.get("serviceAccountToken").is_some()) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

async fn account_of(server: &Arc<ApiServer>, attributes: &Attributes<'_>, pod: &Object) -> Result<Object, ApiError> {
    let (namespace, name) = (attributes.namespace, pod.text(&["spec", "serviceAccountName"]));
    if name.is_empty() {
        return Err(attributes.forbidden(format!("no service account specified for pod {namespace}/{}", pod.name())));
    }
    if let Some(why) = unaskable(name) {
        return Err(attributes.forbidden(format!("error looking up service account {namespace}/{name}: {why}")));
    }
    find(server, namespace, name).await.ok_or_else(|| {
        attributes.forbidden(format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        ))
    })
}

async fn find(server: &Arc<ApiServer>, namespace: &str, name: &str) -> Option<Object> {
    let key = format!("{namespace}/{name}");
    let mut progress = server.feed.progress();
    let wait = async {
        loop {
            if let Some(account) = server.cached("", "serviceaccounts", &key) {
                return Some(account);
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
    let volumes = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    let mut names = volumes.filter_map(|volume| volume.get("name")?.as_str());
    let known = names.find(|name| name.starts_with("kube-api-access-")).map(ToOwned::to_owned);
    let suffix: String = {
        let mut rng = rand::rng();
        (0..5)
            .map(|_| char::from(b"bcdfghjklmnpqrstvwxz2456789".get(rng.random_range(0..27)).copied().unwrap_or(b'x')))
            .collect()
    };
    let there = known.is_some();
    let volume = known.unwrap_or_else(|| format!("kube-api-access-{suffix}"));
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
    if !used || there {
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
