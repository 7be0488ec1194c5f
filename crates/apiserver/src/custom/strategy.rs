//! The rules of custom resources, which follow from their definition.

use api::field::{ErrorKind, FieldError, Path};
use api::{Object, ObjectExt as _, structural};
use serde_json::Value;

use super::{Custom, Scale};
use crate::strategy::Strategy;

impl Strategy for Custom {
    fn counts_generation(&self) -> bool {
        true
    }

    fn counts_status(&self) -> bool {
        !self.version().has_status
    }

    fn needs_version(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
        let mut warnings = Vec::new();
        for name in object.finalizers() {
            let wrong = api::validation::is_qualified_name(name);
            warnings.extend(wrong.into_iter().map(|why| format!("metadata.finalizers: {name:?}: {why}")));
            if name.contains('/') || STANDARD.contains(&name) {
                continue;
            }
            let with_path = if name.contains('.') { " including a path (/)" } else { "" };
            warnings.push(format!(
                "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{with_path} to avoid accidental \
                 conflicts with other finalizer writers"
            ));
        }
        warnings
    }

    fn prepare_part(&self, subresource: &str, new: &mut Object, old: &Object) {
        if subresource != "status" {
            return;
        }
        // Of the rest, only who manages what may change.
        let status = new.remove("status");
        let managed = new.metadata().remove("managedFields");
        *new = old.clone();
        match managed {
            Some(managed) => new.metadata().insert("managedFields".into(), managed),
            None => new.metadata().remove("managedFields"),
        };
        match status {
            Some(status) => new.insert("status".into(), status),
            None => new.remove("status"),
        };
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let value = Value::Object(object.clone());
        let schema = self.structural();
        let mut errors = structural::validate(&value, None, schema, &Path::default());
        errors.extend(self.scale(object, true));
        structural::embedded(&value, schema, true, &Path::default(), &mut errors);
        structural::lists(&value, schema, &Path::default(), &mut errors);
        self.rules(&value, None, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let (value, before) = (Value::Object(new.clone()), Value::Object(old.clone()));
        let schema = self.structural();
        let mut errors = structural::validate(&value, Some(&before), schema, &Path::default());
        errors.extend(self.scale(new, true));
        structural::embedded(&value, schema, true, &Path::default(), &mut errors);
        self.lists(&value, &before, &mut errors);
        self.rules(&value, Some(&before), &mut errors);
        errors
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let schema = self.structural();
        let mut errors = Vec::new();
        if let (Some(status), Some(inner)) = (new.get("status"), schema.property("status")) {
            errors = structural::validate(status, old.get("status"), inner, &Path::new("status"));
        }
        errors.extend(self.scale(new, false));
        let (new, old) = (Value::Object(new.clone()), Value::Object(old.clone()));
        self.lists(&new, &old, &mut errors);
        self.rules(&new, Some(&old), &mut errors);
        errors
    }
}

impl Custom {
    /// The rules in the expression language. They rely on types and bounds: an object that breaks those is not put to them.
    fn rules(&self, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let Some(rules) = self.definition.rules(self.version()) else { return };
        let blocks = |error: &FieldError| {
            use ErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
            matches!(error.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)
        };
        if errors.iter().any(blocks) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to \
                       complete validation";
            errors.push(FieldError::invalid("<nil>", Value::Null, why));
            return;
        }
        let (failed, tolerated) = rules.validate(new, old);
        for error in tolerated {
            tracing::debug!(%error, "an unchanged value fails a rule");
        }
        errors.extend(failed);
    }

    /// Lists that were ambiguous before may stay so.
    fn lists(&self, new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
        let (mut found, mut before) = (Vec::new(), Vec::new());
        structural::lists(new, self.structural(), &Path::default(), &mut found);
        if !found.is_empty() {
            structural::lists(old, self.structural(), &Path::default(), &mut before);
        }
        if before.is_empty() {
            errors.append(&mut found);
        }
    }

    /// The counts and the selector that the scale subresource shows are what it can show.
    fn scale(&self, object: &Object, with_spec: bool) -> Vec<FieldError> {
        let Some(Scale { spec_replicas, status_replicas, selector }) = &self.version().scale else { return Vec::new() };
        let mut errors = Vec::new();
        let counts = [Some(spec_replicas).filter(|_| with_spec), Some(status_replicas)];
        for path in counts.into_iter().flatten() {
            let shown = format!(".{}", path.join("."));
            let keys: Vec<&str> = path.iter().map(String::as_str).collect();
            match object.at(&keys) {
                None => (),
                Some(Value::Number(number)) if number.is_i64() => {
                    let count = number.as_i64().unwrap_or_default();
                    if count < 0 {
                        errors.push(FieldError::invalid(shown, count, "should be a non-negative integer"));
                    } else if count > i64::from(i32::MAX) {
                        let why = format!("should be less than or equal to {}", i32::MAX);
                        errors.push(FieldError::invalid(shown, count, why));
                    }
                }
                Some(other) => {
                    let why = format!(
                        "{shown} accessor error: {} is of the type {}, expected int64",
                        go(other),
                        go_type(other)
                    );
                    errors.push(FieldError::invalid(shown, 0, why));
                }
            }
        }
        let keys: Vec<&str> = selector.iter().map(String::as_str).collect();
        if let Some(other) = object.at(&keys).filter(|value| !selector.is_empty() && !value.is_string()) {
            let shown = format!(".{}", selector.join("."));
            let why =
                format!("{shown} accessor error: {} is of the type {}, expected string", go(other), go_type(other));
            errors.push(FieldError::invalid(shown, "", why));
        }
        errors
    }
}

fn go(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
