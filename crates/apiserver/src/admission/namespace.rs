//! NamespaceLifecycle: nothing is created in a namespace that does not exist or is going.

use std::sync::Arc;

use api::status::{Cause, Details};
use api::{ApiError, GroupResource, ObjectExt as _};

use super::{Attributes, Operation};
use crate::server::{ApiServer, store_error};

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) async fn lifecycle(server: &Arc<ApiServer>, attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let relevant = attributes.served.info.namespaced && attributes.operation == Operation::Create;
    let review = attributes.served.info.kind == "LocalSubjectAccessReview";
    if !relevant || review {
        return Ok(());
    }
    let namespaces = server.registry.find("", "v1", "namespaces").and_then(|served| served.cache.as_ref());
    let find = || namespaces.and_then(|cache| cache.get(attributes.namespace)).map(|stored| stored.decode());
    let namespace = match find() {
        Some(namespace) => Some(namespace),
        None => {
            server.feed.current().await.map_err(store_error)?;
            find()
        }
    };
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

pub(super) fn protect(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    if attributes.is("", "namespaces") && IMMORTAL.contains(&attributes.name) {
        return Err(attributes.forbidden("this namespace may not be deleted"));
    }
    Ok(())
}
