//! Admission: rules that need the cluster's state or the user, as plugins in upstream's order.

pub(crate) mod allocate;
mod always_pull_images;
mod certificates;
mod chain;
pub(crate) mod devices;
mod event_rate_limit;
mod image_policy;
mod limit_ranger;
pub(crate) mod match_conditions;
mod namespace;
mod node_declared_features;
mod node_restriction;
mod node_taint;
mod placement;
mod pod_resize;
mod pod_security;
mod pods;
pub(crate) mod policy;
pub(crate) mod quota;
mod refusals;
mod reinvocation;
pub(crate) mod rules;
mod runtime_class;
mod service_account;
mod storage;
mod tolerations;
pub(crate) mod webhook;

use std::sync::Arc;

use api::schema::{self, Type};
use api::{ApiError, Object, UserInfo};
use async_trait::async_trait;
use serde_json::Value;

pub(crate) use self::chain::Chain;
pub use self::chain::{AdmissionError, AdmissionSettings};
pub(crate) use self::reinvocation::Reinvocation;
use crate::handlers::DeleteOptions;
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// What is about to be written, and by whom.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a> {
    pub(crate) operation: Operation,
    pub(crate) served: &'a Served,
    pub(crate) namespace: &'a str,
    /// None yet where the server is to make one.
    pub(crate) name: &'a str,
    /// What that one will begin with.
    pub(crate) generate_name: &'a str,
    pub(crate) subresource: &'a str,
    /// The request it comes from; `None` for what the server does on its own.
    pub(crate) context: Option<&'a Context>,
    pub(crate) dry_run: bool,
    /// The object as it is, where there is one.
    pub(crate) old: Option<&'a Object>,
    /// How it is to be deleted.
    pub(crate) delete_options: Option<&'a DeleteOptions>,
}

impl Attributes<'_> {
    /// The resource itself, not one of its subresources.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
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

    /// What kind the object is of, were the request made for `served`: a subresource may have one of its own.
    pub(crate) fn kind<'b>(&self, served: &'b Served) -> (&'b str, &'b str, &'b str) {
        let (group, version) = (served.info.group.as_str(), served.info.version.as_str());
        let own = served.info.subresources.iter().find(|sub| sub.name == self.subresource);
        match own.map(|sub| (&sub.group_version, sub.kind.as_str())) {
            None => (group, version, &served.info.kind),
            Some((None, kind)) => (group, version, kind),
            Some((Some((group, version)), kind)) => (group, version, kind),
        }
    }

    /// The object is none of the resource's: a Scale, a Binding, how to run a command.
    pub(crate) fn is_of_another_kind(&self) -> bool {
        let info = &self.served.info;
        self.kind(self.served) != (info.group.as_str(), info.version.as_str(), info.kind.as_str())
    }

    pub(crate) fn forbidden(&self, why: impl std::fmt::Display) -> ApiError {
        let name = if self.name.is_empty() { self.generate_name } else { self.name };
        ApiError::forbidden(self.served.group_resource(), name, why)
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

/// The objects that configure admission. A webhook or policy that is missing here admits everything.
const RULES: [(&str, &str); 7] = [
    ("", "limitranges"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
];

/// A client's write is refused while a rule exists of which no state is known: it was unreadable when this server started.
fn check_rules(server: &ApiServer, attributes: &Attributes<'_>) -> Result<(), ApiError> {
    if attributes.context.is_none() {
        return Ok(());
    }
    let caches = RULES.iter().filter_map(|(group, plural)| server.registry.stored(group, plural)?.cache.as_ref());
    caches.into_iter().try_for_each(|cache| cache.snapshot().check_known())
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
    check_rules(server, attributes)?;
    let mut rounds = [Reinvocation::default(), Reinvocation::default()];
    if admit(server, attributes, object, &mut rounds).await? {
        // What a policy or a webhook changed is seen once more by all who came before it.
        rounds.iter_mut().for_each(Reinvocation::reinvoke);
        admit(server, attributes, object, &mut rounds).await?;
    }
    Ok(())
}

/// One round of all; whether policies or webhooks changed anything.
async fn admit(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
    [policies, webhooks]: &mut [Reinvocation; 2],
) -> Result<bool, ApiError> {
    for plugin in server.admission.plugins().filter(|plugin| plugin.handles(attributes)) {
        plugin.admit(server, attributes, object).await?;
    }
    let mut is_changed = false;
    if server.admission.is_on(policy::mutating::NAME) {
        is_changed |= policy::mutating::mutate(server, attributes, object, policies).await?;
    }
    if server.admission.is_on(webhook::mutating::NAME) {
        is_changed |= webhook::mutating::mutate(server, attributes, object, webhooks).await?;
    }
    Ok(is_changed)
}

/// Fits what somebody else made of an object to its kind, and defaults what is new in it; also tells what the kind does not
/// know, which is left out.
fn refit(attributes: &Attributes<'_>, served: &Served, mut value: Value) -> Result<(Object, Vec<String>), String> {
    let own = attributes.is_of_another_kind();
    let (group, version, kind) = attributes.kind(served);
    let schema: Option<&Type> = if own { schema::of_kind(group, version, kind) } else { Some(&served.schema) };
    let unknown = schema.map(|schema| api::decode::conform(&mut value, schema)).transpose();
    let unknown = unknown.map_err(|error| error.to_string())?.unwrap_or_default();
    let Value::Object(mut object) = value else { return Err("it is no object any more".to_owned()) };
    if !own {
        served.strategy().default(&mut object);
    }
    if let Some(schema) = schema {
        api::decode::complete(&mut object, schema);
    }
    Ok((object, unknown))
}

/// Why nothing of this name can be asked for, in the words of upstream's client.
fn unaskable(name: &str) -> Option<String> {
    let wrong = api::validation::is_path_segment(name);
    match name {
        "" => Some("resource name may not be empty".to_owned()),
        _ if wrong.is_empty() => None,
        _ => Some(format!("invalid resource name {name:?}: [{}]", wrong.join(" "))),
    }
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

/// Chooses what the object is to hold, for the write to claim.
pub(crate) async fn choose(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
) -> Result<(), ApiError> {
    if !attributes.is("", "services") {
        return Ok(());
    }
    server.feed.current().await.map_err(crate::server::store_error)?;
    allocate::service(server, attributes, object)
}
