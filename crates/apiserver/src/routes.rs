//! What upstream's router looks at before a handler is asked: the method, the media type that is sent, those that are taken.
//!
//! It knows paths and no resources, so what it says is the same everywhere. Custom resources, and what others answer, are not behind it.

use ::http::{HeaderMap, Method, header};
use api::ApiError;
use api::status::Details;

use crate::http::check_produced;
use crate::registry::Served;
use crate::request_info::RequestInfo;

const OBJECTS: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
/// What may go on for long is named beside what does not.
const LISTS: [&str; 5] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const LOGS: [&str; 4] = ["text/plain", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// A path of a built-in resource.
pub(crate) fn check(served: &Served, info: &RequestInfo, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let is_proxy = info.subresource == "proxy";
    if !info.rest.is_empty() && !is_proxy {
        return Err(ApiError::no_such_resource());
    }
    // A namespace's own path names it twice over.
    let is_own = info.resource == "namespaces" && info.namespace == info.name;
    let is_in_namespace = !info.namespace.is_empty() && !is_own;
    let verbs = match info.subresource.as_str() {
        "" => &served.info.verbs,
        name => {
            let found = served.info.subresources.iter().find(|sub| sub.name == name);
            &found.ok_or_else(ApiError::no_such_resource)?.verbs
        }
    };
    let is_of_many = info.is_of_many;
    let needs_namespace = |verb: &str| !is_of_many || !matches!(verb, "list" | "watch");
    let leads = |verb: &str| {
        let is_here = match info.subresource.as_str() {
            "" if info.is_old_watch => verb == "watch",
            "" => matches!(verb, "create" | "list" | "deletecollection") == is_of_many && verb != "watch",
            _ => true,
        };
        let is_scoped = match served.info.namespaced {
            true => is_in_namespace || !needs_namespace(verb),
            false => !is_in_namespace,
        };
        is_here && is_scoped
    };
    let carries_any = is_proxy && matches!(*method, Method::HEAD | Method::OPTIONS);
    if !carries_any && !verbs.iter().any(|verb| method_of(verb) == method && leads(verb)) {
        return Err(if verbs.iter().any(|verb| leads(verb)) { not_allowed() } else { ApiError::no_such_resource() });
    }
    if *method == Method::PATCH && !is_proxy {
        check_consumed(headers, &PATCHES)?;
    }
    match info.subresource.as_str() {
        "exec" | "attach" | "portforward" | "proxy" => Ok(()),
        "log" => check_produced(headers, &LOGS),
        "" if matches!(info.verb, "list" | "watch") => check_produced(headers, &LISTS),
        _ => check_produced(headers, &OBJECTS),
    }
}

/// A path that is only read, as one of `produced`.
pub(crate) fn check_read(method: &Method, headers: &HeaderMap, produced: &[&str]) -> Result<(), ApiError> {
    if *method != Method::GET {
        return Err(not_allowed());
    }
    check_produced(headers, produced)
}

/// The same of one that tells what is served.
pub(crate) fn check_discovery(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    check_read(method, headers, &OBJECTS)
}

fn check_consumed(headers: &HeaderMap, consumed: &[&str]) -> Result<(), ApiError> {
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_known = |media: &str| consumed.contains(&media.split(';').next().unwrap_or_default().trim_matches(' '));
    match sent.split(',').any(is_known) {
        true => Ok(()),
        false => Err(ApiError::unsupported_media_type("415: Unsupported Media Type").with(Details::default())),
    }
}

fn method_of(verb: &str) -> &'static Method {
    match verb {
        "create" => &Method::POST,
        "update" => &Method::PUT,
        "patch" => &Method::PATCH,
        "delete" | "deletecollection" => &Method::DELETE,
        _ => &Method::GET,
    }
}

fn not_allowed() -> ApiError {
    let why = "the server does not allow this method on the requested resource";
    ApiError::new(405, "MethodNotAllowed", why).with(Details::default())
}
