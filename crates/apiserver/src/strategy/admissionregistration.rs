//! Webhook configurations, admission policies and their bindings, with the expressions in them.

use std::collections::HashSet;

use api::field::FieldError;
use api::validation::{is_dns_1035, is_path_segment, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use cel::policy::{Compiled, Compiler, Returns};
use serde_json::json;

use super::check::{At, check};
use super::{Strategy, items_mut, set_default};

const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
const REINVOCATIONS: [&str; 2] = ["IfNeeded", "Never"];
const HARMLESS: [&str; 2] = ["None", "NoneOnDryRun"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MUTATING_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const LONGEST_TIMEOUT: i64 = 30;
const MOST_CONDITIONS: usize = 64;
const MOST_ANNOTATIONS: usize = 20;
const LONGEST_ANNOTATION: usize = 5 * 1024;
const URL_FORM: &str = "; desired format: https://host[/path]";

pub(super) struct WebhookConfigurations;

impl Strategy for WebhookConfigurations {
    fn counts_empties(&self) -> Option<&'static str> {
        Some("webhooks")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        let mutating = object.text(&["kind"]).starts_with("Mutating");
        for webhook in items_mut(object, "webhooks") {
            set_default(webhook, &["failurePolicy"], "Fail");
            set_default(webhook, &["timeoutSeconds"], 10);
            match_defaults(webhook);
            if mutating {
                set_default(webhook, &["reinvocationPolicy"], "Never");
            }
            if webhook.at(&["clientConfig", "service"]).is_some() {
                set_default(webhook, &["clientConfig", "service", "port"], 443);
            }
            items_mut(webhook, "rules").for_each(|rule| set_default(rule, &["scope"], "*"));
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let mut names = HashSet::new();
            for hook in at.each("webhooks") {
                webhook(&hook);
                reviews(&hook.field("admissionReviewVersions"));
                let name = hook.field("name");
                if !name.is_empty() && !names.insert(name.text()) {
                    name.duplicate();
                }
            }
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        reserved_name(object)
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        if subresource.is_empty() { reserved_name(new) } else { Vec::new() }
    }
}

/// Names that belong to configurations read from files, which upstream has behind a gate that is off.
fn reserved_name(object: &Object) -> Vec<String> {
    const SUFFIX: &str = ".static.k8s.io";
    let warning = || {
        format!(
            "metadata.name: names ending with {SUFFIX:?} are reserved for static manifest-based configurations and cannot be managed \
             via the API"
        )
    };
    object.name().ends_with(SUFFIX).then(warning).into_iter().collect()
}

fn match_defaults(object: &mut Object) {
    set_default(object, &["matchPolicy"], "Equivalent");
    set_default(object, &["namespaceSelector"], json!({}));
    set_default(object, &["objectSelector"], json!({}));
}

fn webhook(at: &At<'_>) {
    let name = at.field("name");
    if name.needed() {
        let details = is_subdomain(name.text());
        if !details.is_empty() {
            name.invalid(details.join(","));
        } else if name.text().split('.').count() < 3 {
            name.invalid("should be a domain with at least three segments separated by dots");
        }
    }
    at.each("rules").iter().for_each(|one| rule(one, &OPERATIONS));
    at.field("failurePolicy").one_of_if_set(&FAILURE_POLICIES);
    at.field("matchPolicy").one_of_if_set(&MATCH_POLICIES);
    match at.field("sideEffects").exists() {
        true => at.field("sideEffects").one_of(&HARMLESS),
        false => at.field("sideEffects").required("must specify one of None, NoneOnDryRun"),
    }
    let timeout = at.field("timeoutSeconds");
    if timeout.number().is_some_and(|seconds| !(1..=LONGEST_TIMEOUT).contains(&seconds)) {
        timeout.invalid("the timeout value must be between 1 and 30 seconds");
    }
    at.field("namespaceSelector").selector();
    at.field("objectSelector").selector();
    at.field("reinvocationPolicy").one_of_if_set(&REINVOCATIONS);
    let client = at.field("clientConfig");
    match (client.field("url").exists(), client.field("service").exists()) {
        (true, false) => url(&client.field("url")),
        (false, true) => service(&client.field("service")),
        _ => client.required("exactly one of url or service is required"),
    }
    match_conditions(&at.field("matchConditions"), false);
}

fn reviews(versions: &At<'_>) {
    if versions.is_empty() {
        return versions.required("must specify one of v1, v1beta1");
    }
    let mut seen = HashSet::new();
    for version in versions.items() {
        match seen.insert(version.text()) {
            true => version.named(is_dns_1035),
            false => version.invalid("duplicate version"),
        }
    }
    if !REVIEWS.iter().any(|known| seen.contains(known)) {
        versions.invalid("must include at least one of v1, v1beta1");
    }
}

pub(super) fn url(at: &At<'_>) {
    let text = at.text();
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let refuse = |value: &str, detail: String| at.complain(FieldError::invalid(at.path(), value, detail));
    if scheme != "https" {
        refuse(scheme, format!("'https' is the only allowed URL scheme{URL_FORM}"));
    }
    if host.is_empty() {
        refuse(host, format!("host must be specified{URL_FORM}"));
    }
    if let Some(user) = user {
        refuse(user, "user information is not permitted in the URL".to_owned());
    }
    if !fragment.is_empty() {
        refuse(fragment, "fragments are not permitted in the URL".to_owned());
    }
    if !query.is_empty() {
        refuse(query, "query parameters are not permitted in the URL".to_owned());
    }
}

pub(super) fn service(at: &At<'_>) {
    // Upstream mixes the two up when it asks for them.
    for (empty, told) in [("namespace", "name"), ("name", "namespace")] {
        if at.field(empty).is_empty() {
            at.field(told).required("");
        }
    }
    let port = at.field("port");
    if !port.number().is_some_and(|number| (1..=65535).contains(&number)) {
        port.complain(FieldError::invalid(
            port.path(),
            port.number().unwrap_or(0),
            "port is not valid: must be between 1 and 65535, inclusive",
        ));
    }
    let path = at.field("path");
    match path.text() {
        "" | "/" => return,
        "//" => return path.invalid("segment[0] may not be empty"),
        text if !text.starts_with('/') => path.invalid("must start with a '/'"),
        _ => (),
    }
    // The first character is passed over even if it is none of a path.
    let rest: String = path.text().chars().skip(1).collect();
    for (index, step) in rest.strip_suffix('/').unwrap_or(&rest).split('/').enumerate() {
        if step.is_empty() {
            path.invalid(format!("segment[{index}] may not be empty"));
            continue;
        }
        is_subdomain(step).iter().for_each(|detail| path.invalid(format!("segment[{index}]: {detail}")));
    }
}

fn rule(at: &At<'_>, operations: &[&str]) {
    let asked = at.field("operations");
    list(&asked, "operations");
    asked.items().iter().for_each(|operation| operation.one_of(operations));
    list(&at.field("apiGroups"), "API groups");
    let versions = at.field("apiVersions");
    list(&versions, "API versions");
    for version in versions.items() {
        version.needed();
    }
    resources(&at.field("resources"));
    at.field("scope").one_of_if_set(&["*", "Cluster", "Namespaced"]);
}

/// Something; and `*` stands alone.
fn list(at: &At<'_>, what: &str) {
    at.needed();
    if at.count() > 1 && at.items().iter().any(|item| item.text() == "*") {
        at.invalid(format!("if '*' is present, must not specify other {what}"));
    }
}

fn resources(at: &At<'_>) {
    at.needed();
    let (mut whole, mut anywhere) = (HashSet::new(), HashSet::new());
    // Upstream remembers only whether the last resource without a subresource was a name.
    let mut plain = false;
    for item in at.items() {
        let text = item.text();
        if text.is_empty() {
            item.required("");
            continue;
        }
        let Some((resource, sub)) = text.split_once('/') else {
            plain = text != "*";
            continue;
        };
        if whole.contains(resource) {
            item.invalid(format!("if '{resource}/*' is present, must not specify {text}"));
        }
        if anywhere.contains(sub) {
            item.invalid(format!("if '*/{sub}' is present, must not specify {text}"));
        }
        if sub == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            anywhere.insert(sub);
        }
    }
    let has = |wanted: &str| at.items().iter().any(|item| item.text() == wanted);
    if at.count() > 1 && has("*/*") {
        at.invalid("if '*/*' is present, must not specify other resources");
    }
    if has("*") && plain {
        at.invalid("if '*' is present, must not specify other resources without subresources");
    }
}

fn match_conditions(at: &At<'_>, params: bool) {
    if at.count() > MOST_CONDITIONS {
        at.complain(FieldError::too_many(at.path(), at.count(), MOST_CONDITIONS));
    }
    let mut names = HashSet::new();
    for condition in at.items() {
        let (expression, name) = (condition.field("expression"), condition.field("name"));
        match expression.text().trim() {
            "" => expression.required(""),
            text => told(&expression, text, Compiler::new(params, false).compile(text, Returns::Bool, true)),
        }
        name.needed_named(is_qualified_name);
        if !name.is_empty() && !names.insert(name.text()) {
            name.duplicate();
        }
    }
}

/// What is wrong with an expression, told as its text was read.
fn told(at: &At<'_>, text: &str, compiled: Compiled) {
    let Err(failure) = compiled else { return };
    at.complain(match failure.internal {
        false => FieldError::invalid(at.path(), text, failure.detail),
        true => FieldError::internal(at.path(), failure.detail),
    });
}

pub(super) struct Policies;

impl Strategy for Policies {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "failurePolicy"], "Fail");
        resource_defaults(object, "matchConstraints");
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mutating = object.text(&["kind"]).starts_with("Mutating");
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("failurePolicy").one_of_if_set(&FAILURE_POLICIES);
            if spec.field("paramKind").exists() {
                param_kind(&spec.field("paramKind"));
            }
            let constraints = spec.field("matchConstraints");
            match constraints.exists() {
                false => constraints.required(""),
                true => {
                    matching(&constraints);
                    constraints.field("resourceRules").needed();
                    if mutating {
                        mutating_operations(&constraints);
                    }
                }
            }
            let params = spec.field("paramKind").exists();
            match_conditions(&spec.field("matchConditions"), params);
            let mut compiler = Compiler::new(params, mutating || !spec.field("variables").is_empty());
            spec.each("variables").iter().for_each(|at| variable(at, &mut compiler));
            if mutating { mutations(&spec, &compiler) } else { validations(&spec, object.name(), &compiler) }
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            for warning in at.at(&["status", "typeChecking", "expressionWarnings"]).items() {
                for field in ["warning", "fieldRef"] {
                    warning.field(field).needed();
                }
            }
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        reserved_name(object)
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        if subresource.is_empty() { reserved_name(new) } else { Vec::new() }
    }
}

