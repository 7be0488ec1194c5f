//! The columns of what few look at: who may lead, how things are stored, and which devices are tainted or counted.

use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{AGE, Column, NAME, age::since, columns::limited, condition, count, list, number, or, text};

pub(super) static LEASE_CANDIDATES: [Column; 5] = [
    NAME,
    text("LeaseName", |o| or(o, &["spec", "leaseName"], "")),
    text("BinaryVersion", |o| or(o, &["spec", "binaryVersion"], "")),
    text("EmulationVersion", |o| or(o, &["spec", "emulationVersion"], "")),
    AGE,
];

pub(super) static STORAGE_VERSIONS: [Column; 4] = [
    NAME,
    text("CommonEncodingVersion", |o| or(o, &["status", "commonEncodingVersion"], "<unset>")),
    text("StorageVersions", |o| {
        let server =
            |stored: &Object| format!("{}={}", stored.text(&["apiServerID"]), stored.text(&["encodingVersion"]));
        let servers: Vec<String> = list(o, &["status", "storageVersions"]).into_iter().map(server).collect();
        limited(servers.iter().map(String::as_str).collect(), 3)
    }),
    AGE,
];

pub(super) static DEVICE_TAINT_RULES: [Column; 6] = [
    NAME,
    text("Key", |o| or(o, &["spec", "taint", "key"], "")),
    text("Value", |o| or(o, &["spec", "taint", "value"], "")),
    text("Effect", |o| or(o, &["spec", "taint", "effect"], "")),
    text("TimeAdded", |o| match o.text(&["spec", "taint", "timeAdded"]) {
        "" => "".into(),
        at => since(at).into(),
    }),
    AGE,
];

pub(super) static POOL_STATUS_REQUESTS: [Column; 10] = [
    NAME,
    text("Driver", |o| or(o, &["spec", "driver"], "")),
    text("Total", |o| devices(o, |pool| count(pool, &["totalDevices"]))),
    text("Available", |o| devices(o, |pool| count(pool, &["availableDevices"]))),
    text("Allocated", |o| devices(o, |pool| count(pool, &["allocatedDevices"]))),
    text("Unavailable", |o| devices(o, |pool| count(pool, &["unavailableDevices"]))),
    text("Errors", |o| devices(o, |pool| pool.contains_key("validationError").into())),
    number("Pools", |o| count(o, &["status", "poolCount"]).into()),
    text("Status", pools_status),
    text("Completed", |o| match pools_condition(o, "lastTransitionTime") {
        Some(("Complete", at)) => since(at).into(),
        _ => "<none>".into(),
    }),
];

/// The condition that a request has come to, and one of its fields.
fn pools_condition<'a>(object: &'a Object, field: &str) -> Option<(&'static str, &'a str)> {
    let conditions = ["status", "conditions"];
    let is_true = |kind: &&str| condition(object, &conditions, kind, "status") == "True";
    let kind = ["Complete", "Failed"].into_iter().find(is_true)?;
    Some((kind, condition(object, &conditions, kind, field)))
}

fn pools_status(object: &Object) -> Value {
    let (all, told) = (count(object, &["status", "poolCount"]), list(object, &["status", "pools"]).len());
    match pools_condition(object, "status") {
        Some(("Complete", _)) if all > told as i64 => format!("Complete ({told}/{all} pools)").into(),
        Some((kind, _)) => kind.into(),
        None => "Pending".into(),
    }
}

/// What all pools add up to, once they have been counted.
fn devices(object: &Object, of_pool: fn(&Object) -> i64) -> Value {
    let is_counted = object.contains_key("status") && !matches!(pools_condition(object, "status"), Some(("Failed", _)));
    match is_counted {
        true => list(object, &["status", "pools"]).into_iter().map(of_pool).sum::<i64>().to_string().into(),
        false => "-".into(),
    }
}
