//! ValidatingAdmissionPolicy: puts a request to every policy in force, and tells the first denial.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::status::Cause;
use api::{ApiError, Object};
use async_trait::async_trait;
use serde_json::{Value as Json, json};

use super::definition::{Binding, Expression, Policy, Validation};
use super::evaluate::{BUDGET, Inputs, OutOfBudget, Session, conditions_hold};
use super::request;
use super::{Hook, params};
use crate::admission::rules::{self, Matched};
use crate::admission::{Attributes, Operation, Plugin};
use crate::convert;
use crate::registry::Served;
use crate::server::ApiServer;

/// Longer messages from an expression are not used, longer annotations are cut.
const LONGEST_MESSAGE: usize = 5 * 1024;
const LONGEST_ANNOTATION: usize = 10 * 1024;
const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// What a policy says about a request with one parameter.
struct Judgement {
    /// For each validation: why the request is denied.
    decisions: Vec<Option<Denial>>,
    annotations: Vec<(String, Annotation)>,
}

#[derive(Clone)]
struct Denial {
    message: String,
    reason: String,
}

enum Annotation {
    Publish(String),
    Exclude,
    Failed(String),
}

/// The first denial, with whom it comes from.
struct Denied {
    message: String,
    reason: String,
}

pub(crate) struct ValidatingAdmissionPolicy;

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        !rules::is_exempt(attributes)
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &Object,
    ) -> Result<(), ApiError> {
        validate(server, attributes, Some(object).filter(|_| attributes.operation != Operation::Delete)).await
    }
}

async fn validate(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: Option<&Object>,
) -> Result<(), ApiError> {
    let hooks = server.validating_policies.hooks();
    if hooks.is_empty() {
        return Ok(());
    }
    let mut denied = None;
    for hook in hooks.iter() {
        if let Some(denial) = consult(server, attributes, object, hook).await? {
            denied = denied.or(Some(denial));
        }
    }
    denied.map_or(Ok(()), |denied| Err(refusal(attributes, denied)))
}