fn resource_defaults(object: &mut Object, field: &str) {
    if object.at(&["spec", field]).is_none() {
        return;
    }
    let constraints = object.at_mut(&["spec", field]);
    match_defaults(constraints);
    for list in ["resourceRules", "excludeResourceRules"] {
        items_mut(constraints, list).for_each(|rule| set_default(rule, &["scope"], "*"));
    }
}

fn matching(at: &At<'_>) {
    at.field("matchPolicy").one_of_if_set(&MATCH_POLICIES);
    at.field("namespaceSelector").selector();
    at.field("objectSelector").selector();
    for list in ["resourceRules", "excludeResourceRules"] {
        for one in at.each(list) {
            let mut seen = HashSet::new();
            for name in one.each("resourceNames") {
                name.named(is_path_segment);
                if !seen.insert(name.text()) {
                    name.duplicate();
                }
            }
            rule(&one, &OPERATIONS);
        }
    }
}

/// What is deleted cannot be changed.
fn mutating_operations(at: &At<'_>) {
    let place = at.path().child("resourceRules").child("operations");
    for rule in at.each("resourceRules") {
        for operation in rule.each("operations") {
            operation.called(place.clone()).one_of(&MUTATING_OPERATIONS);
        }
    }
}

fn param_kind(at: &At<'_>) {
    let version = at.field("apiVersion");
    let refuse = |value: &str, detail: String| version.complain(FieldError::invalid(version.path(), value, detail));
    if version.needed() {
        let parts: Vec<&str> = version.text().split('/').collect();
        let (group, name) = match parts.as_slice() {
            [name] => ("", *name),
            [group, name] => (*group, *name),
            _ => {
                refuse(version.text(), format!("unexpected GroupVersion string: {}", version.text()));
                ("", "v1")
            }
        };
        if !group.is_empty() && !is_subdomain(group).is_empty() {
            refuse(group, is_subdomain(group).join(","));
        }
        if name.is_empty() {
            refuse(version.text(), "version must be specified".to_owned());
        } else if !is_dns_1035(name).is_empty() {
            refuse(name, is_dns_1035(name).join(","));
        }
    }
    let kind = at.field("kind");
    if kind.needed() {
        let details = is_dns_1035(&kind.text().to_lowercase());
        if !details.is_empty() {
            kind.invalid(format!("may have mixed case, but should otherwise match: {}", details.join(",")));
        }
    }
}

