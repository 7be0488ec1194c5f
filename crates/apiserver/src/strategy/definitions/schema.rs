//! The schema of a version: what OpenAPI allows, and what custom resources allow of it.

use api::field::{FieldError, Path};
use api::structural::{Kind, is_supported_format};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::super::check::At;
use super::super::internal;
use super::{defaults, structure};

pub(super) const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
/// What the root may say where the status is checked by itself; by the names upstream gives them.
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength \
                       MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs \
                       Example XPreserveUnknownFields XValidations]";
/// The same as their keys.
const KEYS_AT_ROOT: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];
/// Texts that say something even where they are empty.
const SAID: [&str; 3] = ["$ref", "x-kubernetes-list-type", "x-kubernetes-map-type"];

/// `at` is what holds the schema, in a version or above all.
pub(super) fn check(at: &At<'_>, has_status: bool) {
    let root = at.field("openAPIV3Schema");
    let Some(schema) = root.value().as_object() else { return };
    let path = root.path().clone();
    if has_status {
        let kind = schema.text(&["type"]);
        if !kind.is_empty() && kind != "object" {
            let why =
                "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            root.complain(FieldError::invalid(&at.path().child("openAPIV3Schema.type"), kind, why));
        } else if schema.iter().any(|(key, value)| !KEYS_AT_ROOT.contains(&key.as_str()) && is_said(key, value)) {
            let why = format!(
                "only {AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            root.complain(internal::invalid("JSONSchemaProps", &path, &unfolded(root.value()), why));
        }
    }
    if is_set(schema, "nullable") {
        let path = at.path().child("openAPIV3Schema.nullable");
        root.complain(FieldError::forbidden(&path, "nullable cannot be true at the root"));
    }
    let unsupported = unsupported(schema);
    let mut rules_apply = false;
    if unsupported.is_none() {
        let found = structure::check(schema, &path);
        let found = if found.is_empty() { defaults::check(schema, &path) } else { found };
        rules_apply = found.is_empty();
        root.extend(found);
    }
    let mut walk = Walk { errors: Vec::new(), has_rules: false };
    walk.schema(schema, &path, Place { is_root: true, ..Place::default() });
    let has_errors = root.complaints() > 0 || !walk.errors.is_empty();
    let has_rules = walk.has_rules;
    root.extend(walk.errors);
    match unsupported {
        Some(key) if !has_errors => {
            let why = format!("OpenAPIV3Schema '{key}' is not supported");
            root.complain(FieldError::invalid(&path, "", why));
        }
        _ => (),
    }
    // What is said of expressions would only confuse while the schema itself is wrong.
    if rules_apply && !has_errors && has_rules {
        root.extend(crate::custom::check_rules(schema, &path));
    }
}

/// Whether upstream's type has something here that is not its zero: an empty list is not none.
fn is_said(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set || matches!(key, "additionalProperties" | "additionalItems"),
        Value::String(text) => !text.is_empty() || SAID.contains(&key),
        _ => true,
    }
}

/// A schema in which what may be one thing or another is two fields, as upstream's type has it.
pub(super) fn unfolded(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let each = |value: &Value| match value {
        Value::Array(items) => Value::Array(items.iter().map(unfolded).collect()),
        Value::Object(map) => Value::Object(map.iter().map(|(name, inner)| (name.clone(), unfolded(inner))).collect()),
        other => other.clone(),
    };
    let or_list = |value: &Value, list: &str| match value {
        Value::Array(_) => json!({list: each(value)}),
        _ => json!({"Schema": unfolded(value)}),
    };
    let unfold = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            (_, Value::Null) => Value::Null,
            ("items", _) => or_list(value, "JSONSchemas"),
            ("additionalProperties" | "additionalItems", Value::Bool(allows)) => json!({"Allows": allows}),
            ("additionalProperties" | "additionalItems", _) => json!({"Allows": true, "Schema": unfolded(value)}),
            ("dependencies", Value::Object(map)) => {
                Value::Object(map.iter().map(|(name, inner)| (name.clone(), or_list(inner, "Property"))).collect())
            }
            ("allOf" | "anyOf" | "oneOf" | "properties" | "patternProperties" | "definitions", _) => each(value),
            ("not", _) => unfolded(value),
            _ => value.clone(),
        };
        (key.clone(), value)
    };
    Value::Object(fields.iter().map(unfold).collect())
}

