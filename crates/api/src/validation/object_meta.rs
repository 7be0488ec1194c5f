//! The rules of metadata, which every object has.

use serde_json::{Value, json};

use super::{ANNOTATIONS_MAX, NameRule, is_label, is_qualified_name, labels};
use crate::field::{FieldError, Path};
use crate::object::{Object, ObjectExt};

const IMMUTABLE: &str = "field is immutable";
const MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;

/// How often the metadata of a changed object is looked at after the first time, and how: upstream's kinds differ in it, and tell
/// what is wrong as often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// As that of a new object.
    Whole,
    /// For what may not change.
    Change,
}

/// The rules of ObjectMeta on creation. Most of upstream's own kinds hold finalizers to more, which `is_core` says.
pub fn object_meta(object: &Object, namespaced: bool, rule: NameRule, is_core: bool) -> Vec<FieldError> {
    let mut errors = whole(object, namespaced, rule);
    if is_core {
        errors.extend(standard_finalizers(object));
    }
    errors
}

/// The rules of ObjectMeta on every change: those that all kinds share, and then those of the kind.
pub fn object_meta_update(
    new: &Object,
    old: &Object,
    namespaced: bool,
    rule: NameRule,
    is_core: bool,
    again: &[Again],
) -> Vec<FieldError> {
    let mut errors = whole(new, namespaced, NameRule::PathSegment);
    errors.extend(change(new, old));
    // What was fine once is fine again, but for names, whose rule is the kind's only now.
    let is_fine = errors.is_empty();
    for how in again {
        match how {
            Again::Whole if is_fine => errors.extend(names(new, rule)),
            Again::Whole => errors.extend(whole(new, namespaced, rule)),
            Again::Change if is_fine => (),
            Again::Change => errors.extend(change(new, old)),
        }
        if is_core {
            errors.extend(standard_finalizers(new));
        }
    }
    errors
}

fn names(object: &Object, rule: NameRule) -> Vec<FieldError> {
    let path = Path::new("metadata");
    let mut errors = Vec::new();
    let generate = object.text(&["metadata", "generateName"]);
    if !generate.is_empty() {
        let found = rule.check_prefix(generate).into_iter();
        errors.extend(found.map(|e| FieldError::invalid(&path.child("generateName"), generate, e)));
    }
    match object.name() {
        "" => errors.push(FieldError::required(&path.child("name"), "name or generateName is required")),
        name => {
            let found = rule.check(name).into_iter();
            errors.extend(found.map(|e| FieldError::invalid(&path.child("name"), name, e)));
        }
    }
    errors
}

fn whole(object: &Object, namespaced: bool, rule: NameRule) -> Vec<FieldError> {
    let path = Path::new("metadata");
    let mut errors = names(object, rule);
    match (namespaced, object.namespace()) {
        (true, "") => errors.push(FieldError::required(&path.child("namespace"), "")),
        (true, namespace) => {
            let found = is_label(namespace).into_iter();
            errors.extend(found.map(|e| FieldError::invalid(&path.child("namespace"), namespace, e)));
        }
        (false, "") => (),
        (false, _) => errors.push(FieldError::forbidden(&path.child("namespace"), "not allowed on this type")),
    }
    if let Some(generation) = object.at(&["metadata", "generation"]).and_then(Value::as_i64).filter(|g| *g < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("generation"), generation, why));
    }
    errors.extend(maps_and_owners(object));
    errors.extend(finalizers(object, &path.child("finalizers")));
    errors.extend(managers(object, &path.child("managedFields")));
    errors
}

/// What an update may not change.
fn change(new: &Object, old: &Object) -> Vec<FieldError> {
    let path = Path::new("metadata");
    let mut errors = Vec::new();
    if old.is_terminating() {
        let before = old.finalizers();
        let mut added: Vec<&str> = new.finalizers().into_iter().filter(|f| !before.contains(f)).collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let added = added.iter().map(|f| format!("{f:?}")).collect::<Vec<_>>().join(", ");
            let why = "no new finalizers can be added if the object is being deleted, found new finalizers []string";
            errors.push(FieldError::forbidden(&path.child("finalizers"), format!("{why}{{{added}}}")));
        }
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (now, before) = (new.at(&["metadata", field]), old.at(&["metadata", field]));
        if now != before {
            let value = now.cloned().unwrap_or(Value::Null);
            errors.push(FieldError::invalid(&path.child(field), value, IMMUTABLE));
        }
    }
    errors.extend(maps_and_owners(new));
    errors.extend(managers(new, &path.child("managedFields")));
    errors
}

