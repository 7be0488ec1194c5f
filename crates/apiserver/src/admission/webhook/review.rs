//! What a webhook is told of a request, and how its answer is read: strictly, because it may be anybody's.

use std::collections::BTreeMap;

use api::{ApiError, Object, ObjectExt as _};
use base64::Engine as _;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::admission::Attributes;
use crate::admission::policy::request;
use crate::registry::Served;

/// An AdmissionReview; `seen_as` is the resource whose version the objects, the new and the old, are in.
pub(super) fn request(
    attributes: &Attributes<'_>,
    seen_as: &Served,
    (object, old): (Option<&Object>, Option<&Object>),
    version: &str,
    uid: &str,
) -> Bytes {
    let mut request = request::request(attributes, seen_as);
    if let Some(request) = request.as_object_mut() {
        request.insert("uid".into(), uid.into());
    }
    let mut body = format!("{{\"kind\":\"AdmissionReview\",\"apiVersion\":\"admission.k8s.io/{version}\",\"request\":")
        .into_bytes();
    // What can be in an object can be written, and a vector takes all of it.
    let _ = serde_json::to_writer(&mut body, &request);
    body.pop();
    for (name, object) in [("object", object), ("oldObject", old)] {
        body.extend_from_slice(format!(",\"{name}\":").as_bytes());
        let _ = serde_json::to_writer(&mut body, &object);
    }
    body.extend_from_slice(b"}}");
    body.into()
}

/// What a webhook says.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) allowed: bool,
    pub(super) status: Option<Object>,
    /// A JSON patch, if there is one.
    pub(super) patch: Option<Value>,
    pub(super) warnings: Vec<String>,
    pub(super) annotations: BTreeMap<String, String>,
}

impl Answer {
    /// Of a review; why it is none, as upstream tells it.
    pub(super) fn of(mut review: Value, uid: &str, version: &str, is_mutating: bool) -> Result<Self, String> {
        let invalid = |why: String| format!("received invalid webhook response: {why}");
        let response = match review.get_mut("response").map(Value::take) {
            Some(Value::Object(response)) => response,
            None | Some(Value::Null) => return Err(invalid("webhook response was absent".into())),
            Some(other) => return Err(unreadable("response", &other)),
        };
        let mut fields = Fields(response);
        let own_uid = fields.text("uid")?;
        let (patch, patch_type) = (fields.optional("patch")?, fields.optional("patchType")?);
        let has_patch = patch.as_ref().is_some_and(|patch| !patch.is_empty());
        if version == "v1" {
            if own_uid != uid {
                return Err(invalid(format!("expected response.uid={uid:?}, got {own_uid:?}")));
            }
            let text = |field: &str| review.get(field).and_then(Value::as_str).unwrap_or_default();
            let (group, short) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
            if (group, short, text("kind")) != ("admission.k8s.io", "v1", "AdmissionReview") {
                return Err(invalid(format!(
                    "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {group}/{short}, Kind={}",
                    text("kind")
                )));
            }
            check_patch(has_patch, patch_type.as_deref(), is_mutating).map_err(invalid)?;
        }
        Ok(Self {
            allowed: match fields.0.remove("allowed") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(allowed)) => allowed,
                Some(other) => return Err(unreadable("allowed", &other)),
            },
            status: match fields.0.remove("status") {
                None | Some(Value::Null) => None,
                Some(Value::Object(status)) => Some(status),
                Some(other) => return Err(unreadable("status", &other)),
            },
            patch: match patch.filter(|_| is_mutating && has_patch) {
                // In the older version its type was never looked at.
                Some(_) if version == "v1" && patch_type.as_deref() != Some("JSONPatch") => {
                    return Err(format!("unsupported patch type {:?}", patch_type.unwrap_or_default()));
                }
                Some(patch) => Some(decoded(&patch)?),
                None => None,
            },
            warnings: fields.take("warnings")?,
            annotations: fields.take("auditAnnotations")?,
        })
    }
}

