//! Claims to persistent volumes: what somebody asks for, and what they got.

use api::field::{FieldError, Path};
use api::quantity::Quantity;
use api::validation::{is_label, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::super::check::{At, check};
use super::super::{Strategy, internal, set_default, warnings};
use super::{VOLUME_MODES, access_modes, not_negative, positive};

const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const SOURCES: [&str; 2] = ["dataSource", "dataSourceRef"];
const RESIZES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

pub(in super::super) struct PersistentVolumeClaims;

impl Strategy for PersistentVolumeClaims {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["name"]
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "volumeMode"], "Filesystem");
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"phase": "Pending"}));
        data_sources(object, None);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        data_sources(new, Some(old));
    }

    fn prepare_part(&self, subresource: &str, new: &mut Object, _: &Object) {
        if subresource == "status" && new.text(&["status", "phase"]).is_empty() {
            new.at_mut(&["status"]).insert("phase".into(), "Pending".into());
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| claim(&at.field("spec"), false))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let had_group = SOURCES.iter().any(|source| {
            let group = old.at(&["spec", source, "apiGroup"]);
            group.is_some_and(|group| !group.is_null())
        });
        let mut errors = check(new, |at| claim(&at.field("spec"), had_group));
        errors.extend(spec_change(new, old));
        errors.extend(shrinks(new, old));
        if new.at(&["spec", "volumeMode"]) != old.at(&["spec", "volumeMode"]) {
            let value = new.at(&["spec", "volumeMode"]).cloned().unwrap_or_default();
            errors.push(FieldError::invalid("volumeMode", value, "field is immutable"));
        }
        errors.extend(class_removed(new, old));
        errors
    }

    fn validate_status(&self, new: &Object, _: &Object) -> Vec<FieldError> {
        check(new, |at| status(&at))
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = Vec::new();
        check(object, |at| {
            let annotations = at.at(&["metadata", "annotations"]);
            if annotations.field(OLD_CLASS).exists() {
                let why = "deprecated since v1.8; use \"storageClassName\" attribute instead";
                told.push(format!("{}: {why}", annotations.path().key(OLD_CLASS)));
            }
            warnings::claim(&at.field("spec"), &mut told);
        });
        told
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _: &Object) -> Vec<String> {
        if subresource.is_empty() { self.warnings(new) } else { Vec::new() }
    }
}

/// The two ways to name a source say the same, and what the older of them cannot name is not named.
fn data_sources(new: &mut Object, old: Option<&Object>) {
    let used = |name: &str| old.is_some_and(|old| old.at(&["spec", name]).is_some());
    let spec = new.at_mut(&["spec"]);
    // Sources in other namespaces are behind a gate that is closed.
    if !spec.text(&["dataSourceRef", "namespace"]).is_empty() && !used("dataSourceRef") {
        spec.remove("dataSourceRef");
    }
    if !used("dataSource") && !used("dataSourceRef") && !spec.contains_key("dataSourceRef") {
        let (group, kind) = (spec.text(&["dataSource", "apiGroup"]), spec.text(&["dataSource", "kind"]));
        if !matches!((group, kind), ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")) {
            spec.remove("dataSource");
        }
    }
    let [local, any] = SOURCES;
    match (spec.get(local).cloned(), spec.get(any).cloned()) {
        (Some(source), None) => drop(spec.insert(any.into(), source)),
        (None, Some(Value::Object(mut source))) if source.text(&["namespace"]).is_empty() => {
            source.remove("namespace");
            spec.insert(local.into(), source.into());
        }
        _ => (),
    }
}

/// The spec of a claim, or of the template of one.
pub(in super::super) fn claim_spec(spec: &At<'_>) {
    claim(spec, false);
}

fn claim(spec: &At<'_>, any_group: bool) {
    let modes = spec.field("accessModes");
    if modes.is_empty() {
        modes.required("at least 1 access mode is required");
    }
    spec.field("selector").selector();
    access_modes(&modes);
    let amount = spec.at(&["resources", "requests", "storage"]).called(spec.path().child("resources").key("storage"));
    if amount.exists() {
        positive(&amount);
    } else {
        amount.required("");
    }
    spec.field("storageClassName").named_if_set(is_subdomain);
    spec.field("volumeMode").one_of_if_set(&VOLUME_MODES);
    let [local, any] = SOURCES.map(|name| spec.field(name));
    data_source(&local, any_group);
    data_source(&any, any_group);
    any.field("namespace").named_if_set(is_label);
    let mismatch = |why: &str| {
        let mut error = FieldError::invalid(spec.path(), Value::Null, why);
        // Upstream shows a path here, of which nothing can be seen.
        error.value = "{}".to_owned();
        spec.complain(error);
    };
    if local.exists() && !any.field("namespace").text().is_empty() {
        mismatch("may not be specified when dataSourceRef.namespace is specified");
    } else if local.exists() && any.exists() {
        let is_same = |name: &str| local.field(name).text() == any.field(name).text();
        if local.field("apiGroup").value() != any.field("apiGroup").value() || !is_same("kind") || !is_same("name") {
            mismatch("must match dataSourceRef");
        }
    }
    spec.field("volumeAttributesClassName").named_if_set(is_subdomain);
}

fn data_source(at: &At<'_>, any_group: bool) {
    if !at.exists() {
        return;
    }
    at.field("name").needed();
    let (group, kind) = (at.field("apiGroup"), at.field("kind"));
    kind.needed();
    if group.is_empty() && kind.text() != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        at.complain(FieldError::invalid(at.path(), kind.text(), detail));
    }
    if !any_group {
        group.named_if_set(is_subdomain);
    }
}

