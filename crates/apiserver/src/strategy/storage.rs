//! Volumes, claims, and the classes and drivers behind them.

use api::field::FieldError;
use api::validation::{is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check, unique};
use super::pod_validation::HOST_PATH_TYPES;
use super::{Strategy, fixed, set_default, warnings};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
/// What a persistent volume's spec has beside where its data is.
const NOT_A_SOURCE: [&str; 10] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
    "volumeNamespace",
];

pub(super) struct PersistentVolumes;

impl Strategy for PersistentVolumes {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["name"]
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "persistentVolumeReclaimPolicy"], "Retain");
        set_default(object, &["spec", "volumeMode"], "Filesystem");
        if object.at(&["spec", "hostPath"]).is_some() {
            set_default(object, &["spec", "hostPath", "type"], "");
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        let now = crate::handlers::now();
        object.insert("status".into(), json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            let modes = spec.field("accessModes");
            if modes.is_empty() {
                modes.required("");
            }
            one_of_each(&modes, &ACCESS_MODES);
            let capacity = spec.field("capacity");
            if capacity.is_empty() {
                capacity.required("");
            }
            if !capacity.field("storage").exists() || capacity.entries().len() > 1 {
                capacity.complain(FieldError::not_supported(capacity.path(), capacity.value().clone(), &["storage"]));
            }
            for (_, amount) in capacity.entries() {
                positive(&amount);
            }
            spec.field("persistentVolumeReclaimPolicy").one_of(&["Delete", "Recycle", "Retain"]);
            source(&spec);
            spec.field("storageClassName").named_if_set(is_subdomain);
            spec.field("volumeMode").one_of_if_set(&VOLUME_MODES);
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let place = |object: &Object| -> Object {
            let spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
            spec.into_iter().filter(|(key, _)| !NOT_A_SOURCE.contains(&key.as_str())).collect()
        };
        let mut errors = Vec::new();
        if place(new) != place(old) {
            let detail = "spec.persistentvolumesource is immutable after creation";
            errors.push(FieldError::forbidden("spec.persistentvolumesource", detail));
        }
        if new.at(&["spec", "volumeMode"]) != old.at(&["spec", "volumeMode"]) {
            let value = new.at(&["spec", "volumeMode"]).cloned().unwrap_or_default();
            errors.push(FieldError::invalid("volumeMode", value, "field is immutable"));
        }
        errors
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        const GONE: [(&str, &str, &str); 6] = [
            ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
            ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
            ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
            ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
            ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
            ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
        ];
        let mut told = Vec::new();
        check(object, |at| {
            let spec = at.field("spec");
            if spec.field("persistentVolumeReclaimPolicy").text() == "Recycle" {
                let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
                told.push(format!("spec.persistentVolumeReclaimPolicy: {why}"));
            }
            for term in spec.at(&["nodeAffinity", "required"]).each("nodeSelectorTerms") {
                warnings::node_term(&term, &mut told);
            }
            warnings::volume_sources(&spec, &GONE, &mut told);
        });
        told
    }
}

/// Exactly one place where the data is.
fn source(spec: &At<'_>) {
    let sources: Vec<&str> =
        spec.entries().into_iter().map(|(key, _)| key).filter(|key| !NOT_A_SOURCE.contains(key)).collect();
    if sources.is_empty() {
        spec.required("must specify a volume type");
    }
    let path = spec.at(&["hostPath", "path"]);
    if spec.field("hostPath").exists() {
        if path.is_empty() {
            path.required("");
        } else if path.text().split('/').any(|part| part == "..") {
            path.invalid("must not contain '..'");
        }
        spec.at(&["hostPath", "type"]).one_of_if_set(&HOST_PATH_TYPES);
    }
    for extra in sources.iter().skip(1) {
        spec.field(extra).forbidden("may not specify more than 1 volume type");
    }
    if spec.field("nfs").exists() && sources.first() == Some(&"nfs") {
        spec.at(&["nfs", "server"]).needed();
        spec.at(&["nfs", "path"]).needed();
    }
    if spec.field("csi").exists() {
        spec.at(&["csi", "driver"]).needed();
        spec.at(&["csi", "volumeHandle"]).needed();
    }
    if spec.field("local").exists() {
        spec.at(&["local", "path"]).needed();
        if !spec.at(&["nodeAffinity", "required"]).exists() {
            spec.field("nodeAffinity").required("Local volume requires node affinity");
        }
    }
}

