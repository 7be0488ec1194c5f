//! Reviews: who is this token, and who may do what.

mod selectors;

use std::sync::Arc;

use api::field::{FieldError, Path};
use api::{ApiError, Object, ObjectExt as _, UserInfo};
use serde_json::{Value, json};

use crate::auth::authenticator::authenticated;
use crate::auth::rule::Rule;
use crate::auth::{Access, Verdict, decide};
use crate::pipeline::Context;
use crate::server::ApiServer;

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    context: &Context,
    resource: &str,
    mut review: Object,
) -> Result<Value, ApiError> {
    let status = match resource {
        "tokenreviews" => token(server, &review).await?,
        "selfsubjectreviews" => json!({"userInfo": user_json(&context.user)}),
        "selfsubjectrulesreviews" => rules(server, context, &review)?,
        "selfsubjectaccessreviews" | "subjectaccessreviews" | "localsubjectaccessreviews" => {
            if !review.namespace().is_empty() && review.namespace() != context.info.namespace {
                return Err(ApiError::bad_request(super::update::OTHER_NAMESPACE));
            }
            let errors = problems(resource, &context.info.namespace, &review);
            if !errors.is_empty() {
                return Err(ApiError::invalid(&context.info.group, "", "", &errors));
            }
            let of = if resource == "selfsubjectaccessreviews" { context.user.clone() } else { spec_user(&review) };
            access(server, &of, &review).await
        }
        _ => return Err(ApiError::no_such_resource()),
    };
    if matches!(resource, "selfsubjectreviews" | "selfsubjectrulesreviews") {
        // These are answered, not completed: nothing of the question is told again.
        review = Object::new();
        review.metadata();
    }
    if resource == "selfsubjectrulesreviews" {
        review.insert("spec".into(), json!({}));
    }
    review.insert("status".into(), status);
    review.insert("kind".into(), kind_of(resource).into());
    review.insert("apiVersion".into(), format!("{}/{}", context.info.group, context.info.version).into());
    if resource == "selfsubjectreviews" {
        review.metadata().insert("creationTimestamp".into(), super::now().into());
    }
    if resource == "localsubjectaccessreviews" {
        review.metadata().insert("namespace".into(), context.info.namespace.clone().into());
    }
    Ok(Value::Object(review))
}

/// What is wrong with a question about access.
fn problems(resource: &str, namespace: &str, review: &Object) -> Vec<FieldError> {
    const RESOURCE: &str = "spec.resourceAttributes";
    const PATH: &str = "spec.nonResourceAttributes";
    let part = |name: &str| review.at(&["spec", name]).filter(|part| !part.is_null());
    let (about, path) = (part("resourceAttributes"), part("nonResourceAttributes"));
    let mut errors = Vec::new();
    // Shown as upstream keeps it.
    let shown = |path: &Value| {
        let text = |field: &str| path.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        json!({"Path": text("path"), "Verb": text("verb")})
    };
    if let (Some(_), Some(path)) = (about, path) {
        let detail = "cannot be specified in combination with resourceAttributes";
        errors.push(FieldError::invalid(PATH, shown(path), detail));
    }
    if about.is_none() && path.is_none() {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(FieldError::invalid(RESOURCE, Value::Null, detail));
    }
    let groups = part("groups").and_then(Value::as_array).is_some_and(|groups| !groups.is_empty());
    if resource != "selfsubjectaccessreviews" && review.text(&["spec", "user"]).is_empty() && !groups {
        errors.push(FieldError::invalid("spec.user", "", "at least one of user or group must be specified"));
    }
    if let Some(about) = about.and_then(Value::as_object) {
        errors.extend(selectors::check(about, &Path::new(RESOURCE)));
    }
    let is_local = resource == "localsubjectaccessreviews";
    // Who manages its fields, and the namespace of its path, are all that may be told of the question itself.
    let of_itself = review.get("metadata").and_then(Value::as_object).into_iter().flatten();
    let mut of_itself = of_itself.filter(|(name, value)| match name.as_str() {
        "managedFields" => false,
        "namespace" => !is_local,
        _ => !value.is_null(),
    });
    if of_itself.next().is_some() {
        let detail = if is_local { "must be empty except for namespace" } else { "must be empty" };
        let shown = review.get("metadata").cloned().unwrap_or_default();
        errors.push(FieldError::invalid("metadata", shown, detail));
    }
    if is_local {
        let own = review.text(&["spec", "resourceAttributes", "namespace"]);
        if about.is_some() && own != namespace {
            errors.push(FieldError::invalid(format!("{RESOURCE}.namespace"), own, "must match metadata.namespace"));
        }
        if let Some(path) = path {
            errors.push(FieldError::invalid(PATH, shown(path), "disallowed on this kind of request"));
        }
    }
    errors
}

