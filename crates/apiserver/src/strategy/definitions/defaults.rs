//! Defaults in a schema must be values that the schema takes, and hold nothing that it would drop.

use api::field::{ErrorKind, FieldError, Path};
use api::structural::{self, Malformed, Structural};
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::schema::TYPES;
use crate::custom::rules::Rules;

pub(super) fn check(schema: &Object, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, true, path, &mut errors);
    errors
}

fn walk(schema: &Object, is_root: bool, path: &Path, errors: &mut Vec<FieldError>) {
    if let Some(value) = schema.get("default").filter(|value| !value.is_null()) {
        one(schema, value, is_root, &path.child("default"), errors);
    }
    if let Some(items) = schema.get("items").and_then(Value::as_object) {
        walk(items, false, &path.child("items"), errors);
    }
    for (name, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if let Some(inner) = inner.as_object() {
            walk(inner, false, &path.child("properties").key(name), errors);
        }
    }
}

fn one(schema: &Object, value: &Value, is_root: bool, path: &Path, errors: &mut Vec<FieldError>) {
    let structural = Structural::parse(schema);
    let mut pruned = value.clone();
    structural::prune(&mut pruned, &structural, &mut Vec::new());
    if pruned != *value {
        errors.push(FieldError::invalid(path, value.clone(), "must not have unknown fields"));
    }
    let mut coerced = value.clone();
    let fitted = structural::coerce(&mut coerced, &structural, is_root, path, Malformed::Refused, &mut Vec::new());
    if let Err(error) = fitted {
        errors.push(error);
        return;
    }
    let mut found = Vec::new();
    structural::embedded(value, &structural, is_root, path, &mut found);
    if found.is_empty() {
        found.extend(of_no_type(schema.text(&["type"]), value, path));
        found.extend(structural::validate(value, None, &structural, path));
    }
    if let (true, Some(rules)) = (found.is_empty(), Rules::of_part(schema, is_root)) {
        // A default is what was there before, and what comes to where nothing was.
        found = rules.validate_at(path, value, Some(value)).0;
        if found.is_empty() {
            found = rules.validate_at(path, value, None).0;
        }
    }
    errors.append(&mut found);
}

/// No value is of a type that there is not.
fn of_no_type(kind: &str, value: &Value, path: &Path) -> Option<FieldError> {
    let found = match value {
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::Bool(_) => "boolean",
        other => api::decode::go_kind(other),
    };
    let detail = format!(" in body must be of type {kind}: {found:?}");
    let error = FieldError { kind: ErrorKind::TypeInvalid, ..FieldError::invalid(path, found, detail) };
    (!kind.is_empty() && !TYPES.contains(&kind)).then_some(error)
}
