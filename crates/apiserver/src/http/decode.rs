//! Request bodies in any accepted encoding, as JSON.

use std::borrow::Cow;

use api::{ApiError, Object, protobuf};
use http::{HeaderMap, header};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

/// What upstream reads first of any object.
const TYPED: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
/// How much of a body that makes no sense is shown.
const SHOWN: usize = 30;
/// What references in a YAML document may stand for in all: each can stand for many that stand for many.
const MAX_ALIASED: usize = 100_000;

/// Reads an object from a request body, and what to say of fields that come twice; `wanted` is the kind that messages name.
pub(crate) fn decode_tracked(
    headers: &HeaderMap,
    bytes: &[u8],
    wanted: &str,
) -> Result<(Object, Vec<String>), ApiError> {
    let unrecognized = |why: &dyn std::fmt::Display| {
        let shown = summary(bytes);
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {wanted}): {why} ({shown})"
        ))
    };
    decode_with(headers, bytes, wanted, unrecognized)
}

/// The same of what is no object of a resource; why it cannot be read is told as it is.
pub(crate) fn decode_bare(headers: &HeaderMap, bytes: &[u8], wanted: &str) -> Result<Object, ApiError> {
    Ok(decode_with(headers, bytes, wanted, |why| ApiError::bad_request(why.to_string()))?.0)
}

fn decode_with(
    headers: &HeaderMap,
    bytes: &[u8],
    wanted: &str,
    unrecognized: impl Fn(&dyn std::fmt::Display) -> ApiError,
) -> Result<(Object, Vec<String>), ApiError> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("application/json");
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let is = |known: &str| media.eq_ignore_ascii_case(known);
    let (value, duplicates) = if content_type.trim().is_empty() || is("application/json") {
        let (value, twice) = api::json::parse(bytes).map_err(|error| {
            let why = api::json::complaint(bytes).unwrap_or_else(|| error.to_string());
            unrecognized(&format!("couldn't get version/kind; json parse error: {why}"))
        })?;
        (value, twice.iter().map(|path| format!("duplicate field {path:?}")).collect())
    } else if is("application/yaml") {
        let (value, twice) = yaml_tracked(bytes)?;
        (value, Vec::from_iter(twice))
    } else if is(super::PROTOBUF) {
        return Ok((from_protobuf(bytes, wanted, unrecognized)?, Vec::new()));
    } else {
        return Err(ApiError::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ));
    };
    match value {
        Value::Object(object) => match check_type(&object) {
            Ok(()) => Ok((object, duplicates)),
            Err(why) => Err(unrecognized(&why)),
        },
        Value::Null => Ok((Object::new(), duplicates)),
        other => Err(unrecognized(&format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type {TYPED}",
            api::decode::go_kind(&other)
        ))),
    }
}

/// What an object says it is must be text, and a version of one group.
pub(crate) fn check_type(object: &Object) -> Result<(), String> {
    for field in ["apiVersion", "kind"] {
        if let Some(other) = object.get(field).filter(|value| !value.is_string() && !value.is_null()) {
            let found = api::decode::go_kind(other);
            return Err(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go struct field .{field} of \
                 type string"
            ));
        }
    }
    let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    match version.matches('/').count() {
        0 | 1 => Ok(()),
        _ => Err(format!("unexpected GroupVersion string: {version}")),
    }
}

/// What was sent, as far as it can be read: an object, or a patch.
pub(crate) fn decode_any(headers: &HeaderMap, bytes: &[u8]) -> Option<Value> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("application/json");
    match content_type.split(';').next().unwrap_or_default().trim() {
        media if media.ends_with("json") => serde_json::from_slice(bytes).ok(),
        media if media.ends_with("yaml") => yaml(bytes).ok(),
        _ => {
            let envelope = protobuf::open(bytes).ok()?;
            let schema = protobuf::type_of(&envelope.api_version, &envelope.kind)?;
            let mut object = protobuf::decode(envelope.raw, schema).ok()?;
            object.insert("kind".into(), envelope.kind.into());
            object.insert("apiVersion".into(), envelope.api_version.into());
            Some(Value::Object(object))
        }
    }
}

