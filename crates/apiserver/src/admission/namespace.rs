//! NamespaceLifecycle: nothing is created in a namespace that does not exist or is going.

use std::sync::Arc;

use api::status::{Cause, Details};
use api::{ApiError, GroupResource, Object, ObjectExt as _};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::server::{ApiServer, store_error};

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) struct Lifecycle;

#[async_trait]
impl Plugin for Lifecycle {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        match attributes.operation {
            Operation::Create => attributes.served.info.namespaced,
            Operation::Update => false,
            Operation::Delete => attributes.is("", "namespaces"),
            Operation::Connect => false,
        }
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        _: &mut Object,
    ) -> Result<(), ApiError> {
        match attributes.operation {
            Operation::Delete if IMMORTAL.contains(&attributes.name) => {
                Err(attributes.forbidden("this namespace may not be deleted"))
            }
            Operation::Create => accepts_more(server, attributes).await,
            _ => Ok(()),
        }
    }
}

/// The namespace as it is known here, or else as the store has it.
pub(super) async fn find(server: &ApiServer, name: &str) -> Result<Option<Object>, ApiError> {
    let find = || server.cached("", "namespaces", name);
    if let Some(namespace) = find() {
        return Ok(Some(namespace));
    }
    server.feed.current().await.map_err(store_error)?;
    Ok(find())
}

async fn accepts_more(server: &ApiServer, attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let namespace = find(server, attributes.namespace).await?;
    let resource = GroupResource { group: "", resource: "namespaces" };
    let namespace = namespace.ok_or_else(|| ApiError::not_found(resource, attributes.namespace))?;
    if !namespace.is_terminating() {
        return Ok(());
    }
    let name = attributes.namespace;
    let why = format!("unable to create new content in namespace {name} because it is being terminated");
    let error = attributes.forbidden(why);
    let cause = Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {name} is being terminated"),
        field: "metadata.namespace".into(),
    };
    let details = error.details.as_deref().cloned().unwrap_or_default();
    Err(error.with(Details { causes: vec![cause], ..details }))
}
