//! OpenAPI v2: the documents of version 3 as one, in the older words.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{path_of, version_three};
use crate::registry::Registry;

const KINDS: &str = "x-kubernetes-group-version-kind";

pub(super) fn document(registries: [&Registry; 2]) -> Value {
    let paths = |registry: &'_ Registry| -> BTreeSet<String> { registry.all().iter().map(|s| path_of(s)).collect() };
    let all = registries.into_iter().flat_map(|registry| paths(registry).into_iter().map(move |path| (registry, path)));
    let (mut definitions, mut operations) = (Map::new(), Map::new());
    for (registry, path) in all {
        let own: BTreeSet<String> = registry
            .all()
            .iter()
            .filter(|served| path_of(served) == path)
            .filter_map(|served| Some((served, served.custom()?)))
            .map(|(served, custom)| custom.definition.type_name(&served.info.version, &served.info.kind))
            .collect();
        let mut document = version_three(registry, &path);
        let mut take = |pointer: &str| match document.pointer_mut(pointer).map(Value::take) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        for (name, schema) in take("/components/schemas") {
            match own.contains(&name) {
                true => drop(definitions.insert(name, super::custom::older(schema))),
                false => define(&mut definitions, name, schema),
            }
        }
        operations.extend(take("/paths").into_iter().map(|(path, item)| (path, path_item(item))));
    }
    let token = json!({"type": "apiKey", "in": "header", "name": "authorization", "description": "Bearer Token authentication"});
    json!({
        "swagger": "2.0", "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": operations, "definitions": definitions,
        "securityDefinitions": {"BearerToken": token}, "security": [{"BearerToken": []}],
    })
}

/// What several groups have is one definition, of all their kinds.
fn define(definitions: &mut Map<String, Value>, name: String, schema: Value) {
    let schema = older(schema);
    let Some(known) = definitions.get_mut(&name) else {
        definitions.insert(name, schema);
        return;
    };
    let more = schema.get(KINDS).and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(kinds) = known.get_mut(KINDS).and_then(Value::as_array_mut) {
        let new: Vec<Value> = more.into_iter().filter(|kind| !kinds.contains(kind)).collect();
        kinds.extend(new);
    }
}

/// A schema without what version 2 lacks: defaults, and a choice of types.
fn older(schema: Value) -> Value {
    match schema {
        Value::Object(map) => Value::Object(older_object(map)),
        Value::Array(items) => Value::Array(items.into_iter().map(older).collect()),
        other => other,
    }
}

fn older_object(mut map: Map<String, Value>) -> Map<String, Value> {
    map.remove("default");
    if map.remove("oneOf").is_some() {
        map.insert("type".into(), "string".into());
    }
    if let Some(Value::Array(all)) = map.remove("allOf") {
        all.into_iter().filter_map(|one| one.get("$ref").cloned()).for_each(|target| {
            map.insert("$ref".into(), target);
        });
    }
    if let Some(Value::String(target)) = map.get_mut("$ref") {
        *target = target.replace("#/components/schemas/", "#/definitions/");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            *inner = older(inner.take());
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(|property| *property = older(property.take()));
    }
    map
}

fn path_item(item: Value) -> Value {
    let Value::Object(map) = item else { return item };
    let converted = map.into_iter().map(|(key, value)| {
        let value = if key == "parameters" { parameters(value).into() } else { operation(value) };
        (key, value)
    });
    Value::Object(converted.collect())
}

fn parameters(list: Value) -> Vec<Value> {
    let Value::Array(items) = list else { return Vec::new() };
    items
        .into_iter()
        .map(|mut parameter| {
            if let Some(map) = parameter.as_object_mut()
                && let Some(Value::Object(schema)) = map.remove("schema")
            {
                map.extend(schema);
            }
            parameter
        })
        .collect()
}

fn operation(operation: Value) -> Value {
    let Value::Object(mut map) = operation else { return operation };
    let mut own = parameters(map.remove("parameters").unwrap_or_default());
    let mut consumes = vec!["*/*".to_owned()];
    if let Some(Value::Object(mut body)) = map.remove("requestBody") {
        let content = body.get("content").and_then(Value::as_object);
        let (media, schema) = content.map(one_schema).unwrap_or_default();
        consumes = media;
        let required = body.remove("required").unwrap_or(Value::Bool(false));
        own.insert(0, json!({"name": "body", "in": "body", "required": required, "schema": older(schema)}));
    }
    let mut produces = Vec::new();
    if let Some(Value::Object(responses)) = map.get_mut("responses") {
        for response in responses.values_mut().filter_map(Value::as_object_mut) {
            if let Some(Value::Object(content)) = response.remove("content") {
                let (media, schema) = one_schema(&content);
                produces = media;
                response.insert("schema".into(), older(schema));
            }
        }
    }
    map.insert("parameters".into(), own.into());
    map.insert("consumes".into(), json!(consumes));
    map.insert("produces".into(), json!(produces));
    map.insert("schemes".into(), json!(["https"]));
    Value::Object(map)
}

/// The media types of a body, and the schema they share.
fn one_schema(content: &Map<String, Value>) -> (Vec<String>, Value) {
    let schema = content.values().find_map(|media| media.get("schema")).cloned().unwrap_or_default();
    (content.keys().cloned().collect(), schema)
}