/// A value that is none of those allowed is told about its list, not its place in it.
fn one_of_each(list: &At<'_>, allowed: &[&str]) {
    for item in list.items() {
        item.called(list.path().clone()).one_of(allowed);
    }
}

fn positive(at: &At<'_>) {
    if at.quantity().is_some_and(|amount| !amount.is_positive()) {
        at.invalid("must be greater than zero");
    }
}

pub(super) struct PersistentVolumeClaims;

impl Strategy for PersistentVolumeClaims {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["name"]
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "volumeMode"], "Filesystem");
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"phase": "Pending"}));
        // A data source that names no kind is none.
        let named = object.at(&["spec", "dataSource", "name"]).is_some();
        if object.at(&["spec", "dataSource"]).is_some() && !named {
            object.remove_at(&["spec", "dataSource"]);
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| claim_spec(&at.field("spec")))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        const MESSAGE: &str =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let bound = |object: &Object| object.text(&["status", "phase"]) == "Bound";
        let rest = |object: &Object| -> Object {
            let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
            if bound(old) {
                spec.remove_at(&["resources", "requests"]);
                spec.remove("volumeAttributesClassName");
            }
            // The controller binds it, and classes are given afterwards.
            if old.text(&["spec", "volumeName"]).is_empty() {
                spec.remove("volumeName");
            }
            if old.at(&["spec", "storageClassName"]).is_none() {
                spec.remove("storageClassName");
            }
            spec
        };
        if rest(new) == rest(old) { Vec::new() } else { vec![FieldError::forbidden("spec", MESSAGE)] }
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = Vec::new();
        check(object, |at| warnings::claim(&at.field("spec"), &mut told));
        told
    }
}

pub(super) fn claim_spec(spec: &At<'_>) {
    let modes = spec.field("accessModes");
    if modes.is_empty() {
        modes.required("at least 1 access mode is required");
    }
    spec.field("selector").selector();
    one_of_each(&modes, &ACCESS_MODES);
    let amount = spec.at(&["resources", "requests", "storage"]).called(spec.path().child("resources").key("storage"));
    if amount.exists() {
        positive(&amount);
    } else {
        amount.required("");
    }
    spec.field("storageClassName").named_if_set(is_subdomain);
    spec.field("volumeMode").one_of_if_set(&VOLUME_MODES);
}

pub(super) struct StorageClasses;

impl Strategy for StorageClasses {
    fn default(&self, object: &mut Object) {
        set_default(object, &["reclaimPolicy"], "Delete");
        set_default(object, &["volumeBindingMode"], "Immediate");
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("provisioner").needed_named(is_driver);
            parameters(&at.field("parameters"));
            at.field("reclaimPolicy").one_of_if_set(&["Delete", "Retain"]);
            let mode = at.field("volumeBindingMode");
            if mode.exists() {
                mode.one_of(&["Immediate", "WaitForFirstConsumer"])
            } else {
                mode.required("")
            }
            for topology in at.each("allowedTopologies") {
                for expression in topology.each("matchLabelExpressions") {
                    expression.field("values").needed();
                    expression.field("key").named(is_qualified_name);
                }
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed(new, old, &["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"])
    }
}

/// A driver or provisioner: a qualified name, whatever its case.
fn is_driver(text: &str) -> Vec<String> {
    is_qualified_name(&text.to_lowercase())
}

fn parameters(at: &At<'_>) {
    const MAX_BYTES: usize = 256 << 10;
    const MAX_COUNT: usize = 512;
    let entries = at.entries();
    if entries.len() > MAX_COUNT {
        let detail = format!("must have at most {MAX_COUNT} items");
        at.complain(FieldError::invalid(at.path(), at.value().clone(), detail));
    }
    let mut bytes = 0;
    for (key, value) in entries {
        if key.is_empty() {
            at.complain(FieldError::invalid(at.path(), key, "field can not be empty."));
        }
        bytes += key.len() + value.text().len();
    }
    if bytes > MAX_BYTES {
        at.complain(FieldError::too_long(at.path(), MAX_BYTES));
    }
}

pub(super) struct VolumeAttributesClasses;

impl Strategy for VolumeAttributesClasses {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("driverName").needed_named(is_driver);
            let given = at.field("parameters");
            if given.is_empty() {
                given.required("must contain at least one key/value pair");
            }
            parameters(&given);
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = fixed(new, old, &["driverName"]);
        if new.get("parameters") != old.get("parameters") {
            errors.push(FieldError::forbidden("parameters", "updates to parameters are forbidden."));
        }
        errors
    }
}

