//! Conversion between the version a client speaks and the one that is stored.

mod autoscaling;

use api::Object;
use api::schema::{self, Type};
use serde_json::Value;

use crate::registry::Served;

pub(crate) fn from_storage(served: &Served, mut object: Object) -> Object {
    if served.is_storage_version() {
        return object;
    }
    match (served.info.group.as_str(), served.info.version.as_str(), served.info.plural.as_str()) {
        ("events.k8s.io", _, "events") => rename(&mut object, &EVENT_FIELDS, false),
        ("autoscaling", "v1", _) => autoscaling::to_v1(&mut object),
        _ => (),
    }
    settle(&mut object, &served.schema);
    object.insert("apiVersion".into(), served.info.api_version().into());
    object
}

pub(crate) fn to_storage(served: &Served, mut object: Object) -> Object {
    if served.is_storage_version() {
        return object;
    }
    match (served.info.group.as_str(), served.info.version.as_str(), served.info.plural.as_str()) {
        ("events.k8s.io", _, "events") => rename(&mut object, &EVENT_FIELDS, true),
        ("autoscaling", "v1", _) => autoscaling::from_v1(&mut object),
        _ => (),
    }
    let (group, version) = served.storage_version.split_once('/').unwrap_or(("", &served.storage_version));
    if let Some(schema) = schema::of_kind(group, version, &served.info.kind) {
        settle(&mut object, schema);
    }
    object.insert("apiVersion".into(), served.storage_version.clone().into());
    object
}

/// What one version leaves out when it is zero, another may write.
fn settle(object: &mut Object, schema: &Type) {
    let mut value = Value::Object(std::mem::take(object));
    // It was fitted to its own version before: nothing in it can be of a wrong type here.
    let _ = api::decode::conform(&mut value, schema);
    if let Value::Object(fitted) = value {
        *object = fitted;
    }
    api::decode::complete(object, schema);
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
