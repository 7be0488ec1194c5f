//! Conversion between the version a client speaks and the one that is stored.

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::registry::Served;

pub(crate) fn from_storage(served: &Served, mut object: Object) -> Object {
    if served.is_storage_version() {
        return object;
    }
    match (served.info.group.as_str(), served.info.version.as_str(), served.info.plural.as_str()) {
        ("events.k8s.io", _, "events") => rename(&mut object, &EVENT_FIELDS, false),
        ("autoscaling", "v1", _) => autoscaler_to_v1(&mut object),
        _ => (),
    }
    object.insert("apiVersion".into(), served.info.api_version().into());
    object
}

pub(crate) fn to_storage(served: &Served, mut object: Object) -> Object {
    if served.is_storage_version() {
        return object;
    }
    match (served.info.group.as_str(), served.info.version.as_str(), served.info.plural.as_str()) {
        ("events.k8s.io", _, "events") => rename(&mut object, &EVENT_FIELDS, true),
        ("autoscaling", "v1", _) => autoscaler_from_v1(&mut object),
        _ => (),
    }
    object.insert("apiVersion".into(), served.storage_version.clone().into());
    object
}

/// core/v1 and events.k8s.io/v1 name the same things differently.
const EVENT_FIELDS: [(&str, &str); 8] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

fn rename(object: &mut Object, fields: &[(&str, &str)], to_left: bool) {
    for (left, right) in fields {
        let (from, to) = if to_left { (right, left) } else { (left, right) };
        if let Some(value) = object.remove(*from) {
            object.insert((*to).to_owned(), value);
        }
    }
}

const CPU_TARGET: &str = "targetCPUUtilizationPercentage";
const METRICS_ANNOTATION: &str = "autoscaling.alpha.kubernetes.io/metrics";

/// v1 has one metric; the others travel in an annotation.
fn autoscaler_to_v1(object: &mut Object) {
    let metrics = object.at(&["spec", "metrics"]).and_then(Value::as_array).cloned().unwrap_or_default();
    object.remove_at(&["spec", "metrics"]);
    let mut others = Vec::new();
    for metric in metrics {
        let is_cpu = metric.pointer("/resource/name").and_then(Value::as_str) == Some("cpu");
        match metric.pointer("/resource/target/averageUtilization") {
            Some(target) if is_cpu => {
                object.at_mut(&["spec"]).insert(CPU_TARGET.into(), target.clone());
            }
            _ => others.push(metric),
        }
    }
    if !others.is_empty() {
        let text = Value::Array(others).to_string();
        object.at_mut(&["metadata", "annotations"]).insert(METRICS_ANNOTATION.into(), text.into());
    }
}

fn autoscaler_from_v1(object: &mut Object) {
    let mut metrics: Vec<Value> = Vec::new();
    if let Some(Value::String(text)) = object.at_mut(&["metadata", "annotations"]).remove(METRICS_ANNOTATION) {
        metrics = serde_json::from_str(&text).unwrap_or_default();
    }
    if let Some(target) = object.at_mut(&["spec"]).remove(CPU_TARGET) {
        let target = json!({"type": "Utilization", "averageUtilization": target});
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
    }
    if !metrics.is_empty() {
        object.at_mut(&["spec"]).insert("metrics".into(), metrics.into());
    }
}
