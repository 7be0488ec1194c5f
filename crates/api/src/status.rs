//! Errors as clients see them: upstream's HTTP codes, reasons, messages and causes.

use serde_json::{Value, json};

use crate::field::FieldError;

/// A failed request. Becomes a `Status` object on the wire.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Box<Details>>,
    /// Where a list that can no longer be continued as it was may go on all the same.
    pub resume: Option<Box<str>>,
    /// Somebody else's words, passed on as they are.
    pub told: Option<Box<Value>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// The resource's plural name in most errors, its kind in validation errors, as upstream has it.
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    pub retry_after_seconds: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// A resource by group and plural name, as messages write it: `deployments.apps`, `pods`.
#[derive(Clone, Copy, Debug)]
pub struct GroupResource<'a> {
    pub group: &'a str,
    pub resource: &'a str,
}

impl std::fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group {
            "" => f.write_str(self.resource),
            group => write!(f, "{}.{group}", self.resource),
        }
    }
}

impl GroupResource<'_> {
    fn details(&self, name: &str) -> Details {
        Details { name: name.into(), group: self.group.into(), kind: self.resource.into(), ..Details::default() }
    }
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, resume: None, told: None }
    }

    #[must_use]
    pub fn with(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(resource: GroupResource<'_>, name: &str, why: impl std::fmt::Display) -> Self {
        let message = match (resource.resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{resource} is forbidden: {why}"),
            _ => format!("{resource} \"{name}\" is forbidden: {why}"),
        };
        Self::new(403, "Forbidden", message).with(resource.details(name))
    }

    pub fn not_found(resource: GroupResource<'_>, name: &str) -> Self {
        let message = format!("{resource} \"{name}\" not found");
        Self::new(404, "NotFound", message).with(resource.details(name))
    }

    /// A path that leads to no resource at all.
    pub fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with(Details::default())
    }

    pub fn method_not_allowed(resource: GroupResource<'_>, action: &str) -> Self {
        let message = format!("{action} is not supported on resources of kind \"{resource}\"");
        Self::new(405, "MethodNotAllowed", message).with(resource.details(""))
    }

    pub fn already_exists(resource: GroupResource<'_>, name: &str) -> Self {
        let message = format!("{resource} \"{name}\" already exists");
        Self::new(409, "AlreadyExists", message).with(resource.details(name))
    }

    pub fn conflict(resource: GroupResource<'_>, name: &str, why: impl std::fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(409, "Conflict", message).with(resource.details(name))
    }

    /// The caller's resourceVersion is not the stored one.
    pub fn modified(resource: GroupResource<'_>, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, "NotAcceptable", message)
    }

    /// A validation failure: every cause with its field path.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let mut texts: Vec<String> = Vec::new();
        // The message says everything once; the causes repeat it.
        for text in errors.iter().map(ToString::to_string) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let joined = match texts.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let qualified = GroupResource { group, resource: kind }.to_string();
        let causes = errors
            .iter()
            .map(|e| Cause { reason: e.kind.reason().into(), message: e.body(), field: e.field.clone() })
            .collect();
        let (name, group, kind) = (name.to_owned(), group.to_owned(), kind.to_owned());
        Self::new(422, "Invalid", format!("{qualified} \"{name}\" is invalid: {joined}")).with(Details {
            name,
            group,
            kind,
            causes,
            ..Details::default()
        })
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details = Details { retry_after_seconds, ..Details::default() };
        Self::new(429, "TooManyRequests", message).with(details)
    }

    pub fn internal(why: impl std::fmt::Display) -> Self {
        let cause = Cause { reason: String::new(), message: why.to_string(), field: String::new() };
        Self::new(500, "InternalError", format!("Internal error occurred: {why}"))
            .with(Details { causes: vec![cause], ..Details::default() })
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        if let Some(told) = &self.told {
            return Value::clone(told);
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if let (Some(token), Some(metadata)) = (&self.resume, status.get_mut("metadata").and_then(Value::as_object_mut))
        {
            metadata.insert("continue".into(), token.as_ref().into());
        }
        if let (false, Some(map)) = (self.reason.is_empty(), status.as_object_mut()) {
            map.insert("reason".into(), self.reason.into());
        }
        if let (Some(details), Some(map)) = (&self.details, status.as_object_mut()) {
            map.insert("details".into(), details.to_json());
        }
        status
    }
}

impl Details {
    pub fn to_json(&self) -> Value {
        let mut map = serde_json::Map::new();
        for (key, text) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)] {
            if !text.is_empty() {
                map.insert(key.into(), Value::String(text.clone()));
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(|cause| {
                let mut one = serde_json::Map::new();
                let parts = [("reason", &cause.reason), ("message", &cause.message), ("field", &cause.field)];
                for (key, text) in parts.into_iter().filter(|(_, text)| !text.is_empty()) {
                    one.insert(key.into(), Value::String(text.clone()));
                }
                Value::Object(one)
            });
            map.insert("causes".into(), Value::Array(causes.collect()));
        }
        if self.retry_after_seconds > 0 {
            map.insert("retryAfterSeconds".into(), self.retry_after_seconds.into());
        }
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_upstreams() {
        let deployments = GroupResource { group: "apps", resource: "deployments" };
        assert_eq!(ApiError::not_found(deployments, "web").message, "deployments.apps \"web\" not found");
        let errors = [FieldError::required("spec.selector", ""), FieldError::invalid("metadata.name", "A", "bad")];
        let error = ApiError::invalid("apps", "Deployment", "web", &errors);
        assert_eq!(
            error.message,
            "Deployment.apps \"web\" is invalid: [spec.selector: Required value, metadata.name: Invalid value: \"A\": bad]"
        );
        assert_eq!(error.to_status()["details"]["causes"][0]["reason"], "FieldValueRequired");
    }
}