fn variable(at: &At<'_>, compiler: &mut Compiler) {
    let (name, expression) = (at.field("name"), at.field("expression"));
    match name.text().trim() {
        "" => name.required("name is not specified"),
        text => {
            let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            if !starts || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                name.invalid("must be a valid CEL identifier");
            }
        }
    }
    match expression.text().trim() {
        "" => expression.required("expression is not specified"),
        _ => told(&expression, expression.text(), compiler.variable(name.text(), expression.text())),
    }
}

fn validations(spec: &At<'_>, policy: &str, compiler: &Compiler) {
    let (validations, annotations) = (spec.field("validations"), spec.field("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for list in [validations, annotations] {
            list.required("validations or auditAnnotations must contain at least one item");
        }
        return;
    }
    for one in validations.items() {
        let expression = one.field("expression");
        match expression.text().trim() {
            "" => expression.required("expression is not specified"),
            _ => {
                let compiled = compiler.compile(expression.text(), Returns::Bool, true);
                told(&expression, expression.text(), compiled);
            }
        }
        for field in ["messageExpression", "message"] {
            let text = one.field(field);
            if !text.is_empty() && text.text().trim().is_empty() {
                text.invalid("must be non-empty if specified");
            } else if field == "messageExpression" && !text.is_empty() {
                told(&text, text.text(), compiler.compile(text.text(), Returns::String, false));
            } else if field == "message" && text.text().trim().contains(['\n', '\r']) {
                text.invalid("must not contain line breaks");
            }
        }
        one.field("reason").one_of_if_set(&["Forbidden", "Invalid", "RequestEntityTooLarge"]);
    }
    if annotations.count() > MOST_ANNOTATIONS {
        annotations.invalid(format!("must not have more than {MOST_ANNOTATIONS} auditAnnotations"));
    }
    let mut keys = HashSet::new();
    for one in annotations.items() {
        let (key, expression) = (one.field("key"), one.field("valueExpression"));
        let qualified = format!("{policy}/{}", key.text());
        for detail in is_qualified_name(&qualified) {
            key.complain(FieldError::invalid(key.path(), qualified.as_str(), detail));
        }
        match expression.text().trim() {
            "" => expression.required("valueExpression is not specified"),
            text if text.len() > LONGEST_ANNOTATION => {
                expression.required(&format!("must not exceed {LONGEST_ANNOTATION} bytes in length"));
            }
            text => {
                told(&expression, expression.text(), compiler.compile(text, Returns::StringOrNull, true));
            }
        }
        if !keys.insert(key.text()) {
            key.duplicate();
        }
    }
}