fn maps_and_owners(object: &Object) -> Vec<FieldError> {
    let path = Path::new("metadata");
    let mut errors = labels(object.at(&["metadata", "labels"]), &path.child("labels"));
    errors.extend(annotations(object.at(&["metadata", "annotations"]), &path.child("annotations")));
    errors.extend(owners(object.at(&["metadata", "ownerReferences"]), &path.child("ownerReferences")));
    errors
}

/// A reference to an owner with its fields in upstream's order, in which messages show it.
fn owner_text(owner: &Object) -> String {
    const FIELDS: [&str; 6] = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let is_shown = |field: &str| field != "controller" && field != "blockOwnerDeletion";
    let shown = FIELDS.iter().filter_map(|field| match owner.get(*field) {
        Some(value) => Some(format!("{field:?}:{value}")),
        None => is_shown(field).then(|| format!("{field:?}:\"\"")),
    });
    format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
}

fn shown_as(mut error: FieldError, value: String) -> FieldError {
    error.value = value;
    error
}

/// Owners are named in full, and one of them at most is the controller.
fn owners(owners: Option<&Value>, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controller = None;
    for owner in owners.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object) {
        // Upstream tells of the list here, not of the place in it.
        let version = owner.text(&["apiVersion"]);
        if version.rsplit('/').next().is_none_or(str::is_empty) || version.matches('/').count() > 1 {
            errors.push(FieldError::invalid(&path.child("apiVersion"), version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if owner.text(&[field]).is_empty() {
                errors.push(FieldError::invalid(&path.child(field), "", "must not be empty"));
            }
        }
        if (owner.text(&["apiVersion"]), owner.text(&["kind"])) == ("v1", "Event") {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(shown_as(FieldError::invalid(path, "", why), owner_text(owner)));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            let name = owner.text(&["kind"]).to_owned() + "/" + owner.text(&["name"]);
            match &controller {
                Some(first) => {
                    let why = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    let all = owners.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
                    let shown = format!("[{}]", all.map(owner_text).collect::<Vec<_>>().join(","));
                    errors.push(shown_as(FieldError::invalid(path, "", why), shown));
                }
                None => controller = Some(name),
            }
        }
    }
    errors
}

pub fn annotations(annotations: Option<&Value>, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut total = 0;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        let found = is_qualified_name(&key.to_lowercase()).into_iter();
        errors.extend(found.map(|e| FieldError::invalid(path, key.as_str(), e)));
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
    errors
}

/// Upstream tells of the list here, not of the place in it.
fn finalizers(object: &Object, path: &Path) -> Vec<FieldError> {
    let names = object.finalizers();
    let mut errors = Vec::new();
    for name in &names {
        errors.extend(is_qualified_name(name).into_iter().map(|e| FieldError::invalid(path, *name, e)));
    }
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, json!(names), why));
    }
    errors
}

/// Without a domain before it, a name is one of those that are known.
fn standard_finalizers(object: &Object) -> Vec<FieldError> {
    let path = Path::new("metadata").child("finalizers");
    let names = object.finalizers().into_iter().enumerate();
    let odd = names
        .filter(|(_, name)| !name.contains('/') && !matches!(*name, "kubernetes" | "orphan" | "foregroundDeletion"));
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    odd.map(|(index, name)| FieldError::invalid(&path.index(index), name, why)).collect()
}

fn managers(object: &Object, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let entries = object.at(&["metadata", "managedFields"]).and_then(Value::as_array).into_iter().flatten();
    for (index, entry) in entries.enumerate() {
        let (path, text) =
            (path.index(index), |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default());
        if !matches!(text("operation"), "Apply" | "Update") {
            let (path, why) = (path.child("operation"), "must be `Apply` or `Update`");
            errors.push(FieldError::invalid(&path, text("operation"), why));
        }
        if !matches!(text("fieldsType"), "" | "FieldsV1") {
            errors.push(FieldError::invalid(&path.child("fieldsType"), text("fieldsType"), "must be `FieldsV1`"));
        }
        for (field, most) in [("manager", MANAGER_MAX), ("subresource", SUBRESOURCE_MAX)] {
            if text(field).len() > most {
                errors.push(FieldError::too_long(&path.child(field), most));
            }
        }
    }
    errors
}