fn is_set(schema: &Object, key: &str) -> bool {
    match schema.get(key) {
        Some(Value::Bool(false)) => key == "additionalItems",
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty() || SAID.contains(&key),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(map)) => !map.is_empty() || matches!(key, "not" | "additionalProperties" | "dependencies"),
        Some(_) => true,
    }
}

/// The first thing in a schema that no structure can hold.
fn unsupported(schema: &Object) -> Option<&'static str> {
    const KEYS: [(&str, &str); 7] = [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ];
    let own = KEYS.iter().find(|(key, _)| is_set(schema, key)).map(|(_, name)| *name);
    let own = own.or_else(|| schema.get("items").filter(|items| items.is_array()).map(|_| "items"));
    own.or_else(|| children(schema).into_iter().find_map(unsupported))
}

fn children(schema: &Object) -> Vec<&Object> {
    let object = |key: &str| schema.get(key).and_then(Value::as_object);
    let list = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
    let map = |key: &str| object(key).into_iter().flatten().filter_map(|(_, inner)| inner.as_object());
    let single = ["items", "additionalProperties", "not"].into_iter().filter_map(object);
    let listed = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(list);
    single.chain(listed).chain(map("properties")).collect()
}

/// Whether some place in a schema has a value for who gives none.
pub(super) fn has_defaults(schema: &Object) -> bool {
    schema.get("default").is_some_and(|value| !value.is_null()) || children(schema).into_iter().any(has_defaults)
}

/// Formats that mean nothing here.
pub(super) fn unrecognized_formats(definition: &Object) -> Vec<String> {
    fn collect(schema: &Object, found: &mut Vec<String>) {
        let (format, kind) = (schema.text(&["format"]), schema.text(&["type"]));
        let kind = match kind {
            "" => Kind::Any,
            "string" => Kind::String,
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            _ => Kind::Object,
        };
        if !format.is_empty() && !is_supported_format(format, kind) {
            found.push(format.to_owned());
        }
        children(schema).into_iter().for_each(|inner| collect(inner, found));
    }
    let mut found = Vec::new();
    for version in super::super::items(definition, &["spec", "versions"]) {
        if let Some(schema) = version.at(&["schema", "openAPIV3Schema"]).and_then(Value::as_object) {
            collect(schema, &mut found);
        }
    }
    found
}

/// Whether `.a['b']` leads from a schema through what it describes.
fn leads_to_field(path: &str, schema: &Object) -> bool {
    let (mut rest, mut here) = (path, Some(schema));
    while !rest.is_empty() {
        let (name, after) = if let Some(quoted) = rest.strip_prefix("['") {
            let Some((name, after)) = quoted.split_once("']") else { return false };
            (name.replace("\\'", "'"), after)
        } else if let Some(plain) = rest.strip_prefix('.') {
            let (name, after) = plain.split_at(plain.find(['.', '[', ']']).unwrap_or(plain.len()));
            (name.to_owned(), after)
        } else {
            return false;
        };
        let Some(schema) = here else { return false };
        let object = |key: &str| schema.get(key).and_then(Value::as_object);
        here = match (object("properties"), schema.get("additionalProperties")) {
            (Some(fields), _) if fields.contains_key(&name) => fields.get(&name).and_then(Value::as_object),
            (None, Some(values)) if !name.is_empty() => values.as_object(),
            _ => return false,
        };
        rest = after;
    }
    true
}