fn refusal(attributes: &Attributes<'_>, denied: Denied) -> ApiError {
    let (code, reason) = match denied.reason.as_str() {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    let mut error = attributes.forbidden(&denied.message);
    (error.code, error.reason) = (code, reason);
    if let Some(details) = &mut error.details {
        details.causes.push(Cause { reason: String::new(), message: denied.message, field: String::new() });
    }
    error
}

/// What is wrong with the policy or a binding itself; passed over where failures are.
fn misconfigured(policy: &Policy, binding: Option<&Binding>, why: &str) -> Option<Denied> {
    if policy.ignores_failure {
        return None;
    }
    let what = if binding.is_some() { "binding" } else { "policy" };
    let message = format!("failed to configure {what}: {why}");
    Some(Denied { message: told(policy, binding, &message), reason: String::new() })
}

fn told(policy: &Policy, binding: Option<&Binding>, message: &str) -> String {
    let with = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
    format!("ValidatingAdmissionPolicy '{}'{with} denied request: {message}", policy.name)
}

/// One policy with all its bindings.
async fn consult(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: Option<&Object>,
    hook: &Hook,
) -> Result<Option<Denied>, ApiError> {
    let policy = &*hook.policy;
    let matched = match criteria(&policy.criteria, server, attributes, object) {
        Ok(Some(matched)) => matched,
        Ok(None) => return Ok(None),
        Err(why) => return Ok(misconfigured(policy, None, &why)),
    };
    if let Some(why) = params::unknown_kind(server, policy) {
        return Ok(misconfigured(policy, None, &why));
    }
    let seen = Seen::new(server, attributes, policy, &matched, object).await?;
    let mut first = None;
    let mut annotations: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for binding in &hook.bindings {
        match criteria(&binding.criteria, server, attributes, object) {
            Ok(Some(_)) => {}
            Ok(None) => continue,
            Err(why) => {
                first = first.or(misconfigured(policy, Some(binding), &why));
                continue;
            }
        }
        let all = match params::collect(server, policy, binding, attributes.namespace) {
            Ok(all) => all,
            Err(why) => {
                first = first.or(misconfigured(policy, Some(binding), &why));
                continue;
            }
        };
        let namespace = namespace_of(server, attributes, policy.reads_namespace)?;
        for param in &all {
            let judgement = judged(server, attributes, &seen, policy, param.as_ref(), namespace.as_ref()).await;
            for (index, denial) in judgement.decisions.iter().enumerate() {
                let Some(denial) = denial else { continue };
                let denied = act(attributes, policy, binding, index, denial);
                first = first.or(denied);
            }
            for (key, annotation) in judgement.annotations {
                match annotation {
                    Annotation::Publish(value) => {
                        let values = annotations.entry(key).or_default();
                        if !values.contains(&value) {
                            values.push(value);
                        }
                    }
                    Annotation::Exclude => {}
                    Annotation::Failed(why) => {
                        let message = told(policy, Some(binding), &why);
                        first = first.or(Some(Denied { message, reason: String::new() }));
                    }
                }
            }
        }
    }
    if let Some(context) = attributes.context {
        for (key, values) in annotations {
            context.annotate(format!("{}/{key}", policy.name), values.join(", "));
        }
    }
    Ok(first)
}

/// Does what the binding says is to be done about a denial; returns it if it counts.
fn act(
    attributes: &Attributes<'_>,
    policy: &Policy,
    binding: &Binding,
    index: usize,
    denial: &Denial,
) -> Option<Denied> {
    let mut counts = None;
    for action in &binding.actions {
        match (action.as_str(), attributes.context) {
            ("Deny", _) => {
                let message = told(policy, Some(binding), &denial.message);
                counts = Some(Denied { message, reason: denial.reason.clone() });
            }
            ("Warn", Some(context)) => context.warn(format!(
                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                policy.name, binding.name, denial.message
            )),
            ("Audit", Some(context)) => {
                let failure = json!([{
                    "message": denial.message, "policy": binding.policy, "binding": binding.name,
                    "expressionIndex": index, "validationActions": binding.actions,
                }]);
                context.annotate(FAILURE.to_owned(), failure.to_string());
            }
            _ => {}
        }
    }
    counts
}

pub(super) fn criteria(
    criteria: &Result<rules::Criteria, String>,
    server: &ApiServer,
    attributes: &Attributes<'_>,
    object: Option<&Object>,
) -> Result<Option<Matched>, String> {
    match criteria {
        Ok(criteria) => criteria.matches(server, attributes, object).map_err(|error| error.message),
        Err(why) => Err(why.clone()),
    }
}

/// The namespace of the request, which must be there even if nobody reads it; a namespace has none.
pub(super) fn namespace_of(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    is_read: bool,
) -> Result<Option<Json>, ApiError> {
    if attributes.namespace.is_empty() || rules::is_namespace(attributes.served) {
        return Ok(None);
    }
    let found = rules::namespace(server, attributes.namespace).ok_or_else(|| {
        let resource = api::GroupResource { group: "", resource: "namespaces" };
        ApiError::not_found(resource, attributes.namespace)
    })?;
    Ok(is_read.then(|| request::namespace(&found.decode())))
}

/// The objects in the version the policy asked for.
pub(super) struct Seen<'a> {
    pub(super) object: Option<std::borrow::Cow<'a, Object>>,
    pub(super) old: Option<std::borrow::Cow<'a, Object>>,
    pub(super) request: Json,
}

impl<'a> Seen<'a> {
    pub(super) async fn new(
        server: &ApiServer,
        attributes: &Attributes<'a>,
        policy: &Policy,
        matched: &Matched,
        object: Option<&'a Object>,
    ) -> Result<Self, ApiError> {
        use std::borrow::Cow;
        let request = |served: &Served| match policy.reads_request {
            true => request::request(attributes, served),
            false => Json::Null,
        };
        let as_served = async |served: &Served, object: Option<&'a Object>| match object {
            Some(object) if !attributes.is_of_another_kind() => {
                let converted = convert::to_version(server, attributes.served, served, object.clone()).await?;
                Ok::<_, ApiError>(Some(Cow::Owned(converted)))
            }
            object => Ok(object.map(Cow::Borrowed)),
        };
        let object = object.filter(|_| attributes.operation != Operation::Delete);
        Ok(match matched {
            Matched::Itself => Self {
                object: object.map(Cow::Borrowed),
                old: attributes.old.map(Cow::Borrowed),
                request: request(attributes.served),
            },
            Matched::As(served) => Self {
                object: as_served(served, object).await?,
                old: as_served(served, attributes.old).await?,
                request: request(served),
            },
        })
    }
}

