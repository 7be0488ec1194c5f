//! The columns of volumes, claims and what provides them.

use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{AGE, Column, NAME, flag, list, number, or, strings, text, wide};

pub(super) static PERSISTENT_VOLUMES: [Column; 11] = [
    NAME,
    text("Capacity", |o| or(o, &["spec", "capacity", "storage"], "0")),
    text("Access Modes", |o| access_modes(o, &["spec", "accessModes"])),
    text("Reclaim Policy", |o| or(o, &["spec", "persistentVolumeReclaimPolicy"], "")),
    text("Status", phase),
    text("Claim", |o| match o.at(&["spec", "claimRef"]) {
        Some(_) => {
            format!("{}/{}", o.text(&["spec", "claimRef", "namespace"]), o.text(&["spec", "claimRef", "name"])).into()
        }
        None => "".into(),
    }),
    text("StorageClass", |o| or(o, &["spec", "storageClassName"], "")),
    text("VolumeAttributesClass", |o| or(o, &["spec", "volumeAttributesClassName"], "<unset>")),
    text("Reason", |o| or(o, &["status", "reason"], "")),
    AGE,
    wide("VolumeMode", |o| or(o, &["spec", "volumeMode"], "<unset>")),
];

pub(super) static PERSISTENT_VOLUME_CLAIMS: [Column; 9] = [
    NAME,
    text("Status", phase),
    text("Volume", |o| or(o, &["spec", "volumeName"], "")),
    text("Capacity", |o| match o.text(&["spec", "volumeName"]) {
        "" => "".into(),
        _ => or(o, &["status", "capacity", "storage"], "0"),
    }),
    text("Access Modes", |o| match o.text(&["spec", "volumeName"]) {
        "" => "".into(),
        _ => access_modes(o, &["status", "accessModes"]),
    }),
    text("StorageClass", |o| or(o, &["spec", "storageClassName"], "")),
    text("VolumeAttributesClass", |o| or(o, &["spec", "volumeAttributesClassName"], "<unset>")),
    AGE,
    wide("VolumeMode", |o| or(o, &["spec", "volumeMode"], "<unset>")),
];

pub(super) static STORAGE_CLASSES: [Column; 6] = [
    text("Name", |o| with_default(o, "storageclass.kubernetes.io/is-default-class")),
    text("Provisioner", |o| or(o, &["provisioner"], "")),
    text("ReclaimPolicy", |o| or(o, &["reclaimPolicy"], "Delete")),
    text("VolumeBindingMode", |o| or(o, &["volumeBindingMode"], "Immediate")),
    text("AllowVolumeExpansion", |o| is_set(o, &["allowVolumeExpansion"], false)),
    AGE,
];

pub(super) static CSI_DRIVERS: [Column; 8] = [
    NAME,
    flag("AttachRequired", |o| is_set(o, &["spec", "attachRequired"], true)),
    flag("PodInfoOnMount", |o| is_set(o, &["spec", "podInfoOnMount"], false)),
    flag("StorageCapacity", |o| is_set(o, &["spec", "storageCapacity"], false)),
    text("TokenRequests", |o| match o.at(&["spec", "tokenRequests"]) {
        Some(_) => {
            let all = list(o, &["spec", "tokenRequests"]);
            all.into_iter().map(|request| request.text(&["audience"])).collect::<Vec<_>>().join(",").into()
        }
        None => "<unset>".into(),
    }),
    flag("RequiresRepublish", |o| is_set(o, &["spec", "requiresRepublish"], false)),
    text("Modes", |o| match strings(o, &["spec", "volumeLifecycleModes"]).join(",") {
        none if none.is_empty() => "<none>".into(),
        modes => modes.into(),
    }),
    AGE,
];

pub(super) static CSI_NODES: [Column; 3] =
    [NAME, number("Drivers", |o| list(o, &["spec", "drivers"]).len().into()), AGE];

pub(super) static VOLUME_ATTACHMENTS: [Column; 6] = [
    NAME,
    Column { format: "name", ..text("Attacher", |o| or(o, &["spec", "attacher"], "")) },
    text("PV", |o| or(o, &["spec", "source", "persistentVolumeName"], "")),
    text("Node", |o| or(o, &["spec", "nodeName"], "")),
    flag("Attached", |o| is_set(o, &["status", "attached"], false)),
    AGE,
];

pub(super) static VOLUME_ATTRIBUTES_CLASSES: [Column; 3] =
    [NAME, text("DriverName", |o| or(o, &["driverName"], "")), AGE];

fn phase(object: &Object) -> Value {
    if object.is_terminating() { "Terminating".into() } else { or(object, &["status", "phase"], "") }
}

/// `RWO,ROX`
fn access_modes(object: &Object, path: &[&str]) -> Value {
    let found = strings(object, path);
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let short = known.into_iter().filter(|(mode, _)| found.contains(mode)).map(|(_, short)| short);
    short.collect::<Vec<_>>().join(",").into()
}

fn is_set(object: &Object, path: &[&str], default: bool) -> Value {
    object.at(path).and_then(Value::as_bool).unwrap_or(default).into()
}

/// The name, marked where an annotation makes it the default of its kind.
pub(super) fn with_default(object: &Object, annotation: &str) -> Value {
    let is_default = object.text(&["metadata", "annotations", annotation]) == "true";
    format!("{}{}", object.name(), if is_default { " (default)" } else { "" }).into()
}
