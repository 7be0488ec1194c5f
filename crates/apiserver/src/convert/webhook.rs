//! Conversion by a webhook: a ConversionReview with every object that is in another version.

use std::time::Duration;

use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::field_manager::type_text;
use crate::outbound::{Outbound, OutboundError};
use crate::server::ApiServer;

/// Upstream's limit for conversions.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn convert(
    server: &ApiServer,
    webhook: &Result<Outbound, OutboundError>,
    reviews: &[String],
    mut objects: Vec<Object>,
    wanted: &str,
) -> Result<Vec<Object>, ApiError> {
    let others: Vec<usize> = objects
        .iter()
        .enumerate()
        .filter(|(_, object)| object.text(&["apiVersion"]) != wanted)
        .map(|(index, _)| index)
        .collect();
    let Some(first) = others.first().and_then(|index| objects.get(*index)) else { return Ok(objects) };
    let kind = type_text(first);
    let failed = |why: String| ApiError::new(500, "", format!("conversion webhook for {kind} {why}"));
    let version = reviews.iter().find(|version| matches!(version.as_str(), "v1" | "v1beta1"));
    let version = version.ok_or_else(|| failed("failed: no supported conversion review version".into()))?;
    let uid = uuid::Uuid::new_v4().to_string();
    let sent: Vec<&Object> = others.iter().filter_map(|index| objects.get(*index)).collect();
    let review = json!({
        "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": sent}, "response": null,
    });
    let webhook = webhook.as_ref().map_err(|error| failed(format!("failed: {error}")))?;
    let answer = webhook.call(server, review.to_string().into(), TIMEOUT, "").await;
    let answer = answer.map_err(|error| failed(format!("failed: {error}")))?;
    let converted = converted(&answer, &uid, version).map_err(|why| failed(format!("failed: {why}")))?;
    if converted.len() != others.len() {
        return Err(failed(format!("returned {} objects, expected {}", converted.len(), others.len())));
    }
    for (at, (index, object)) in others.into_iter().zip(converted).enumerate() {
        let Some(original) = objects.get_mut(index) else { continue };
        let checked = restored(original, object, wanted);
        *original = checked.map_err(|why| failed(format!("returned invalid converted object at index {at}: {why}")))?;
    }
    Ok(objects)
}

/// The objects of an answer that says it succeeded.
fn converted(answer: &Value, uid: &str, version: &str) -> Result<Vec<Object>, String> {
    let api_version = answer.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let expected = format!("apiextensions.k8s.io/{version}");
    if version == "v1" && (api_version != expected || answer.get("kind") != Some(&"ConversionReview".into())) {
        let kind = answer.get("kind").and_then(Value::as_str).unwrap_or_default();
        return Err(format!(
            "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {api_version}, Kind={kind}"
        ));
    }
    let response = answer.get("response").and_then(Value::as_object).ok_or("no response provided")?;
    let told = response.text(&["uid"]);
    if version == "v1" && told != uid {
        return Err(format!("expected response.uid={uid:?}, got {told:?}"));
    }
    match response.text(&["result", "status"]) {
        "Success" => (),
        "" => return Err("response.result.status was '', expected 'Success'".to_owned()),
        _ if response.text(&["result", "message"]).is_empty() => {
            return Err("response.result.status was 'Failure'".to_owned());
        }
        _ => return Err(response.text(&["result", "message"]).to_owned()),
    }
    let objects = response.get("convertedObjects").and_then(Value::as_array).cloned().unwrap_or_default();
    let objects = objects.into_iter().map(|object| match object {
        Value::Object(object) => Ok(object),
        other => Err(format!("{other} is not an object")),
    });
    objects.collect()
}

/// The converted object; of its metadata only labels and annotations are the webhook's.
fn restored(original: &Object, mut converted: Object, wanted: &str) -> Result<Object, String> {
    let differs = |what: &str, path: &[&str]| {
        let (expected, got) = (original.text(path), converted.text(path));
        (expected != got).then(|| format!("must have the same {what}: {expected} != {got}"))
    };
    let version = converted.text(&["apiVersion"]);
    if version != wanted {
        return Err(format!("invalid groupVersion (expected {wanted}, received {version})"));
    }
    let checks = [
        ("kind", ["kind"].as_slice()),
        ("name", &["metadata", "name"]),
        ("namespace", &["metadata", "namespace"]),
        ("UID", &["metadata", "uid"]),
    ];
    if let Some(why) = checks.iter().find_map(|(what, path)| differs(what, path)) {
        return Err(why);
    }
    let own =
        converted.get("metadata").and_then(Value::as_object).cloned().ok_or("missing metadata in converted object")?;
    let mut metadata = original.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match own.get(field) {
            None | Some(Value::Null) => drop(metadata.remove(field)),
            Some(Value::Object(map)) => {
                if let Some((key, value)) = map.iter().find(|(_, value)| !value.is_string()) {
                    return Err(format!(
                        "metadata.{field}[{key}] must be a string, but is {value} in converted object"
                    ));
                }
                metadata.insert(field.to_owned(), Value::Object(map.clone()));
            }
            Some(other) => return Err(format!("invalid metadata.{field} {other} in converted object")),
        }
    }
    let labels = api::validation::labels(metadata.get("labels"), &api::field::Path::new("metadata.labels"));
    if let Some(error) = labels.first() {
        return Err(error.to_string());
    }
    converted.insert("metadata".into(), Value::Object(metadata));
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_webhook_changes_labels_and_annotations_and_no_other_metadata() {
        let original = object(
            json!({"kind": "K", "apiVersion": "g/v1", "metadata": {"name": "a", "uid": "u", "labels": {"x": "1"}}}),
        );
        let answer =
            |metadata: Value| object(json!({"kind": "K", "apiVersion": "g/v2", "metadata": metadata, "spec": {}}));
        let good = restored(
            &original,
            answer(json!({"name": "a", "uid": "u", "annotations": {"y": "2"}, "generation": 9})),
            "g/v2",
        );
        assert_eq!(good.unwrap().get("metadata"), Some(&json!({"name": "a", "uid": "u", "annotations": {"y": "2"}})));
        let bad = restored(&original, answer(json!({"name": "b", "uid": "u"})), "g/v2");
        assert_eq!(bad.unwrap_err(), "must have the same name: a != b");
        let old = restored(&original, original.clone(), "g/v2");
        assert_eq!(old.unwrap_err(), "invalid groupVersion (expected g/v2, received g/v1)");
    }

    #[test]
    fn an_answer_must_say_that_it_succeeded() {
        let review = |response: Value| json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response});
        let check =
            |response: Value, want: &str| assert_eq!(converted(&review(response), "u", "v1").unwrap_err(), want);
        check(json!({"uid": "x"}), "expected response.uid=\"u\", got \"x\"");
        check(json!({"uid": "u"}), "response.result.status was '', expected 'Success'");
        check(json!({"uid": "u", "result": {"status": "Failure", "message": "no"}}), "no");
        let good = converted(
            &review(json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [{}]})),
            "u",
            "v1",
        );
        assert_eq!(good.unwrap().len(), 1);
    }
}
