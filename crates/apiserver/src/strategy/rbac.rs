//! Roles and bindings.

use api::field::{FieldError, Path};
use api::validation::NameRule;
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{Strategy, items, items_mut, set_default};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) struct Roles;

impl Strategy for Roles {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (index, rule) in items(object, &["rules"]).into_iter().enumerate() {
            let path = Path::new("rules").index(index);
            let empty = |key: &str| rule.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty);
            if empty("verbs") {
                errors.push(FieldError::required(&path.child("verbs"), "verbs must contain at least one value"));
            }
            if !empty("nonResourceURLs") {
                if !object.namespace().is_empty() {
                    errors.push(FieldError::invalid(
                        &path.child("nonResourceURLs"),
                        rule.get("nonResourceURLs").cloned().unwrap_or_default(),
                        "namespaced rules cannot apply to non-resource URLs",
                    ));
                }
                continue;
            }
            if empty("apiGroups") {
                errors.push(FieldError::required(
                    &path.child("apiGroups"),
                    "resource rules must supply at least one api group",
                ));
            }
            if empty("resources") {
                errors.push(FieldError::required(
                    &path.child("resources"),
                    "resource rules must supply at least one resource",
                ));
            }
        }
        errors
    }
}

pub(super) struct Bindings;

impl Strategy for Bindings {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["roleRef", "apiGroup"], GROUP);
        for subject in items_mut(object, "subjects") {
            if subject.text(&["kind"]) != "ServiceAccount" {
                set_default(subject, &["apiGroup"], GROUP);
            }
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if object.text(&["roleRef", "name"]).is_empty() {
            errors.push(FieldError::required("roleRef.name", ""));
        }
        if !matches!(object.text(&["roleRef", "kind"]), "Role" | "ClusterRole") {
            let kind = object.text(&["roleRef", "kind"]);
            errors.push(FieldError::not_supported("roleRef.kind", kind, &["ClusterRole", "Role"]));
        }
        for (index, subject) in items(object, &["subjects"]).into_iter().enumerate() {
            let path = Path::new("subjects").index(index);
            if subject.text(&["name"]).is_empty() {
                errors.push(FieldError::required(&path.child("name"), ""));
            }
            if !matches!(subject.text(&["kind"]), "ServiceAccount" | "User" | "Group") {
                let kind = subject.text(&["kind"]);
                errors.push(FieldError::not_supported(&path.child("kind"), kind, &["Group", "ServiceAccount", "User"]));
            }
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        if new.get("roleRef") == old.get("roleRef") {
            return Vec::new();
        }
        vec![FieldError::invalid("roleRef", new.get("roleRef").cloned().unwrap_or_default(), "cannot change roleRef")]
    }
}
