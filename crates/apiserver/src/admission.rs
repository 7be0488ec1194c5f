//! Admission: rules that need the cluster's state, in upstream's order.

pub(crate) mod allocate;
mod namespace;
mod pods;
pub(crate) mod quota;
mod service_account;

use std::sync::Arc;

use api::{ApiError, Object};
use serde_json::json;

use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

/// What is about to be written, and by whom.
pub(crate) struct Attributes<'a> {
    pub(crate) operation: Operation,
    pub(crate) served: &'a Served,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) subresource: &'a str,
    /// The request it comes from; `None` for what the server does on its own.
    pub(crate) context: Option<&'a Context>,
    /// The object as it is, where there is one.
    pub(crate) old: Option<&'a Object>,
}

impl Attributes<'_> {
    /// The resource itself, not one of its subresources.
    fn is(&self, group: &str, plural: &str) -> bool {
        self.served.info.group == group && self.served.info.plural == plural && self.subresource.is_empty()
    }

    pub(crate) fn forbidden(&self, why: impl std::fmt::Display) -> ApiError {
        ApiError::forbidden(self.served.group_resource(), self.name, why)
    }
}

/// The plugins that change objects.
pub(crate) async fn mutate(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
) -> Result<(), ApiError> {
    namespace::lifecycle(server, attributes).await?;
    match attributes.operation {
        Operation::Create if attributes.is("", "pods") => {
            service_account::admit(server, attributes, object).await?;
            pods::priority(server, attributes, object)?;
            pods::default_toleration_seconds(object);
        }
        Operation::Create if attributes.is("", "nodes") => taint_new_node(object),
        _ => (),
    }
    Ok(())
}

/// The plugins that only judge; and the choice of what the object is to hold, for the write to claim.
pub(crate) async fn validate(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
) -> Result<(), ApiError> {
    if attributes.operation == Operation::Delete {
        return namespace::protect(attributes);
    }
    if attributes.is("scheduling.k8s.io", "priorityclasses") {
        server.feed.current().await.map_err(crate::server::store_error)?;
        return pods::one_default(server, attributes, object);
    }
    if attributes.is("", "services") {
        server.feed.current().await.map_err(crate::server::store_error)?;
        return allocate::service(server, attributes, object);
    }
    Ok(())
}

/// A node takes no pods until it has said that it is ready.
fn taint_new_node(node: &mut Object) {
    const KEY: &str = "node.kubernetes.io/not-ready";
    let spec = api::ObjectExt::at_mut(node, &["spec"]);
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    if let Some(list) = taints.as_array_mut()
        && !list.iter().any(|taint| taint.get("key").is_some_and(|key| key == KEY))
    {
        list.push(json!({"key": KEY, "effect": "NoSchedule"}));
    }
}