async fn judged(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    seen: &Seen<'_>,
    policy: &Policy,
    param: Option<&Object>,
    namespace: Option<&Json>,
) -> Judgement {
    request::settled(server, attributes, |answers| {
        let inputs = Inputs {
            object: seen.object.as_deref(),
            old: seen.old.as_deref(),
            namespace,
            request: &seen.request,
            params: param,
            answers,
            resource: request::own_resource(attributes),
            variables: &policy.variables,
        };
        judge(policy, &inputs)
    })
    .await
}

fn judge<'a>(policy: &'a Policy, inputs: &Inputs<'a>) -> Judgement {
    let failed = |message: String| {
        let denial = (!policy.ignores_failure).then_some(Denial { message, reason: String::new() });
        Judgement { decisions: vec![denial], annotations: Vec::new() }
    };
    match conditions_hold(&policy.conditions, inputs, policy.ignores_failure) {
        Ok(true) => {}
        Ok(false) => return Judgement { decisions: Vec::new(), annotations: Vec::new() },
        Err(message) => return failed(message),
    }
    match decide(policy, inputs).and_then(|decisions| Ok((decisions, annotate(policy, inputs)?))) {
        Ok((decisions, annotations)) => Judgement { decisions, annotations },
        Err(error) => failed(error.to_string()),
    }
}

fn decide<'a>(policy: &'a Policy, inputs: &Inputs<'a>) -> Result<Vec<Option<Denial>>, OutOfBudget> {
    let mut session = Session::new(inputs, BUDGET);
    let mut verdicts = Vec::with_capacity(policy.validations.len());
    for validation in &policy.validations {
        verdicts.push(match session.run(&validation.expression)? {
            Ok(value) => Ok(value.as_bool() == Some(true)),
            Err(failure) => Err(failure),
        });
    }
    // Messages are paid from what is left.
    let mut messages = None;
    let mut spent = None;
    let mut decisions = Vec::with_capacity(verdicts.len());
    for (validation, verdict) in policy.validations.iter().zip(verdicts) {
        let own = match (&validation.message_expression, &spent) {
            (Some(expression), None) => {
                let session = messages.get_or_insert_with(|| Session::new(inputs, session.budget()));
                message(session, expression).unwrap_or_else(|error| {
                    spent = Some(error);
                    None
                })
            }
            _ => None,
        };
        decisions.push(match (verdict, &spent) {
            (Err(_), _) | (_, Some(_)) if policy.ignores_failure => None,
            (Err(message), _) => Some(Denial { message, reason: String::new() }),
            (_, Some(error)) => {
                Some(Denial { message: format!("failed messageExpression: {error}"), reason: String::new() })
            }
            (Ok(true), None) => None,
            (Ok(false), None) => Some(denial(validation, own)),
        });
    }
    Ok(decisions)
}

/// What a message expression says, if it is fit to be told.
fn message<'a>(session: &mut Session<'a>, expression: &'a Expression) -> Result<Option<String>, OutOfBudget> {
    let value = match session.run(expression)? {
        Ok(value) => value,
        Err(error) => {
            tracing::debug!(%error, "message expression failed");
            return Ok(None);
        }
    };
    let text = value.as_str().unwrap_or_default().trim();
    let fit = !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n');
    Ok(fit.then(|| text.to_owned()))
}

fn denial(validation: &Validation, own: Option<String>) -> Denial {
    let message = match own {
        Some(own) => own,
        None if !validation.message.is_empty() => validation.message.clone(),
        None => format!("failed expression: {}", validation.expression.text.trim()),
    };
    Denial { message, reason: validation.reason.clone() }
}

fn annotate<'a>(policy: &'a Policy, inputs: &Inputs<'a>) -> Result<Vec<(String, Annotation)>, OutOfBudget> {
    if policy.annotations.is_empty() {
        return Ok(Vec::new());
    }
    let mut session = Session::new(inputs, BUDGET);
    let mut annotations = Vec::with_capacity(policy.annotations.len());
    for (key, expression) in &policy.annotations {
        let annotation = match session.run(expression)? {
            Err(_) if policy.ignores_failure => Annotation::Exclude,
            Err(failure) => Annotation::Failed(failure),
            Ok(cel::Value::Null) => Annotation::Exclude,
            Ok(value) => match value.as_str().map(str::trim) {
                Some("") => Annotation::Exclude,
                Some(text) => Annotation::Publish(cut(text)),
                None => Annotation::Failed(format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                    expression.text,
                    value.type_name()
                )),
            },
        };
        annotations.push((key.clone(), annotation));
    }
    Ok(annotations)
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(LONGEST_ANNOTATION);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
