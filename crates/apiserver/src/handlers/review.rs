//! Reviews: who is this token, and who may do what.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _, UserInfo};
use serde_json::{Value, json};

use crate::auth;
use crate::pipeline::Context;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

pub(super) fn answer(
    server: &Arc<ApiServer>,
    context: &Context,
    resource: &str,
    mut review: Object,
) -> Result<Value, ApiError> {
    let status = match resource {
        "tokenreviews" => token(server, &review),
        "selfsubjectreviews" => json!({"userInfo": user_json(&context.user)}),
        "selfsubjectaccessreviews" => access(server, &context.user, &review)?,
        "localsubjectaccessreviews"
            if review.text(&["spec", "resourceAttributes", "namespace"]) != context.info.namespace =>
        {
            return Err(ApiError::bad_request("spec.resourceAttributes.namespace must match metadata.namespace"));
        }
        "subjectaccessreviews" | "localsubjectaccessreviews" => access(server, &spec_user(&review), &review)?,
        "selfsubjectrulesreviews" => rules(server, context, &review),
        _ => return Err(ApiError::no_such_resource()),
    };
    review.insert("status".into(), status);
    review.insert("kind".into(), kind_of(resource).into());
    review.insert("apiVersion".into(), format!("{}/{}", context.info.group, context.info.version).into());
    review.metadata().insert("creationTimestamp".into(), Value::Null);
    Ok(Value::Object(review))
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
        ..UserInfo::default()
    }
}

fn token(server: &Arc<ApiServer>, review: &Object) -> Value {
    let asked = review.at(&["spec", "audiences"]).cloned().and_then(|list| serde_json::from_value(list).ok());
    let wanted: Vec<String> = asked.unwrap_or_else(|| vec![server.config.service_account_issuer.clone()]);
    match auth::tokens::authenticate(server, review.text(&["spec", "token"]), &wanted) {
        Ok((user, audiences)) => json!({"authenticated": true, "user": user_json(&user), "audiences": audiences}),
        Err(error) => json!({"authenticated": false, "error": error.to_string()}),
    }
}

fn access(server: &Arc<ApiServer>, user: &UserInfo, review: &Object) -> Result<Value, ApiError> {
    let field = |part: &str, key: &str| review.text(&["spec", part, key]).to_owned();
    let info = if review.at(&["spec", "resourceAttributes"]).is_some() {
        let part = "resourceAttributes";
        RequestInfo {
            is_resource: true,
            verb: intern(&field(part, "verb")),
            group: field(part, "group"),
            version: field(part, "version"),
            namespace: field(part, "namespace"),
            resource: field(part, "resource"),
            subresource: field(part, "subresource"),
            name: field(part, "name"),
            ..RequestInfo::default()
        }
    } else if review.at(&["spec", "nonResourceAttributes"]).is_some() {
        let part = "nonResourceAttributes";
        RequestInfo { path: field(part, "path"), verb: intern(&field(part, "verb")), ..RequestInfo::default() }
    } else {
        return Err(ApiError::bad_request(
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ));
    };
    let decision = server.rbac.decide(user, &info);
    Ok(json!({"allowed": decision.allowed, "reason": decision.reason}))
}

/// Verbs are few; an unknown one matches only `*`.
fn intern(verb: &str) -> &'static str {
    const VERBS: [&str; 13] = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
        "bind",
        "escalate",
        "impersonate",
        "use",
        "*",
    ];
    VERBS.into_iter().find(|known| *known == verb).unwrap_or("unknown")
}

fn rules(server: &Arc<ApiServer>, context: &Context, review: &Object) -> Value {
    let mut resource_rules = Vec::new();
    let mut path_rules = Vec::new();
    for rule in server.rbac.rules_for(&context.user, review.text(&["spec", "namespace"])) {
        if !rule.resources.is_empty() {
            let mut entry = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if let (false, Some(map)) = (rule.resource_names.is_empty(), entry.as_object_mut()) {
                map.insert("resourceNames".into(), json!(rule.resource_names));
            }
            resource_rules.push(entry);
        }
        if !rule.non_resource_urls.is_empty() {
            path_rules.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    json!({"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": false})
}
