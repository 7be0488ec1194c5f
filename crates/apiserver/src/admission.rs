//! Admission: rules that need the cluster's state or the user, as plugins in upstream's order.

pub(crate) mod allocate;
mod always_pull_images;
mod certificates;
mod chain;
mod event_rate_limit;
mod image_policy;
mod limit_ranger;
pub(crate) mod match_conditions;
mod namespace;
mod node_restriction;
mod node_taint;
mod placement;
mod pod_resize;
mod pod_security;
mod pods;
pub(crate) mod policy;
pub(crate) mod quota;
mod refusals;
pub(crate) mod rules;
mod runtime_class;
mod service_account;
mod storage;
mod tolerations;

use std::sync::Arc;

use api::{ApiError, Object, UserInfo};
use async_trait::async_trait;

pub(crate) use self::chain::Chain;
pub use self::chain::{AdmissionError, AdmissionSettings};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
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
    pub(crate) dry_run: bool,
    /// The object as it is, where there is one.
    pub(crate) old: Option<&'a Object>,
}

impl Attributes<'_> {
    /// The resource itself, not one of its subresources.
    fn is(&self, group: &str, plural: &str) -> bool {
        self.is_of(group, plural) && self.subresource.is_empty()
    }

    /// The resource or any of its subresources.
    fn is_of(&self, group: &str, plural: &str) -> bool {
        self.served.info.group == group && self.served.info.plural == plural
    }

    fn creates(&self, group: &str, plural: &str) -> bool {
        self.operation == Operation::Create && self.is(group, plural)
    }

    fn user(&self) -> Option<&UserInfo> {
        self.context.map(|context| &context.user)
    }

    pub(crate) fn forbidden(&self, why: impl std::fmt::Display) -> ApiError {
        ApiError::forbidden(self.served.group_resource(), self.name, why)
    }
}

/// One admission plugin. What is deleted comes as an empty object; how it was is in the attributes.
#[async_trait]
pub(crate) trait Plugin: Send + Sync {
    /// It has something to say; asked first, so that what does not concern it costs nothing.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;

    /// Changes the object, or refuses.
    async fn admit(
        &self,
        _server: &Arc<ApiServer>,
        _attributes: &Attributes<'_>,
        _object: &mut Object,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    /// Only judges, once the object is final.
    async fn validate(
        &self,
        _server: &Arc<ApiServer>,
        _attributes: &Attributes<'_>,
        _object: &Object,
    ) -> Result<(), ApiError> {
        Ok(())
    }
}

/// The plugins that change objects.
pub(crate) async fn mutate(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
) -> Result<(), ApiError> {
    let is_ending = attributes.served.custom().is_some_and(|custom| custom.definition.is_terminating);
    if is_ending && attributes.operation == Operation::Create {
        return Err(attributes.forbidden("create not allowed while custom resource definition is terminating"));
    }
    admit(server, attributes, object).await?;
    if !server.admission.is_on(policy::mutating::NAME) {
        return Ok(());
    }
    let mut invoked = policy::mutating::Invoked::default();
    if policy::mutating::mutate(server, attributes, object, &mut invoked).await? {
        // What a policy changed is seen once more by all who came before it.
        admit(server, attributes, object).await?;
        invoked.reinvoke();
        policy::mutating::mutate(server, attributes, object, &mut invoked).await?;
    }
    Ok(())
}

async fn admit(server: &Arc<ApiServer>, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), ApiError> {
    for plugin in server.admission.plugins().filter(|plugin| plugin.handles(attributes)) {
        plugin.admit(server, attributes, object).await?;
    }
    Ok(())
}

/// The plugins that only judge.
pub(crate) async fn judge(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &Object,
) -> Result<(), ApiError> {
    for plugin in server.admission.plugins().filter(|plugin| plugin.handles(attributes)) {
        plugin.validate(server, attributes, object).await?;
    }
    Ok(())
}

/// The plugins that only judge; and the choice of what the object is to hold, for the write to claim.
pub(crate) async fn validate(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
) -> Result<(), ApiError> {
    judge(server, attributes, object).await?;
    if attributes.is("", "services") && attributes.operation != Operation::Delete {
        server.feed.current().await.map_err(crate::server::store_error)?;
        return allocate::service(server, attributes, object);
    }
    Ok(())
}