fn kind_of(resource: &str) -> &'static str {
    match resource {
        "tokenreviews" => "TokenReview",
        "selfsubjectreviews" => "SelfSubjectReview",
        "selfsubjectaccessreviews" => "SelfSubjectAccessReview",
        "subjectaccessreviews" => "SubjectAccessReview",
        "localsubjectaccessreviews" => "LocalSubjectAccessReview",
        _ => "SelfSubjectRulesReview",
    }
}

fn user_json(user: &UserInfo) -> Value {
    let mut value = json!({"username": user.name, "groups": user.groups});
    if let Some(map) = value.as_object_mut() {
        if !user.uid.is_empty() {
            map.insert("uid".into(), user.uid.clone().into());
        }
        if !user.extra.is_empty() {
            map.insert("extra".into(), json!(user.extra));
        }
    }
    value
}

fn spec_user(review: &Object) -> UserInfo {
    let groups = review.at(&["spec", "groups"]).cloned().unwrap_or_else(|| json!([]));
    UserInfo {
        name: review.text(&["spec", "user"]).to_owned(),
        uid: review.text(&["spec", "uid"]).to_owned(),
        groups: serde_json::from_value(groups).unwrap_or_default(),
        extra: review
            .at(&["spec", "extra"])
            .and_then(|all| serde_json::from_value(all.clone()).ok())
            .unwrap_or_default(),
    }
}

async fn token(server: &Arc<ApiServer>, review: &Object) -> Result<Value, ApiError> {
    let token = review.text(&["spec", "token"]);
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let asked = review.at(&["spec", "audiences"]).cloned().and_then(|list| serde_json::from_value(list).ok());
    let asked: Vec<String> = asked.unwrap_or_default();
    let wanted = if asked.is_empty() { server.config.api_audiences() } else { &asked };
    Ok(match server.authenticator.token(server, token, wanted).await {
        Ok((user, audiences)) => {
            json!({"authenticated": true, "user": user_json(&authenticated(user)), "audiences": audiences})
        }
        Err(error) => json!({"user": {}, "error": error}),
    })
}

async fn access(server: &Arc<ApiServer>, user: &UserInfo, review: &Object) -> Value {
    let field = |part: &'static str, key: &'static str| review.text(&["spec", part, key]);
    let is_resource = review.at(&["spec", "resourceAttributes"]).is_some_and(|part| !part.is_null());
    let part = if is_resource { "resourceAttributes" } else { "nonResourceAttributes" };
    let version = field(part, "version");
    let about = review.at(&["spec", part]).and_then(Value::as_object);
    let (selector, ignored) = about.map(selectors::read).unwrap_or_default();
    let asked = Access {
        is_resource,
        verb: field(part, "verb"),
        group: field(part, "group"),
        version: if is_resource && version.is_empty() { "*" } else { version },
        namespace: field(part, "namespace"),
        resource: field(part, "resource"),
        subresource: field(part, "subresource"),
        name: field(part, "name"),
        path: field(part, "path"),
        field_selector: selector.as_ref(),
    };
    let decision = decide(server, user, &asked).await;
    let mut status = json!({"allowed": decision.is_allowed()});
    if let Some(map) = status.as_object_mut() {
        if decision.verdict == Verdict::Deny {
            map.insert("denied".into(), true.into());
        }
        if !decision.reason.is_empty() {
            map.insert("reason".into(), decision.reason.into());
        }
        if !ignored.is_empty() {
            map.insert("evaluationError".into(), ignored.join("; ").into());
        }
    }
    status
}

fn rules(server: &Arc<ApiServer>, context: &Context, review: &Object) -> Result<Value, ApiError> {
    let namespace = review.text(&["spec", "namespace"]);
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let rules = match server.authorizer.has_rbac() {
        true => server.rbac.rules_for(&context.user, namespace),
        false => Vec::new(),
    };
    let told = |about: fn(&Rule) -> &[String]| -> Vec<Value> {
        rules.iter().filter(|rule| !about(rule).is_empty()).map(Rule::to_json).collect()
    };
    let resources = told(|rule| &rule.resources);
    let paths = told(|rule| &rule.non_resource_urls);
    let untold = server.authorizer.untold(&context.user);
    let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": untold.is_some()});
    if let (Some(why), Some(map)) = (untold, status.as_object_mut()) {
        map.insert("evaluationError".into(), why.into());
    }
    Ok(status)
}
