//! The small strategies of the core group and its neighbours.

use api::field::FieldError;
use api::validation::NameRule;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{Strategy, set_default};

pub(super) struct Namespaces;

impl Strategy for Namespaces {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.phase"]
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Label
    }

    fn default(&self, object: &mut Object) {
        let name = object.name().to_owned();
        if !name.is_empty() {
            object.at_mut(&["metadata", "labels"]).insert("kubernetes.io/metadata.name".into(), name.into());
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"phase": "Active"}));
        let has_own = object
            .at(&["spec", "finalizers"])
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().any(|finalizer| finalizer == "kubernetes"));
        if !has_own {
            object.at_mut(&["spec"]).insert("finalizers".into(), json!(["kubernetes"]));
        }
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        if let Some(finalizers) = old.at(&["spec", "finalizers"]) {
            new.at_mut(&["spec"]).insert("finalizers".into(), finalizers.clone());
        }
    }
}

pub(super) struct Nodes;

impl Strategy for Nodes {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.unschedulable"]
    }

    fn keeps_status_on_create(&self) -> bool {
        true
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let (now, before) = (new.text(&["spec", "podCIDR"]), old.text(&["spec", "podCIDR"]));
        if before.is_empty() || now == before {
            return Vec::new();
        }
        vec![FieldError::forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid")]
    }
}

pub(super) struct Secrets;

impl Strategy for Secrets {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["type"]
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["type"], "Opaque");
    }

    /// `stringData` is written by clients and never read back.
    fn prepare_for_create(&self, object: &mut Object) {
        use base64::Engine as _;
        if let Some(Value::Object(texts)) = object.remove("stringData") {
            let data = object.at_mut(&["data"]);
            for (key, text) in texts {
                let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
                data.insert(key, encoded.into());
            }
        }
    }

    fn prepare_for_update(&self, new: &mut Object, _old: &Object) {
        self.prepare_for_create(new);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        data_keys(object, &["data"])
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = immutable_data(new, old);
        if new.get("type") != old.get("type") {
            errors.push(FieldError::invalid(
                "type",
                new.get("type").cloned().unwrap_or_default(),
                "field is immutable",
            ));
        }
        errors
    }
}

pub(super) struct ConfigMaps;

impl Strategy for ConfigMaps {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        data_keys(object, &["data", "binaryData"])
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        immutable_data(new, old)
    }
}

const DATA_MAX: usize = 1 << 20;

fn data_keys(object: &Object, fields: &[&str]) -> Vec<FieldError> {
    const MESSAGE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    let mut errors = Vec::new();
    let mut total = 0;
    for field in fields {
        for (key, value) in object.get(*field).and_then(Value::as_object).into_iter().flatten() {
            total += value.as_str().map_or(0, str::len);
            if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
                errors.push(FieldError::invalid(format!("{field}[{key}]"), key.as_str(), MESSAGE));
            }
        }
    }
    if total > DATA_MAX + DATA_MAX / 3 {
        errors.push(FieldError::too_long("", DATA_MAX));
    }
    errors
}

fn immutable_data(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get("immutable") == Some(&Value::Bool(true)) {
        const MESSAGE: &str = "field is immutable when `immutable` is set";
        for field in ["immutable", "data", "binaryData"] {
            if new.get(field) != old.get(field) {
                errors.push(FieldError::forbidden(field, MESSAGE));
            }
        }
    }
    errors
}

pub(super) struct Events;

impl Strategy for Events {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

pub(super) struct PersistentVolumes;

impl Strategy for PersistentVolumes {
    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "persistentVolumeReclaimPolicy"], "Retain");
        set_default(object, &["spec", "volumeMode"], "Filesystem");
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"phase": "Pending"}));
    }
}

pub(super) struct PersistentVolumeClaims;

impl Strategy for PersistentVolumeClaims {
    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "volumeMode"], "Filesystem");
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"phase": "Pending"}));
    }
}

/// Endpoints and leases: a PUT creates what does not exist.
pub(super) struct CreatedOnUpdate;

impl Strategy for CreatedOnUpdate {
    fn creates_on_update(&self) -> bool {
        true
    }
}

/// Kinds that are plain but for a counted spec.
pub(super) struct Generational;

impl Strategy for Generational {
    fn counts_generation(&self) -> bool {
        true
    }
}

pub(super) struct CertificateSigningRequests;

impl Strategy for CertificateSigningRequests {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.signerName"]
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "usages"], json!(["digital signature", "key encipherment"]));
    }
}
