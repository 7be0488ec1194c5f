//! The schemas of custom resources, as their definitions have them, with what every object has.

use api::schema::docs;
use api::{Object, ObjectExt as _};
use serde_json::{Map, Value, json};

use super::schemas::{META, reference};
use crate::custom::Custom;
use crate::registry::Served;

const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// The kind and its list.
pub(super) fn schemas(served: &Served, custom: &Custom) -> [(String, Value); 2] {
    let definition = &custom.definition;
    let version = &custom.version().name;
    let name = |kind: &str| definition.type_name(version, kind);
    let kinds = |kind: &str| json!([{"group": definition.group, "kind": kind, "version": version}]);
    let mut schema = definition.open_api(version);
    if schema.is_empty() {
        schema.insert("type".into(), "object".into());
    }
    embed(&mut schema);
    let properties = schema.at_mut(&["properties"]);
    properties.insert("apiVersion".into(), json!({"description": described("apiVersion"), "type": "string"}));
    properties.insert("kind".into(), json!({"description": described("kind"), "type": "string"}));
    properties.insert("metadata".into(), metadata());
    schema.insert("x-kubernetes-group-version-kind".into(), kinds(&served.info.kind));
    let (kind, list_kind, plural) = (&served.info.kind, &served.list_kind, &served.info.plural);
    let list_metadata = json!({
        "allOf": [reference(&format!("{META}.ListMeta"))],
        "description": format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds"),
    });
    let mut list = json!({
        "description": format!("{list_kind} is a list of {kind}"), "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": {"description": described("apiVersion"), "type": "string"},
            "items": {
                "description": format!("List of {plural}. More info: {CONVENTIONS}"), "type": "array",
                "items": reference(&name(kind)),
            },
            "kind": {"description": described("kind"), "type": "string"},
            "metadata": list_metadata,
        },
        "x-kubernetes-group-version-kind": kinds(list_kind),
    });
    let fields: Vec<Value> = custom.version().selectable.iter().map(|(name, _)| json!({"fieldPath": name})).collect();
    for described in [Some(&mut schema), list.as_object_mut()].into_iter().flatten().filter(|_| !fields.is_empty()) {
        described.insert("x-kubernetes-selectable-fields".into(), fields.clone().into());
    }
    [(name(kind), Value::Object(schema)), (name(list_kind), list)]
}

/// What is said of the fields that every kind has.
fn described(field: &str) -> &'static str {
    let pod = api::schema::named("io.k8s.api.core.v1.Pod");
    let index = pod.and_then(|pod| pod.fields.iter().position(|known| known.name == field));
    let texts = docs::of("io.k8s.api.core.v1.Pod").unwrap_or_default();
    index.and_then(|index| texts.get(index + 1)).copied().unwrap_or_default()
}

fn metadata() -> Value {
    json!({
        "allOf": [reference(&format!("{META}.ObjectMeta"))],
        "description": format!("Standard object's metadata. More info: {CONVENTIONS}#metadata"),
    })
}

/// Objects inside objects have a type and metadata, too.
fn embed(schema: &mut Object) {
    for key in ["items", "additionalProperties"] {
        if let Some(Value::Object(inner)) = schema.get_mut(key) {
            embed(inner);
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().filter_map(Value::as_object_mut).for_each(embed);
    }
    if schema.get("x-kubernetes-embedded-resource") != Some(&Value::Bool(true)) {
        return;
    }
    let version = format!(
        "apiVersion defines the versioned schema of this representation of an object. More info: {CONVENTIONS}#resources"
    );
    let kind = format!(
        "kind is a string value representing the type of this object. In CamelCase. More info: {CONVENTIONS}#types-kinds"
    );
    let properties = schema.at_mut(&["properties"]);
    properties.insert("apiVersion".into(), json!({"description": version, "type": "string"}));
    properties.insert("kind".into(), json!({"description": kind, "type": "string"}));
    properties.insert("metadata".into(), metadata());
    let required = schema.entry("required").or_insert_with(|| json!([]));
    if let Some(list) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !list.iter().any(|known| known == name) {
                list.push(name.into());
            }
        }
    }
}

/// A custom kind's schema in the words of version 2, which cannot say that something may be null, or anything.
pub(super) fn older(schema: Value) -> Value {
    let Value::Object(mut map) = schema else { return schema };
    let is_free = map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if is_free && map.contains_key("x-kubernetes-group-version-kind") {
        let kinds = map.remove("x-kubernetes-group-version-kind").unwrap_or_default();
        return json!({"type": "object", "x-kubernetes-group-version-kind": kinds});
    }
    Value::Object(version_two(&mut map))
}

fn version_two(map: &mut Map<String, Value>) -> Map<String, Value> {
    let mut map = std::mem::take(map);
    if let Some(target) = map.get("allOf").and_then(|all| all.get(0)?.get("$ref")).cloned() {
        map.insert("$ref".into(), target);
    }
    if let Some(Value::String(target)) = map.get_mut("$ref") {
        *target = target.replace("#/components/schemas/", "#/definitions/");
    }
    for key in ["allOf", "oneOf", "anyOf", "not", "default"] {
        map.remove(key);
    }
    let is_nullable = |value: Option<&Value>| value.and_then(|v| v.get("nullable")) == Some(&Value::Bool(true));
    let own = map.remove("nullable") == Some(Value::Bool(true));
    let is_free = map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if own || is_free {
        map.remove("items");
        map.remove("properties");
    }
    let has_type = |map: &Map<String, Value>, kind: &str| map.get("type").is_some_and(|known| known == kind);
    if own || (is_free && has_type(&map, "object")) || (has_type(&map, "array") && !map.contains_key("items")) {
        map.remove("type");
    }
    let absent: Vec<String> = match map.get("properties").and_then(Value::as_object) {
        Some(all) => all.iter().filter(|(_, inner)| is_nullable(Some(inner))).map(|(name, _)| name.clone()).collect(),
        None => Vec::new(),
    };
    if let Some(Value::Array(required)) = map.get_mut("required") {
        required.retain(|name| !absent.iter().any(|absent| name == absent));
        if required.is_empty() || is_nullable(map.get("additionalProperties")) {
            map.remove("required");
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(Value::Object(inner)) = map.get_mut(key) {
            *inner = version_two(inner);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().filter_map(Value::as_object_mut).for_each(|inner| *inner = version_two(inner));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_two_leaves_out_what_it_cannot_say() {
        let check = |schema: Value, want: Value| assert_eq!(older(schema), want);
        check(
            json!({"type": "object", "required": ["a", "b"], "properties": {
                "a": {"type": "string", "nullable": true}, "b": {"type": "array", "nullable": true, "items": {"type": "string"}},
                "c": {"type": "string", "default": "x", "anyOf": [{"pattern": "y"}]},
            }}),
            json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {"type": "string"}}}),
        );
        check(
            json!({"type": "object", "properties": {"f": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"x": {"type": "string"}}}}}),
            json!({"type": "object", "properties": {"f": {"x-kubernetes-preserve-unknown-fields": true}}}),
        );
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"m": {}}, "x-kubernetes-group-version-kind": []}),
            json!({"type": "object", "x-kubernetes-group-version-kind": []}),
        );
    }
}