/// An enveloped protobuf object of any built-in kind.
fn from_protobuf(
    bytes: &[u8],
    wanted: &str,
    unrecognized: impl Fn(&dyn std::fmt::Display) -> ApiError,
) -> Result<Object, ApiError> {
    if bytes.is_empty() {
        return Err(unrecognized(&"empty data"));
    }
    let envelope = protobuf::open(bytes).map_err(|error| unrecognized(&error))?;
    let (kind, version) = (envelope.kind.as_str(), envelope.api_version.as_str());
    if kind.is_empty() {
        return Err(unrecognized(&"empty body"));
    }
    let refuse = |why: String| {
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {wanted}: {why}"))
    };
    let schema = protobuf::type_of(version, kind)
        .ok_or_else(|| refuse(format!("no kind {kind:?} is registered for version {version:?}")))?;
    let mut object = protobuf::decode(envelope.raw, schema).map_err(|error| refuse(error.to_string()))?;
    object.insert("kind".into(), envelope.kind.into());
    object.insert("apiVersion".into(), envelope.api_version.into());
    Ok(object)
}

pub(crate) fn yaml(bytes: &[u8]) -> Result<Value, ApiError> {
    parse_yaml(bytes, DuplicateKeyPolicy::Error).map_err(|error| unreadable(&error))
}

/// The same, taking the last of a field that comes several times, and telling of it as upstream does.
pub(crate) fn yaml_tracked(bytes: &[u8]) -> Result<(Value, Option<String>), ApiError> {
    match parse_yaml(bytes, DuplicateKeyPolicy::Error) {
        Err(serde_saphyr::Error::DuplicateMappingKey { key, location }) => {
            let value = parse_yaml(bytes, DuplicateKeyPolicy::LastWins).map_err(|error| unreadable(&error))?;
            let (line, key) = (location.line(), key.unwrap_or_default());
            Ok((value, Some(format!("line {line}: key {key:?} already set in map"))))
        }
        parsed => Ok((parsed.map_err(|error| unreadable(&error))?, None)),
    }
}

fn parse_yaml(bytes: &[u8], duplicate_keys: DuplicateKeyPolicy) -> Result<Value, serde_saphyr::Error> {
    let text: Cow<'_, str> = String::from_utf8_lossy(bytes);
    let alias_limits = serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED };
    let options = serde_saphyr::options! {
        alias_limits: alias_limits, with_snippet: false, duplicate_keys: duplicate_keys
    };
    serde_saphyr::from_str_with_options(&text, options)
}

fn unreadable(error: &serde_saphyr::Error) -> ApiError {
    let mut why = error.to_string();
    if why.contains("alias replay limit exceeded") {
        why = "yaml: document contains excessive aliasing".to_owned();
    }
    ApiError::bad_request(format!("error converting YAML to JSON: {why}"))
}

/// The beginning of a body: text if it looks like JSON, else in hexadecimal.
fn summary(bytes: &[u8]) -> String {
    let head = bytes.get(..SHOWN).unwrap_or(bytes);
    let more = if bytes.len() > SHOWN { " ..." } else { "" };
    match head {
        [] => "<empty>".to_owned(),
        [b'{', ..] => format!("{}{more}", String::from_utf8_lossy(head)),
        _ => head.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_protobuf_is_told_as_upstream_tells_it() {
        check(
            b"nope",
            "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (6e6f7065)",
        );
        check(b"k8s\0", "the object provided is unrecognized (must be of type ConfigMap): empty body (6b387300)");
        check(
            b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x05\x0a\x09ab",
            "the object provided is unrecognized (must be of type ConfigMap): unexpected EOF (6b3873000a0f0a0276311209436f6e6669674d617012050a096162)",
        );
        check(
            b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x04\x0a\x09ab",
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: unexpected EOF",
        );
        check(b"", "the object provided is unrecognized (must be of type ConfigMap): empty data (<empty>)");
    }

    #[test]
    fn references_that_stand_for_too_much_are_refused() {
        let mut bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..8 {
            bomb += &format!("b{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(", "));
        }
        let error = yaml(bomb.as_bytes()).unwrap_err();
        assert_eq!(error.message, "error converting YAML to JSON: yaml: document contains excessive aliasing");
        assert_eq!(yaml(b"a: &a [1]\nb: *a").unwrap(), serde_json::json!({"a": [1], "b": [1]}));
    }

    #[track_caller]
    fn check(body: &[u8], want: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/vnd.kubernetes.protobuf"));
        let error = decode_tracked(&headers, body, "ConfigMap").unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, want));
    }
}
