//! What makes a schema structural: every field has a type, outside of the rules about values, and no rule says more than
//! rules may.

use api::Object;
use api::ObjectExt as _;
use api::field::{FieldError, Path};
use api::structural::pattern;
use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Everything that keeps a schema from being structural, in order of the text.
pub(super) fn check(schema: &Object, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invariants(schema, Level::Root, path, &mut errors);
    completeness(schema, Some(schema), path, path, &mut errors);
    errors.sort_by_key(ToString::to_string);
    errors
}

fn flag(schema: &Object, key: &str) -> bool {
    schema.get(key) == Some(&Value::Bool(true))
}

fn properties(schema: &Object) -> impl Iterator<Item = (&String, &Object)> {
    let map = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, inner)| Some((name, inner.as_object()?)))
}

fn nested<'a>(schema: &'a Object, key: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    let list = schema.get(key).and_then(Value::as_array).into_iter().flatten();
    list.enumerate().filter_map(|(index, inner)| Some((index, inner.as_object()?)))
}

fn object<'a>(schema: &'a Object, key: &str) -> Option<&'a Object> {
    schema.get(key).and_then(Value::as_object)
}

fn invariants(schema: &Object, level: Level, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = schema.text(&["type"]);
    let is_embedded = flag(schema, "x-kubernetes-embedded-resource");
    let preserves = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let is_either = flag(schema, "x-kubernetes-int-or-string");
    let additional = schema.get("additionalProperties").filter(|value| !value.is_null());
    match object(schema, "items") {
        Some(items) => invariants(items, Level::Item, &path.child("items"), errors),
        None if kind == "array" => errors.push(FieldError::required(&path.child("items"), "must be specified")),
        None => (),
    }
    for (name, inner) in properties(schema) {
        invariants(inner, Level::Field, &path.child("properties").key(name), errors);
    }
    if additional.is_some() && level == Level::Root {
        let why = "must not be used at the root";
        errors.push(FieldError::forbidden(&path.child("additionalProperties"), why));
    }
    if let Some(Value::Object(inner)) = additional {
        invariants(inner, Level::Field, &path.child("additionalProperties"), errors);
    }
    for (is_set, key) in [(preserves, "preserve-unknown-fields"), (is_embedded, "embedded-resource")] {
        if is_either && is_set {
            let at = path.child(&format!("x-kubernetes-{key}"));
            errors.push(FieldError::invalid(&at, true, "must be false if x-kubernetes-int-or-string is true"));
        }
    }
    values(schema, is_int_or_string(schema), first_is_int_or_string(schema), path, errors);
    let type_path = path.child("type");
    if is_embedded && kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => FieldError::required(&type_path, why),
            kind => FieldError::invalid(&type_path, kind, why),
        });
    } else if kind.is_empty() && !is_either && !preserves {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&type_path, why));
    }
    if is_embedded && additional.is_some() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(&path.child("additionalProperties"), why));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(&path.child("type"), kind, "must be object at the root"));
    }
    metadata(schema, level, is_embedded, path, errors);
    if is_embedded && !preserves && properties(schema).next().is_none() {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(&path.child("properties"), why));
    }
}

/// The type and metadata of objects are what they are; only names may be restricted.
fn metadata(schema: &Object, level: Level, is_embedded: bool, path: &Path, errors: &mut Vec<FieldError>) {
    let is_object = level == Level::Root || is_embedded;
    let property = |name: &str| schema.at(&["properties", name]).and_then(Value::as_object);
    for name in ["kind", "apiVersion"] {
        if let Some(inner) = property(name).filter(|inner| is_object && inner.text(&["type"]) != "string") {
            let at = path.child("properties").key(name).child("type");
            errors.push(FieldError::invalid(&at, inner.text(&["type"]), "must be string"));
        }
    }
    let Some(inner) = property("metadata") else { return };
    let at = path.child("properties").key("metadata");
    if is_object && inner.text(&["type"]) != "object" {
        errors.push(FieldError::invalid(&at.child("type"), inner.text(&["type"]), "must be object"));
    }
    if level != Level::Root {
        return;
    }
    let only_names = properties(inner).all(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
    let allowed = ["type", "properties", "default"];
    if !only_names || inner.keys().any(|key| !allowed.contains(&key.as_str())) {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(&at, why));
    }
}