/// What was asked for stays, but for the size and the class of a claim that has its volume.
fn spec_change(new: &Object, old: &Object) -> Vec<FieldError> {
    const KEPT: &str =
        "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
    let spec_of = |object: &Object| object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut is, mut was) = (spec_of(new), spec_of(old));
    let mut errors = Vec::new();
    // The controller binds it once.
    if was.text(&["volumeName"]).is_empty() {
        copy(&mut was, &is, "volumeName");
    }
    let annotation = |object: &Object| object.at(&["metadata", "annotations", OLD_CLASS]).cloned();
    let (class, has_class) = (is.get("storageClassName").cloned(), was.contains_key("storageClassName"));
    let may_come = class.is_some() && !has_class;
    match (annotation(old), annotation(new)) {
        (Some(before), now)
            if may_come && class.as_ref() == Some(&before) && now.as_ref().is_none_or(|now| *now == before) =>
        {
            is.remove("storageClassName");
        }
        (before, now) => {
            let (before, now) = (before.unwrap_or_else(|| "".into()), now.unwrap_or_else(|| "".into()));
            if before != now {
                let path = Path::new("metadata.annotations").child(OLD_CLASS);
                errors.push(FieldError::invalid(&path, now, "field is immutable"));
            }
            if may_come && (before == "" || class == Some(before)) {
                is.remove("storageClassName");
            }
        }
    }
    if new.text(&["status", "phase"]) == "Bound" {
        if is.at(&["resources", "requests"]).is_some() {
            let size = was.at(&["resources", "requests", "storage"]).cloned().unwrap_or_else(|| "0".into());
            is.at_mut(&["resources", "requests"]).insert("storage".into(), size);
        }
        let before = was.clone();
        copy(&mut is, &before, "volumeAttributesClassName");
    }
    if !is_same(&is, &was) {
        let change = internal::difference("PersistentVolumeClaimSpec", &was.into(), &is.into());
        errors.push(FieldError::forbidden("spec", format!("{KEPT}\n{change}")));
    }
    errors
}

fn copy(to: &mut Object, from: &Object, key: &str) {
    match from.get(key).cloned() {
        Some(value) => drop(to.insert(key.to_owned(), value)),
        None => drop(to.remove(key)),
    }
}

/// The same, where what is empty is nothing.
fn is_same(new: &Object, old: &Object) -> bool {
    fn trimmed(object: &Object) -> Object {
        let lean = |value: &Value| match value {
            Value::Object(inner) => Value::Object(trimmed(inner)),
            other => other.clone(),
        };
        let is_something = |value: &Value| match value {
            Value::Array(items) => !items.is_empty(),
            Value::Null => false,
            _ => true,
        };
        let fields = object.iter().map(|(key, value)| (key.clone(), lean(value)));
        fields.filter(|(key, value)| is_something(value) && (key != "limits" || *value != json!({}))).collect()
    }
    trimmed(new) == trimmed(old)
}

/// What could not grow may be asked for smaller again, but not so small as it is.
fn shrinks(new: &Object, old: &Object) -> Option<FieldError> {
    let size =
        |object: &Object, path: &[&str]| Quantity::parse(object.text(path)).unwrap_or_else(|_| Quantity::from_whole(0));
    const ASKED: [&str; 4] = ["spec", "resources", "requests", "storage"];
    let (now, before) = (size(new, &ASKED), size(old, &ASKED));
    let has = size(old, &["status", "capacity", "storage"]);
    (now < before && now <= has)
        .then(|| FieldError::forbidden(ASKED.join("."), "field can not be less than status.capacity"))
}

/// A class that is applied is changed, not taken away.
fn class_removed(new: &Object, old: &Object) -> Option<FieldError> {
    const CLASS: [&str; 2] = ["spec", "volumeAttributesClassName"];
    let (is, was) = (new.at(&CLASS), old.at(&CLASS));
    if is == was || old.at(&["status", "currentVolumeAttributesClassName"]).is_none() {
        return None;
    }
    let to = match is.map(Value::as_str) {
        None => "nil",
        Some(Some("")) => "empty string",
        _ => return None,
    };
    let detail = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
    Some(FieldError::forbidden(CLASS.join("."), detail))
}

fn status(at: &At<'_>) {
    let modes = at.at(&["spec", "accessModes"]);
    if modes.is_empty() {
        modes.called(Path::new("Spec").child("accessModes")).required("");
    }
    let status = at.field("status");
    for (_, amount) in status.field("capacity").entries() {
        not_negative(&amount);
    }
    let resizes = status.field("allocatedResourceStatuses");
    for (name, state) in resizes.entries() {
        resource_key(&resizes, name);
        if !RESIZES.contains(&state.text()) {
            resizes.complain(FieldError::not_supported(resizes.path(), name, &RESIZES));
        }
    }
    let amounts = status.field("allocatedResources");
    for (name, amount) in amounts.entries() {
        if resource_key(&amounts, name) {
            not_negative(&amount);
        }
    }
}

/// Of what Kubernetes itself counts, only storage can be claimed.
fn resource_key(at: &At<'_>, name: &str) -> bool {
    let wrong = is_qualified_name(name);
    let is_named = wrong.is_empty();
    wrong.into_iter().for_each(|why| at.complain(FieldError::invalid(at.path(), name, why)));
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    let is_other = is_named && is_native && name != "storage";
    if is_other {
        at.complain(FieldError::not_supported(at.path(), name, &["storage"]));
    }
    is_named && !is_other
}