pub(super) struct CsiDrivers;

impl Strategy for CsiDrivers {
    fn default(&self, object: &mut Object) {
        for (field, value) in [
            ("attachRequired", json!(true)),
            ("podInfoOnMount", json!(false)),
            ("storageCapacity", json!(false)),
            ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
            ("requiresRepublish", json!(false)),
            ("seLinuxMount", json!(false)),
            ("volumeLifecycleModes", json!(["Persistent"])),
        ] {
            set_default(object, &["spec", field], value);
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("fsGroupPolicy").one_of_if_set(&["File", "None", "ReadWriteOnceWithFSType"]);
            let requests = spec.each("tokenRequests");
            unique(requests.iter().map(|request| request.field("audience")));
            // Upstream stops at the first of an audience.
            let mut seen = Vec::new();
            for request in &requests {
                let (audience, seconds) = (request.field("audience"), request.field("expirationSeconds"));
                if seen.contains(&audience.text()) {
                    continue;
                }
                seen.push(audience.text());
                if seconds.number().is_some_and(|seconds| seconds < 600) {
                    seconds.invalid("may not specify a duration less than 10 minutes");
                }
                if seconds.number().is_some_and(|seconds| seconds > 1 << 32) {
                    seconds.invalid("may not specify a duration larger than 2^32 seconds");
                }
            }
            one_of_each(&spec.field("volumeLifecycleModes"), &["Persistent", "Ephemeral"]);
            let period = spec.field("nodeAllocatableUpdatePeriodSeconds");
            if period.number().is_some_and(|seconds| seconds < 10) {
                period.invalid("must be greater than or equal to 10 seconds");
            }
        })
    }
}

pub(super) struct CsiNodes;

impl Strategy for CsiNodes {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let mut names = Vec::new();
            for driver in at.at(&["spec", "drivers"]).items() {
                let name = driver.field("name");
                name.needed_named(is_subdomain);
                if driver.field("nodeID").needed() && driver.field("nodeID").text().len() > 192 {
                    driver.field("nodeID").invalid("must be 192 characters or less");
                }
                driver.at(&["allocatable", "count"]).not_negative();
                let mut seen = Vec::new();
                for key in driver.each("topologyKeys") {
                    let key = key.called(driver.path().clone());
                    if key.text().is_empty() {
                        key.required("");
                    }
                    if seen.contains(&key.text()) {
                        key.duplicate();
                    }
                    seen.push(key.text());
                    key.named(is_qualified_name);
                }
                if names.contains(&name.text()) {
                    name.duplicate();
                }
                names.push(name.text());
            }
        })
    }
}

pub(super) struct VolumeAttachments;

impl Strategy for VolumeAttachments {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("attacher").needed_named(is_driver);
            let source = spec.field("source");
            let (inline, name) = (source.field("inlineVolumeSpec"), source.field("persistentVolumeName"));
            match (inline.exists(), name.exists()) {
                (false, false) => {
                    source.required("must specify exactly one of inlineVolumeSpec and persistentVolumeName")
                }
                (true, true) => {
                    source.forbidden("must specify exactly one of inlineVolumeSpec and persistentVolumeName")
                }
                (false, true) if name.text().is_empty() => name.required("must specify non empty persistentVolumeName"),
                _ => (),
            }
            spec.field("nodeName").named(is_subdomain);
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        if new.get("spec") == old.get("spec") {
            return Vec::new();
        }
        vec![FieldError::invalid("spec", new.get("spec").cloned().unwrap_or_default(), "field is immutable")]
    }
}

pub(super) struct CsiStorageCapacities;

impl Strategy for CsiStorageCapacities {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("nodeTopology").selector();
            at.field("storageClassName").named(is_subdomain);
            at.field("capacity").quantity_not_negative();
            let (most, capacity) = (at.field("maximumVolumeSize"), at.field("capacity"));
            if most.quantity().is_some_and(|size| !size.is_positive())
                && capacity.quantity().is_none_or(|c| !c.is_negative())
            {
                most.invalid("must be greater than zero");
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed(new, old, &["nodeTopology", "storageClassName"])
    }
}
