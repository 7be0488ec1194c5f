//! What every cluster has from its first moment: namespaces, roles, priority classes, the `kubernetes` service.

mod claims;
pub(crate) mod flow;
pub(crate) mod local_apis;
mod policy;
mod service_cidr;
mod trust;

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

pub(crate) use self::trust::publish as publish_trust;
use crate::field_manager::{FieldManager, Tracking};
use crate::handlers::{DeleteOptions, Writer};
use crate::health::Phase;
use crate::server::ApiServer;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The rules of a role that every cluster has.
pub(crate) fn role(name: &str) -> Option<Value> {
    let found = policy::objects().into_iter().find(|role| role.plural == "clusterroles" && role.object.name() == name);
    found.and_then(|mut role| role.object.remove("rules"))
}

/// Creates what is missing, and brings back what must not differ.
pub(crate) async fn run(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    // Roles live in them.
    let namespaces = NAMESPACES.map(|name| ("", "namespaces", "", json!({"metadata": {"name": name}})));
    ensure_all(server, namespaces).await?;
    server.health.reach(Phase::Namespaced);
    let mut wanted: Vec<(&str, &str, &str, Value)> = Vec::new();
    for (name, value, description) in [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ] {
        let class = json!({"metadata": {"name": name}, "value": value, "description": description, "preemptionPolicy": "PreemptLowerPriority"});
        wanted.push(("scheduling.k8s.io", "priorityclasses", "", class));
    }
    for role in policy::objects() {
        wanted.push(("rbac.authorization.k8s.io", role.plural, role.namespace, Value::Object(role.object)));
    }
    for (plural, object) in flow::objects() {
        wanted.push(("flowcontrol.apiserver.k8s.io", plural, "", object));
    }
    for object in local_apis::objects(&server.registry) {
        wanted.push(("apiregistration.k8s.io", "apiservices", "", object));
    }
    // From when on use of old tokens is seen.
    let since = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let tracking = json!({
        "metadata": {"name": "kube-apiserver-legacy-service-account-token-tracking"}, "data": {"since": since},
    });
    wanted.push(("", "configmaps", "kube-system", tracking));
    futures::try_join!(ensure_all(server, wanted), service_cidr::ensure(server))?;
    local_apis::remove_old(server).await?;
    server.health.reach(Phase::Bootstrapped);
    trust::publish(server).await?;
    server.health.reach(Phase::Trusted);
    claims::repair(server).await?;
    server.health.reach(Phase::Repaired);
    server.tasks.spawn(server.drain.clone().run_until_cancelled_owned(claims::keep(server.clone())));
    server.tasks.spawn(server.drain.clone().run_until_cancelled_owned(service_cidr::keep(server.clone())));
    crate::master_leases::start(server).await?;
    crate::identity::start(server);
    server.health.reach(Phase::Published);
    Ok(())
}

/// One transaction would do, but each of these is an ordinary create; concurrent ones share the store's sync.
async fn ensure_all(
    server: &Arc<ApiServer>,
    wanted: impl IntoIterator<Item = (&str, &str, &str, Value)>,
) -> Result<(), ApiError> {
    let writes =
        wanted.into_iter().map(|(group, plural, namespace, object)| ensure(server, group, plural, namespace, object));
    futures::future::join_all(writes).await.into_iter().collect()
}

pub(crate) async fn ensure(
    server: &Arc<ApiServer>,
    group: &str,
    plural: &str,
    namespace: &str,
    object: Value,
) -> Result<(), ApiError> {
    let writer = writer(server, group, plural, "")?;
    let served = writer.served;
    let Value::Object(mut object) = object else { return Ok(()) };
    object.insert("kind".into(), served.info.kind.clone().into());
    object.insert("apiVersion".into(), served.info.api_version().into());
    let name = object.name().to_owned();
    match writer.cache()?.get(&served.key(namespace, &name)) {
        None => {
            let status = object.get("status").cloned().filter(|status| status != &json!({}));
            match writer.create(namespace, object).await {
                Err(error) if error.reason == "AlreadyExists" => return Ok(()),
                created => created?,
            };
            let Some(status) = status else { return Ok(()) };
            let with_status = |current: &Object| {
                let mut new = current.clone();
                new.insert("status".into(), status.clone());
                Ok(new)
            };
            let writer = Writer { subresource: "status", ..writer };
            let Some(manager) = status_manager(plural) else {
                return writer.update(namespace, &name, with_status).await.map(|_| ());
            };
            // Whoever keeps these conditions applies them.
            let config = json!({
                "kind": served.info.kind, "apiVersion": served.info.api_version(), "metadata": {"name": name}, "status": status,
            });
            let fields = FieldManager { registry: &server.registry, served, subresource: "status" };
            let applied = |live: &Object| match &config {
                Value::Object(config) => fields.apply(Some(live), config, manager, true, &crate::handlers::now()),
                _ => Ok(live.clone()),
            };
            let writer = Writer { tracking: Tracking::Applied, ..writer };
            writer.update(namespace, &name, applied).await.map(|_| ())
        }
        Some(known) if group == "rbac.authorization.k8s.io" && policy::is_of_another_role(&known.decode(), &object) => {
            writer.delete(namespace, &name, &DeleteOptions::default()).await?;
            writer.create(namespace, object).await.map(|_| ())
        }
        Some(_) if group == "rbac.authorization.k8s.io" => {
            let change = |current: &Object| Ok(policy::reconciled(current, &object));
            writer.update(namespace, &name, change).await.map(|_| ())
        }
        // Endpoints and trust follow the configuration; the rest belongs to the user once it exists.
        Some(_) if matches!(plural, "endpoints" | "endpointslices") || name == trust::NAME => {
            let content = object.clone();
            let change = |current: &Object| {
                let mut new = current.clone();
                for (key, value) in content.iter().filter(|(key, _)| *key != "metadata") {
                    new.insert(key.clone(), value.clone());
                }
                Ok(new)
            };
            writer.update(namespace, &name, change).await.map(|_| ())
        }
        Some(_) => Ok(()),
    }
}

/// Writes in the server's own name.
pub(crate) fn writer<'a>(
    server: &'a Arc<ApiServer>,
    group: &str,
    plural: &str,
    subresource: &'a str,
) -> Result<Writer<'a>, ApiError> {
    let served = server.registry.stored(group, plural).ok_or_else(ApiError::no_such_resource)?;
    let manager = match group {
        "flowcontrol.apiserver.k8s.io" => flow::MANAGER,
        _ => "kube-apiserver",
    };
    let tracking = Tracking::Update(manager);
    Ok(Writer { server, served, context: None, subresource, dry_run: false, tracking })
}

/// Who applies the status of what is there from the beginning, where that is not whoever made it.
fn status_manager(plural: &str) -> Option<&'static str> {
    match plural {
        "flowschemas" => Some(flow::STATUS_MANAGER),
        "servicecidrs" => Some("kubernetes-service-cidr-controller"),
        _ => None,
    }
}

/// Pods reach the API servers as `kubernetes.default`.
pub(crate) async fn publish_kubernetes_service(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let port = server.config.secure_port;
    let first = server.config.service_cluster_ip_range.primary.nth(1);
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let service = json!({
        "metadata": {"name": "kubernetes", "labels": labels},
        "spec": {
            "clusterIP": first.to_string(), "type": "ClusterIP", "sessionAffinity": "None", "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
        },
    });
    ensure(server, "", "services", "default", service).await
}
