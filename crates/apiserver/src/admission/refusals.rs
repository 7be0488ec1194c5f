//! Plugins that only refuse: DenyServiceExternalIPs, OwnerReferencesPermissionEnforcement, NamespaceExists, AlwaysDeny;
//! and NamespaceAutoProvision, which makes the namespace that another would miss.

use std::sync::Arc;

use api::{ApiError, GroupResource, Object, ObjectExt as _, UserInfo};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin, namespace};
use crate::auth::{Access, decide};
use crate::server::ApiServer;

pub(super) struct DenyServiceExternalIps;

#[async_trait]
impl Plugin for DenyServiceExternalIps {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && attributes.is("", "services")
    }

    async fn validate(
        &self,
        _: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        service: &Object,
    ) -> Result<(), ApiError> {
        let addresses = |service: &Object| service.at(&["spec", "externalIPs"]).and_then(Value::as_array).cloned();
        let known = attributes.old.and_then(addresses).unwrap_or_default();
        match addresses(service).unwrap_or_default().iter().all(|address| known.contains(address)) {
            true => Ok(()),
            false => Err(attributes.forbidden("Use of external IPs is denied by admission control")),
        }
    }
}

pub(super) struct AlwaysDeny;

#[async_trait]
impl Plugin for AlwaysDeny {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.context.is_some()
    }

    async fn validate(&self, _: &Arc<ApiServer>, attributes: &Attributes<'_>, _: &Object) -> Result<(), ApiError> {
        Err(attributes.forbidden("admission control is denying all modifications"))
    }
}

fn is_in_namespace(attributes: &Attributes<'_>) -> bool {
    attributes.served.info.namespaced && !attributes.namespace.is_empty() && attributes.context.is_some()
}

pub(super) struct NamespaceExists;

#[async_trait]
impl Plugin for NamespaceExists {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_in_namespace(attributes) && attributes.operation != Operation::Connect
    }

    async fn validate(&self, server: &Arc<ApiServer>, attributes: &Attributes<'_>, _: &Object) -> Result<(), ApiError> {
        let resource = GroupResource { group: "", resource: "namespaces" };
        let found = namespace::find(server, attributes.namespace).await?;
        found.map(drop).ok_or_else(|| ApiError::not_found(resource, attributes.namespace))
    }
}

pub(super) struct NamespaceAutoProvision;

#[async_trait]
impl Plugin for NamespaceAutoProvision {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_in_namespace(attributes) && attributes.operation == Operation::Create && !attributes.dry_run
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        _: &mut Object,
    ) -> Result<(), ApiError> {
        if namespace::find(server, attributes.namespace).await?.is_some() {
            return Ok(());
        }
        let namespace = json!({"metadata": {"name": attributes.namespace}});
        // Through the way of every write, which comes back to these plugins: but a namespace is in none.
        let made = Box::pin(crate::bootstrap::ensure(server, "", "namespaces", "", namespace)).await;
        made.map_err(|error| attributes.forbidden(error.message))?;
        server.feed.current().await.map_err(crate::server::store_error).map(drop)
    }
}

/// Who names an owner may delete the object; who holds the owner up may change its finalizers.
pub(super) struct OwnerReferencesPermissionEnforcement;

fn owners(object: &Object) -> Vec<Object> {
    let list = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|owner| owner.as_object().cloned()).collect()
}

fn blocks(owner: &Object) -> bool {
    owner.get("blockOwnerDeletion") == Some(&Value::Bool(true))
}

#[async_trait]
impl Plugin for OwnerReferencesPermissionEnforcement {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        // A pod's status is its node's to write, and says nothing of owners.
        let exempt = attributes.is_of("", "pods") && attributes.subresource == "status";
        let written = matches!(attributes.operation, Operation::Create | Operation::Update);
        written && attributes.context.is_some() && !exempt
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &Object,
    ) -> Result<(), ApiError> {
        let (new, old) = (owners(object), attributes.old.map(owners).unwrap_or_default());
        let Some(user) = attributes.user().filter(|_| new != old) else { return Ok(()) };
        let info = &attributes.served.info;
        if attributes.operation == Operation::Update {
            let delete = Access {
                is_resource: true,
                verb: "delete",
                group: &info.group,
                version: &info.version,
                resource: &info.plural,
                subresource: attributes.subresource,
                namespace: attributes.namespace,
                name: attributes.name,
                ..Access::default()
            };
            let decision = decide(server, user, &delete).await;
            if !decision.is_allowed() {
                let why = format!("cannot set an ownerRef on a resource you can't delete: {}, <nil>", decision.reason);
                return Err(attributes.forbidden(why));
            }
        }
        let was_blocking =
            |owner: &Object| old.iter().any(|known| known.get("uid") == owner.get("uid") && blocks(known));
        let blocking: Vec<&Object> = new.iter().filter(|owner| blocks(owner) && !was_blocking(owner)).collect();
        let any = ("*", "*", "*", "");
        if blocking.is_empty() || may_finalize(server, user, any, "*").await.is_ok() {
            return Ok(());
        }
        for owner in blocking {
            let (version, kind) = (owner.text(&["apiVersion"]), owner.text(&["kind"]));
            let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
            let all = server.registry.all();
            let found = all.iter().find(|served| {
                (served.info.group.as_str(), served.info.version.as_str(), served.info.kind.as_str())
                    == (group, short, kind)
            });
            let Some(found) = found else {
                return Err(attributes.forbidden(format!(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {version} Kind {kind}: no matches for kind {kind:?} in version {version:?}"
                )));
            };
            let namespace = if found.info.namespaced { attributes.namespace } else { "" };
            let what = (group, short, found.info.plural.as_str(), namespace);
            if let Err(reason) = may_finalize(server, user, what, owner.text(&["name"])).await {
                return Err(attributes.forbidden(format!(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {reason}, <nil>"
                )));
            }
        }
        Ok(())
    }
}

async fn may_finalize(
    server: &ApiServer,
    user: &UserInfo,
    (group, version, resource, namespace): (&str, &str, &str, &str),
    name: &str,
) -> Result<(), String> {
    let access = Access {
        is_resource: true,
        verb: "update",
        group,
        version,
        resource,
        namespace,
        subresource: "finalizers",
        name,
        ..Access::default()
    };
    let decision = decide(server, user, &access).await;
    if decision.is_allowed() { Ok(()) } else { Err(decision.reason) }
}
