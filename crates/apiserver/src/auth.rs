//! Who a request is from, and whether they may.

mod abac;
pub(crate) mod authenticator;
pub(crate) mod authorizer;
pub(crate) mod discovery;
pub(crate) mod escalation;
mod expression;
mod impersonation;
mod jwt;
pub(crate) mod keys;
pub(crate) mod node;
mod oidc;
pub(crate) mod rbac;
pub(crate) mod reload;
pub(crate) mod request_header;
pub(crate) mod rule;
pub(crate) mod settings;
mod token_file;
pub(crate) mod tokens;
pub(crate) mod webhook;
pub(crate) mod x509;

use api::selector::FieldSelector;
use api::{ApiError, GroupResource, UserInfo};

pub(crate) use self::authenticator::{ClientCertificate, authenticate, remove_credentials};
pub(crate) use self::impersonation::impersonate;
use crate::pipeline::Context;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

/// Where a user's `extra` tells by which credential it was known.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// What somebody wants to do: all that authorizers decide on beside who it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access<'a> {
    pub(crate) is_resource: bool,
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) name: &'a str,
    /// Of what is no resource.
    pub(crate) path: &'a str,
    /// What a list or watch is restricted to.
    pub(crate) field_selector: Option<&'a FieldSelector>,
}

impl Access<'_> {
    /// Only objects with exactly this value are asked for.
    fn selects(&self, field: &str, value: &str) -> bool {
        self.field_selector
            .is_some_and(|selector| selector.0.iter().any(|r| r.equals && r.field == field && r.value == value))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    /// No authorizer further down the chain is asked.
    Deny,
    NoOpinion,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
}

impl Decision {
    pub(crate) fn allow(reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::Allow, reason: reason.into() }
    }

    pub(crate) fn no_opinion(reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::NoOpinion, reason: reason.into() }
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }
}

pub(crate) async fn decide(server: &ApiServer, user: &UserInfo, access: &Access<'_>) -> Decision {
    server.authorizer.decide(server, user, access).await
}

/// Whether the request as a whole may be performed; says why.
pub(crate) async fn authorize_request(server: &ApiServer, context: &mut Context) -> Result<(), ApiError> {
    let decision = match context.refused.take() {
        Some(refused) => Err(refused),
        None => authorize(server, &context.user, &context.info).await,
    };
    // What a client chose is in the words of a refusal.
    context.forbid_sniffing(decision.is_err());
    context.decision = Some(decision?);
    Ok(())
}

/// Says why they may.
pub(crate) async fn authorize(server: &ApiServer, user: &UserInfo, info: &RequestInfo) -> Result<String, ApiError> {
    check(server, user, &info.access()).await
}

async fn check(server: &ApiServer, user: &UserInfo, access: &Access<'_>) -> Result<String, ApiError> {
    let decision = decide(server, user, access).await;
    if decision.is_allowed() { Ok(decision.reason) } else { Err(forbidden(user, access, &decision.reason)) }
}

fn forbidden(user: &UserInfo, access: &Access<'_>, reason: &str) -> ApiError {
    let (name, verb) = (&user.name, access.verb);
    let mut why = if access.is_resource {
        let resource = match access.subresource {
            "" => access.resource.to_owned(),
            sub => format!("{}/{sub}", access.resource),
        };
        let place = match access.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!("User {name:?} cannot {verb} resource {resource:?} in API group {:?} {place}", access.group)
    } else {
        format!("User {name:?} cannot {verb} path {:?}", access.path)
    };
    // What a client chose must not become markup in somebody's browser.
    why = why.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    if !reason.is_empty() {
        why = format!("{why}: {reason}");
    }
    ApiError::forbidden(GroupResource { group: access.group, resource: access.resource }, access.name, why)
}