fn mutations(spec: &At<'_>, compiler: &Compiler) {
    const KINDS: [(&str, &str); 2] = [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];
    if spec.field("mutations").is_empty() {
        spec.field("mutations").required("mutations must contain at least one item");
    }
    for mutation in spec.each("mutations") {
        let kind = mutation.field("patchType");
        let Some((name, own)) = KINDS.iter().find(|(name, _)| *name == kind.text()) else {
            kind.needed_one_of(&KINDS.map(|(name, _)| name));
            continue;
        };
        let place = mutation.field(own);
        if !place.exists() {
            place.required(&format!("must be specified when patchType is {name}"));
        } else {
            let (expression, json_patch) = (place.field("expression"), *name == "JSONPatch");
            let returns = if json_patch { Returns::JsonPatch } else { Returns::ApplyConfiguration };
            match expression.text().trim() {
                "" => expression.required(""),
                text => told(&expression, text, compiler.compile(text, returns, true)),
            }
        }
        for (_, other) in KINDS.iter().filter(|(_, other)| other != own && mutation.field(other).exists()) {
            let place = mutation.field(other);
            let detail = format!("must not be specified when patchType is {name}");
            place.complain(FieldError::invalid(place.path(), format!("{{{other}}}"), detail));
        }
    }
    spec.field("reinvocationPolicy").needed_one_of(&REINVOCATIONS);
}

pub(super) struct Bindings;

impl Strategy for Bindings {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        let is_first = object.text(&["apiVersion"]).ends_with("/v1alpha1");
        if is_first && object.at(&["spec", "paramRef"]).is_some() {
            set_default(object, &["spec", "paramRef", "parameterNotFoundAction"], "Deny");
        }
        resource_defaults(object, "matchResources");
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mutating = object.text(&["kind"]).starts_with("Mutating");
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("policyName").needed_named(is_subdomain);
            if spec.field("paramRef").exists() {
                param_ref(&spec.field("paramRef"));
            }
            if spec.field("matchResources").exists() {
                matching(&spec.field("matchResources"));
            }
            if mutating {
                mutating_operations(&spec.field("matchResources"));
            } else {
                actions(&spec.field("validationActions"));
            }
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        reserved_name(object)
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        if subresource.is_empty() { reserved_name(new) } else { Vec::new() }
    }
}

fn param_ref(at: &At<'_>) {
    const EITHER: &str = "name and selector are mutually exclusive";
    let (name, selector) = (at.field("name"), at.field("selector"));
    let both = !name.is_empty() && selector.exists();
    if !name.is_empty() {
        name.named(is_path_segment);
        if both {
            name.forbidden(EITHER);
        }
    }
    if selector.exists() {
        selector.selector();
        if both {
            selector.forbidden(EITHER);
        }
    }
    if name.is_empty() && !selector.exists() {
        at.required("one of name or selector must be specified");
    }
    at.field("parameterNotFoundAction").needed_one_of(&["Deny", "Allow"]);
}

fn actions(at: &At<'_>) {
    let mut seen = HashSet::new();
    for action in at.items() {
        action.one_of(&["Audit", "Deny", "Warn"]);
        if !seen.insert(action.text()) {
            action.duplicate();
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        at.invalid("must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)");
    }
    if seen.is_empty() {
        at.required("at least one validation action is required");
    }
}