/// Where in a schema the walk is.
#[derive(Clone, Default)]
struct Place {
    is_root: bool,
    in_metadata: bool,
    /// Why defaults are not allowed, if they are not.
    no_defaults: Option<String>,
}

struct Walk {
    errors: Vec<FieldError>,
    /// Schemas that have rules in the expression language.
    /// Some place has rules in the expression language.
    has_rules: bool,
}

impl Walk {
    fn schema(&mut self, schema: &Object, path: &Path, place: Place) {
        self.open_api(schema, path, &place);
        if is_set(schema, "uniqueItems") {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.push(FieldError::forbidden(&path.child("uniqueItems"), why));
        }
        let below = |place: &Place| Place { is_root: false, ..place.clone() };
        let object = |key: &str| schema.get(key).and_then(Value::as_object);
        if let Some(additional) = schema.get("additionalProperties").filter(|value| !value.is_null()) {
            if is_set(schema, "properties") && *additional != Value::Bool(true) {
                let why = "additionalProperties and properties are mutual exclusive";
                self.errors.push(FieldError::forbidden(&path.child("additionalProperties"), why));
            }
            if let Some(inner) = additional.as_object() {
                let mut place = below(&place);
                if place.in_metadata {
                    place.no_defaults = Some("inside additionalProperties applying to object metadata".into());
                }
                self.schema(inner, &path.child("additionalProperties"), place);
            }
        }
        for (name, inner) in object("properties").into_iter().flatten() {
            let Some(inner) = inner.as_object() else { continue };
            let mut inside = below(&place);
            let is_object = place.is_root || is_set(schema, "x-kubernetes-embedded-resource");
            if is_object && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
                inside.in_metadata = true;
                if place.is_root {
                    inside.no_defaults = Some(format!("in top-level {name}"));
                }
            }
            self.schema(inner, &path.child("properties").key(name), inside);
        }
        if let Some(inner) = object("not") {
            self.schema(inner, &path.child("not"), below(&place));
        }
        for key in ["allOf", "oneOf", "anyOf"] {
            let list = schema.get(key).and_then(Value::as_array).into_iter().flatten().enumerate();
            for (index, inner) in list.filter_map(|(index, inner)| Some((index, inner.as_object()?))) {
                self.schema(inner, &path.child(key).index(index), below(&place));
            }
        }
        if let Some(inner) = object("items") {
            self.schema(inner, &path.child("items"), below(&place));
        }
        self.extensions(schema, path);
        self.rules(schema, path);
    }

    /// What OpenAPI has and custom resources have not.
    fn open_api(&mut self, schema: &Object, path: &Path, place: &Place) {
        let kind = schema.text(&["type"]);
        if !kind.is_empty() && !TYPES.contains(&kind) {
            self.errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
        }
        if let Some(why) = place.no_defaults.as_ref().filter(|_| schema.get("default").is_some_and(|d| !d.is_null())) {
            self.errors.push(FieldError::forbidden(&path.child("default"), format!("must not be set {why}")));
        }
        let unsupported = ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"];
        for key in unsupported.into_iter().filter(|key| is_set(schema, key)) {
            self.errors.push(FieldError::forbidden(&path.child(key), format!("{key} is not supported")));
        }
        if kind == "null" {
            let why = "type cannot be set to null, use nullable as an alternative";
            self.errors.push(FieldError::forbidden(&path.child("type"), why));
        }
        if schema.get("items").is_some_and(Value::is_array) {
            let why = "items must be a schema object and not an array";
            self.errors.push(FieldError::forbidden(&path.child("items"), why));
        }
        if place.in_metadata && is_set(schema, "x-kubernetes-embedded-resource") {
            let at = path.child("x-kubernetes-embedded-resource");
            self.errors.push(FieldError::forbidden(&at, "must not be used inside of resource meta"));
        }
    }

    fn must_be(&mut self, schema: &Object, kind: &str, extension: &str, path: &Path) -> bool {
        let found = schema.text(&["type"]);
        if found == kind {
            return true;
        }
        let why = format!("must be {kind} if {extension} is specified");
        self.errors.push(match found {
            "" => FieldError::required(&path.child("type"), why),
            found => FieldError::invalid(&path.child("type"), found, why),
        });
        false
    }

    fn extensions(&mut self, schema: &Object, path: &Path) {
        let text = |key: &str| schema.get(key).and_then(Value::as_str);
        let items = schema.get("items").and_then(Value::as_object);
        if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            let at = path.child("x-kubernetes-preserve-unknown-fields");
            self.errors.push(FieldError::invalid(&at, false, "must be true or undefined"));
        }
        if let Some(map_type) = text("x-kubernetes-map-type") {
            self.must_be(schema, "object", "x-kubernetes-map-type", path);
            if !matches!(map_type, "atomic" | "granular") {
                let at = path.child("x-kubernetes-map-type");
                self.errors.push(FieldError::not_supported(&at, map_type, &["atomic", "granular"]));
            }
        }
        let list_type = text("x-kubernetes-list-type");
        if let Some(list_type) = list_type {
            let is_list = self.must_be(schema, "array", "x-kubernetes-list-type", path);
            if let Some(items) = items.filter(|_| is_list && list_type == "set") {
                self.set_items(items, path);
            }
            if !matches!(list_type, "atomic" | "set" | "map") {
                let at = path.child("x-kubernetes-list-type");
                self.errors.push(FieldError::not_supported(&at, list_type, &["atomic", "set", "map"]));
            }
        }
        let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if !keys.is_empty() && list_type != Some("map") {
            let (at, why) =
                (path.child("x-kubernetes-list-type"), "must be map if x-kubernetes-list-map-keys is non-empty");
            self.errors.push(match list_type {
                None => FieldError::required(&at, why),
                Some(other) => FieldError::invalid(&at, other, why),
            });
        }
        if list_type == Some("map") {
            self.map_items(schema, items, keys, path);
        }
        if let (Some(items), Some(list_type @ ("set" | "map"))) = (items, list_type) {
            self.list_items(items, list_type, keys, path);
        }
    }

    /// Elements of a set are compared as wholes.
    fn set_items(&mut self, items: &Object, path: &Path) {
        let at = path.child("items");
        let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let inner_type = items.get("x-kubernetes-list-type").cloned().unwrap_or_default();
        match items.text(&["type"]) {
            "array" if !matches!(items.text(&["x-kubernetes-list-type"]), "" | "atomic") => {
                self.errors.push(FieldError::invalid(&at.child("x-kubernetes-list-type"), inner_type, why));
            }
            "object" if items.text(&["x-kubernetes-map-type"]) != "atomic" => {
                self.errors.push(FieldError::invalid(&at.child("x-kubernetes-map-type"), inner_type, why));
            }
            _ => (),
        }
    }

    fn map_items(&mut self, schema: &Object, items: Option<&Object>, keys: &[Value], path: &Path) {
        let keys_path = path.child("x-kubernetes-list-map-keys");
        if keys.is_empty() {
            let why = "must not be empty if x-kubernetes-list-type is map";
            self.errors.push(FieldError::required(&keys_path, why));
        }
        let Some(items) = items else {
            if schema.get("items").is_none_or(Value::is_null) {
                let why = "must have a schema if x-kubernetes-list-type is map";
                self.errors.push(FieldError::required(&path.child("items"), why));
            }
            return;
        };
        let kind = items.text(&["type"]);
        if kind != "object" {
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            self.errors.push(FieldError::invalid(&path.child("items").child("type"), kind, why));
            return;
        }
        for (index, key) in keys.iter().enumerate() {
            let name = key.as_str().unwrap_or_default();
            let whole = Value::Array(keys.to_vec());
            match items.at(&["properties", name]).and_then(Value::as_object) {
                Some(inner) if matches!(inner.text(&["type"]), "array" | "object") => {
                    let at = path.child("items").child("properties").key(name).child("type");
                    let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    self.errors.push(FieldError::invalid(&at, kind, why));
                }
                Some(_) => (),
                None => {
                    let why = "entries must all be names of item properties";
                    self.errors.push(FieldError::invalid(&keys_path, whole.clone(), why));
                }
            }
            if keys.iter().take(index).any(|before| before == key) {
                self.errors.push(FieldError::invalid(&keys_path, whole, "must not contain duplicate entries"));
            }
        }
    }

    /// What identifies an element is always there.
    fn list_items(&mut self, items: &Object, list_type: &str, keys: &[Value], path: &Path) {
        let at = path.child("items");
        if is_set(items, "nullable") {
            let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
            self.errors.push(FieldError::forbidden(&at.child("nullable"), why));
        }
        for name in keys.iter().filter_map(Value::as_str).filter(|_| list_type == "map") {
            let Some(inner) = items.at(&["properties", name]).and_then(Value::as_object) else { continue };
            let at = at.child("properties").key(name);
            let required = items.get("required").and_then(Value::as_array).into_iter().flatten();
            let is_required = required.into_iter().any(|required| required == name);
            const IN_KEYS: &str = "this property is in x-kubernetes-list-map-keys, so it";
            if !is_required && inner.get("default").is_none_or(Value::is_null) {
                let why = format!("{IN_KEYS} must have a default or be a required property");
                self.errors.push(FieldError::required(&at.child("default"), why));
            }
            if is_set(inner, "nullable") {
                self.errors.push(FieldError::forbidden(&at.child("nullable"), format!("{IN_KEYS} cannot be nullable")));
            }
        }
    }

    /// Rules in the expression language, as far as they can be judged without reading them.
    fn rules(&mut self, schema: &Object, path: &Path) {
        let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten();
        let mut any = false;
        for (index, rule) in rules.enumerate().filter_map(|(index, rule)| Some((index, rule.as_object()?))) {
            any = true;
            let at = path.child("x-kubernetes-validations").index(index);
            let text = |key: &str| rule.text(&[key]);
            let invalid = |key: &str, why: &str| FieldError::invalid(&at.child(key), text(key), why);
            let has_lines = |text: &str| text.trim().contains(['\n', '\r']);
            if text("rule").trim().is_empty() {
                self.errors.push(FieldError::required(&at.child("rule"), "rule is not specified"));
            } else if !text("message").is_empty() && text("message").trim().is_empty() {
                self.errors.push(invalid("message", "must be non-empty if specified"));
            } else if has_lines(text("message")) {
                self.errors.push(invalid("message", "must not contain line breaks"));
            } else if has_lines(text("rule")) && text("message").trim().is_empty() {
                let why = "message must be specified if rule contains line breaks";
                self.errors.push(FieldError::required(&at.child("message"), why));
            }
            if !text("messageExpression").is_empty() && text("messageExpression").trim().is_empty() {
                let why = "messageExpression must be non-empty if specified";
                self.errors.push(FieldError::required(&at.child("messageExpression"), why));
            }
            if rule.get("reason").is_some_and(Value::is_string) && !REASONS.contains(&text("reason")) {
                self.errors.push(FieldError::not_supported(&at.child("reason"), text("reason"), &REASONS));
            }
            if !text("fieldPath").is_empty() && text("fieldPath").trim().is_empty() {
                self.errors.push(invalid("fieldPath", "must be non-empty if specified"));
            }
            if text("fieldPath").contains(['\n', '\r']) {
                self.errors.push(invalid("fieldPath", "must not contain line breaks"));
            }
            if !text("fieldPath").trim().is_empty() && !leads_to_field(text("fieldPath"), schema) {
                self.errors.push(invalid("fieldPath", "must be a valid path"));
            }
        }
        self.has_rules |= any;
    }
}
