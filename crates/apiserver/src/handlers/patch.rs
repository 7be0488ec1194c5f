//! PATCH in its formats.

use std::sync::Arc;

use ::http::{Response, StatusCode, header};
use api::field::FieldError;
use api::patch::{PatchError, go_text, json_patch, merge_patch, strategic_merge};
use api::schema::Type;
use api::status::Details;
use api::{ApiError, Object};
use serde_json::Value;

use super::{Writer, apply, conform, respond_object, update};
use crate::field_manager::{self, Tracking};
use crate::http::{self, Body};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

const UNSUPPORTED: &str = "415: Unsupported Media Type";
const UNSUPPORTED_CUSTOM: &str = "the body of the request was in an unknown format - accepted media types include: \
                                  application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

/// Of a patch that does not fit: upstream does not say why.
const REJECTED: &str = "the server rejected our request due to an error in our request";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Merge,
    Strategic,
}

impl Format {
    pub(super) fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }
}

/// What is to be changed.
pub(super) struct Patch {
    format: Format,
    body: Value,
    /// What to say of fields that come twice in it.
    twice: Vec<String>,
}

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let info = &context.info;
    let content_type = context.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if content_type.split(';').next().unwrap_or_default().trim() == "application/apply-patch+yaml" {
        return apply::answer(server, served, context, body).await;
    }
    let is_custom = served.custom().is_some();
    let format = Format::of(content_type).filter(|format| *format != Format::Strategic || !is_custom);
    let format = format.ok_or_else(|| match is_custom {
        true => ApiError::unsupported_media_type(UNSUPPORTED_CUSTOM),
        false => unsupported(),
    })?;
    let dry_run = context.dry_run_after("PatchOptions", apply::needless_force(context))?;
    // That there is something to patch is seen before the patch is.
    let patch = Patch::read(format, &http::read(body).await?);
    let manager = field_manager::of_request(context);
    let tracking = Tracking::Update(&manager);
    let subresource = info.subresource.as_str();
    let writer = Writer { server, served, context: Some(context), subresource, dry_run, tracking };
    let updated = writer
        .update(&info.namespace, &info.name, |current| {
            let patch = patch.as_ref().map_err(Clone::clone)?;
            let mut patched = patch.apply(current, &served.schema)?;
            if format == Format::Strategic {
                for field in ["kind", "apiVersion"] {
                    patched.remove(field);
                }
            }
            let object = conform(served, context, patched.clone(), &patch.twice);
            let object = object.map_err(|error| patch.refuse(patched, error))?;
            update::check_place(served, info, &object)?;
            Ok(object)
        })
        .await?;
    respond_object(served, StatusCode::OK, context, &accept, &updated)
}

pub(super) fn unsupported() -> ApiError {
    ApiError::unsupported_media_type(UNSUPPORTED).with(Details::default())
}

impl Patch {
    pub(super) fn read(format: Format, bytes: &[u8]) -> Result<Self, ApiError> {
        let told = |why: String| match format {
            Format::Strategic => ApiError::bad_request(why),
            Format::Json | Format::Merge => ApiError::bad_request(format!("error decoding patch: {why}")),
        };
        let (body, twice) = api::json::parse(bytes)
            .map_err(|error| told(api::json::complaint(bytes).unwrap_or_else(|| error.to_string())))?;
        let mismatch = |found: &Value, wanted: &str| {
            told(format!("json: cannot unmarshal {} into Go {wanted}", api::decode::go_kind(found)))
        };
        match (format, &body) {
            (Format::Json, Value::Array(operations)) => {
                operations.iter().try_for_each(|operation| match operation {
                    Value::Null => Ok(()),
                    Value::Object(fields) => ["op", "path", "from"].into_iter().try_for_each(|name| {
                        let odd = fields.get(name).filter(|value| !value.is_string() && !value.is_null());
                        let wanted = format!("struct field jsonPatchOp.{name} of type string");
                        odd.map_or(Ok(()), |value| Err(mismatch(value, &wanted)))
                    }),
                    other => Err(mismatch(other, "value of type handlers.jsonPatchOp")),
                })?
            }
            (Format::Json | Format::Strategic, Value::Null) | (Format::Merge | Format::Strategic, Value::Object(_)) => {
            }
            (Format::Json, other) => return Err(mismatch(other, "value of type []handlers.jsonPatchOp")),
            (Format::Merge, Value::Null) => return Err(ApiError::bad_request("Invalid JSON Patch")),
            (_, other) => return Err(mismatch(other, "value of type map[string]interface {}")),
        }
        // The operations of a list are not fields of the object.
        let twice = if format == Format::Json { Vec::new() } else { twice };
        Ok(Self { format, body, twice: twice.iter().map(|path| format!("duplicate field {path:?}")).collect() })
    }