fn check_patch(has_patch: bool, patch_type: Option<&str>, is_mutating: bool) -> Result<(), String> {
    let why = match (is_mutating, has_patch, patch_type) {
        (true, true, None) => "webhook returned response.patch but not response.patchType",
        (true, false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, true, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (false, true, _) => "validating webhook may not return response.patch",
        (false, _, Some(_)) => "validating webhook may not return response.patchType",
        _ => return Ok(()),
    };
    Err(why.to_owned())
}

/// A JSON patch in base64.
fn decoded(patch: &str) -> Result<Value, String> {
    let unreadable = |why: String| format!("received undecodable patch in webhook response: {why}");
    let bytes = base64::engine::general_purpose::STANDARD.decode(patch);
    let bytes = bytes.map_err(|error| format!("failed to call webhook: {error}"))?;
    let patch: Value = serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
    if patch.is_array() { Ok(patch) } else { Err(unreadable("it is no list of operations".into())) }
}

fn unreadable(field: &str, value: &Value) -> String {
    let kind = api::decode::go_kind(value);
    format!("failed to call webhook: json: cannot unmarshal {kind} into AdmissionReview field {field}")
}

/// The fields of a response, taken out of it one by one.
struct Fields(Object);

impl Fields {
    fn optional(&mut self, field: &str) -> Result<Option<String>, String> {
        match self.0.remove(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(unreadable(field, &other)),
        }
    }

    fn text(&mut self, field: &str) -> Result<String, String> {
        self.optional(field).map(Option::unwrap_or_default)
    }

    fn take<T: Default + serde::de::DeserializeOwned>(&mut self, field: &str) -> Result<T, String> {
        match self.0.remove(field) {
            None | Some(Value::Null) => Ok(T::default()),
            Some(value) => serde_json::from_value(value.clone()).map_err(|_| unreadable(field, &value)),
        }
    }
}

/// The status of a webhook that says no, with whom it is of.
pub(super) fn refusal(name: &str, status: Option<&Object>) -> ApiError {
    let nothing = Object::new();
    let status = status.unwrap_or(&nothing);
    let code = status.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let code = code.filter(|code| *code >= 400).unwrap_or(400);
    let denied = format!("admission webhook {name:?} denied the request");
    let message = match (status.text(&["message"]), status.text(&["reason"])) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let mut told = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code,
    });
    if let Some(told) = told.as_object_mut() {
        let kept = status.iter().filter(|(key, value)| match key.as_str() {
            "reason" => value.is_string(),
            "details" => value.is_object(),
            _ => false,
        });
        told.extend(kept.map(|(key, value)| (key.clone(), value.clone())));
    }
    ApiError { told: Some(Box::new(told)), ..ApiError::new(code, "", message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(response: Value, is_mutating: bool, want: Result<(), &str>) {
        let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        let told = Answer::of(review, "u", "v1", is_mutating).map(|_| ());
        assert_eq!(told, want.map_err(|why| why.to_owned()), "{response}");
    }

    #[test]
    fn answers_are_read_strictly() {
        const INVALID: &str = "received invalid webhook response: ";
        let invalid = |why: &str| format!("{INVALID}{why}");
        check(json!({"uid": "u", "allowed": true}), true, Ok(()));
        check(json!(null), true, Err(&invalid("webhook response was absent")));
        check(json!({"uid": "x"}), true, Err(&invalid("expected response.uid=\"u\", got \"x\"")));
        check(
            json!({"uid": "u", "allowed": "yes"}),
            true,
            Err("failed to call webhook: json: cannot unmarshal string into AdmissionReview field allowed"),
        );
        check(
            json!({"uid": "u", "warnings": [1]}),
            true,
            Err("failed to call webhook: json: cannot unmarshal array into AdmissionReview field warnings"),
        );
        let patch = base64::engine::general_purpose::STANDARD.encode("[]");
        check(json!({"uid": "u", "patch": patch, "patchType": "JSONPatch"}), true, Ok(()));
        check(
            json!({"uid": "u", "patch": patch}),
            true,
            Err(&invalid("webhook returned response.patch but not response.patchType")),
        );
        check(
            json!({"uid": "u", "patch": patch, "patchType": "JSONPatch"}),
            false,
            Err(&invalid("validating webhook may not return response.patch")),
        );
        check(json!({"uid": "u", "patch": patch, "patchType": "Odd"}), true, Err("unsupported patch type \"Odd\""));
        let patch = base64::engine::general_purpose::STANDARD.encode("{}");
        check(
            json!({"uid": "u", "patch": patch, "patchType": "JSONPatch"}),
            true,
            Err("received undecodable patch in webhook response: it is no list of operations"),
        );
    }

    #[test]
    fn an_answer_of_another_kind_is_none() {
        let review = json!({"response": {"uid": "u", "allowed": true}});
        let told = Answer::of(review.clone(), "u", "v1", false).unwrap_err();
        assert!(told.ends_with("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="));
        assert!(
            Answer::of(review, "other", "v1beta1", false).unwrap().allowed,
            "the older version was never looked at"
        );
    }

    #[test]
    fn a_refusal_is_told_with_its_reason() {
        let check = |status: Value, want: (u16, &str)| {
            let error = refusal("a.b.c", status.as_object());
            assert_eq!((error.code, error.message.as_str()), want);
            assert_eq!(error.to_status()["code"], want.0);
        };
        check(json!(null), (400, "admission webhook \"a.b.c\" denied the request without explanation"));
        check(json!({"code": 200, "reason": "Odd"}), (400, "admission webhook \"a.b.c\" denied the request: Odd"));
        check(json!({"code": 418, "message": "no"}), (418, "admission webhook \"a.b.c\" denied the request: no"));
    }
}