/// `anyOf` of exactly an integer and a string, which is how a number or a text is written.
fn is_int_or_string(schema: &Object) -> bool {
    let kinds = nested(schema, "anyOf").map(|(_, inner)| (inner.len() == 1).then(|| inner.text(&["type"])));
    kinds.eq([Some("integer"), Some("string")])
}

fn first_is_int_or_string(schema: &Object) -> bool {
    nested(schema, "allOf").next().is_some_and(|(_, first)| is_int_or_string(first))
}

/// Rules about values, in which nothing may say what values look like.
fn values(schema: &Object, skip_any: bool, skip_first_all: bool, path: &Path, errors: &mut Vec<FieldError>) {
    if !skip_any {
        for (index, inner) in nested(schema, "anyOf") {
            rule(inner, false, &path.child("anyOf").index(index), errors);
        }
    }
    for (index, inner) in nested(schema, "allOf") {
        rule(inner, skip_first_all && index == 0, &path.child("allOf").index(index), errors);
    }
    for (index, inner) in nested(schema, "oneOf") {
        rule(inner, false, &path.child("oneOf").index(index), errors);
    }
    if let Some(inner) = object(schema, "not") {
        rule(inner, false, &path.child("not"), errors);
    }
    let text = schema.text(&["pattern"]);
    if let Some(error) = pattern::compile(text).err().filter(|_| !text.is_empty()) {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(&path.child("pattern"), text, why));
    }
}

fn rule(schema: &Object, skip_any: bool, path: &Path, errors: &mut Vec<FieldError>) {
    values(schema, skip_any, false, path, errors);
    if let Some(items) = object(schema, "items") {
        rule(items, false, &path.child("items"), errors);
    }
    for (name, inner) in properties(schema) {
        rule(inner, false, &path.child("properties").key(name), errors);
    }
    let mut forbid = |key: &str, why: &str| errors.push(FieldError::forbidden(&path.child(key), why));
    let is_set = |key: &str| match schema.get(key) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty() || key.ends_with("-list-type") || key.ends_with("-map-type"),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    for (key, why) in [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        let is_default = key == "default" && schema.get(key).is_some_and(|value| !value.is_null());
        if is_default || (key != "default" && is_set(key)) {
            forbid(key, why);
        }
    }
    if schema.at(&["properties", "metadata"]).is_some() {
        let at = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(&at, "must not be specified in a nested context"));
    }
}

/// What rules speak of must be specified outside of them.
fn completeness(
    rules: &Object,
    schema: Option<&Object>,
    schema_path: &Path,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    let mut inner: Vec<(&Object, Path)> = Vec::new();
    inner.extend(object(rules, "not").map(|not| (not, path.child("not"))));
    for key in ["allOf", "anyOf", "oneOf"] {
        inner.extend(nested(rules, key).map(|(index, inner)| (inner, path.child(key).index(index))));
    }
    for (rule, at) in inner {
        complete(rule, schema, schema_path, &at, errors);
    }
}

fn complete(rule: &Object, schema: Option<&Object>, schema_path: &Path, path: &Path, errors: &mut Vec<FieldError>) {
    let Some(schema) = schema else {
        errors.push(FieldError::required(schema_path, format!("because it is defined in {path}")));
        return;
    };
    completeness(rule, Some(schema), schema_path, path, errors);
    if let Some(items) = object(rule, "items") {
        complete(items, object(schema, "items"), &schema_path.child("items"), &path.child("items"), errors);
    }
    for (name, inner) in properties(rule) {
        let (own, theirs) = (path.child("properties").key(name), schema_path.child("properties").key(name));
        let found = schema.at(&["properties", name]).and_then(Value::as_object);
        complete(inner, found, &theirs, &own, errors);
    }
}