    pub(super) fn apply(&self, current: &Object, schema: &Type) -> Result<Object, ApiError> {
        let mut value = Value::Object(current.clone());
        let applied = match self.format {
            _ if self.body.is_null() => Ok(()),
            Format::Json => json_patch(&mut value, &self.body),
            Format::Merge => {
                merge_patch(&mut value, &self.body);
                Ok(())
            }
            Format::Strategic => strategic_merge(&mut value, &self.body, schema),
        };
        applied.map_err(|error| match (error, self.format) {
            (PatchError::Malformed(why), _) => ApiError::bad_request(why),
            (PatchError::TooLarge(why), _) => ApiError::too_large(why),
            (PatchError::Unclear(why), _) => ApiError::new(500, "", why),
            (PatchError::Unfit(_) | PatchError::TestFailed(_), Format::Json) => rejected(),
            (PatchError::Unfit(why) | PatchError::TestFailed(why), _) => {
                ApiError::new(422, "Invalid", format!("{REJECTED}: {why}"))
            }
        })?;
        match value {
            Value::Object(object) => Ok(object),
            _ => Err(rejected()),
        }
    }

    /// An object that cannot be read is the patch's fault: it is told of that, with what came of it.
    pub(super) fn refuse(&self, patched: Object, error: ApiError) -> ApiError {
        let Some((_, why)) = error.message.split_once(" cannot be handled as a ").filter(|_| error.code == 400) else {
            return error;
        };
        let why = why.split_once(": ").map_or(why, |(_, why)| why);
        let (shown, why) = match self.format {
            Format::Strategic => (go_text(&self.body), unrecognized(why).unwrap_or_else(|| why.to_owned())),
            Format::Json | Format::Merge => (Value::Object(patched).to_string(), why.to_owned()),
        };
        ApiError::invalid("", "", "", &[FieldError::invalid("patch", shown, why)])
    }
}

fn rejected() -> ApiError {
    ApiError::new(422, "Invalid", REJECTED).with(Details::default())
}

/// What a text is not, in the words of the converter that reads strategic patches.
fn unrecognized(why: &str) -> Option<String> {
    let (_, wanted) = why.strip_prefix("json: cannot unmarshal string into ")?.rsplit_once(" of type ")?;
    matches!(wanted, "int32" | "int64" | "bool").then(|| format!("unrecognized type: {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_patch_is_refused_in_upstreams_words() {
        check(Format::Json, "[]", "");
        check(Format::Json, "x", "error decoding patch: invalid character 'x' looking for beginning of value");
        check(
            Format::Json,
            "{}",
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        );
        check(
            Format::Json,
            "[1]",
            "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
        );
        check(
            Format::Json,
            r#"[{"op":1}]"#,
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
        );
        check(Format::Merge, "null", "Invalid JSON Patch");
        check(
            Format::Merge,
            "[]",
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
        );
        check(Format::Strategic, "null", "");
        check(Format::Strategic, "{\"a\":", "unexpected end of JSON input");
        check(Format::Strategic, "1", "json: cannot unmarshal number into Go value of type map[string]interface {}");
    }

    #[track_caller]
    fn check(format: Format, text: &str, want: &str) {
        let error = Patch::read(format, text.as_bytes()).err();
        assert_eq!(error.map(|error| error.message).unwrap_or_default(), want, "{text}");
    }
}
