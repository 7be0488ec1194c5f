//! OpenAPI v2 in the protobuf form that Go clients ask for, by gnostic's published field numbers.

use api::protobuf::wire::Message as _;
use serde_json::{Map, Value};

type Out = Vec<u8>;

pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Out::new();
    text(&mut out, 1, document, "swagger");
    out.message(2, |out| {
        let info = document.get("info").unwrap_or(&Value::Null);
        text(out, 1, info, "title");
        text(out, 2, info, "version");
    });
    out.message(8, |out| named(out, 2, document.get("paths"), path_item));
    out.message(9, |out| named(out, 1, document.get("definitions"), schema));
    for requirement in array(document, "security") {
        out.message(12, |out| named(out, 1, Some(requirement), |out, list| strings(out, 1, Some(list))));
    }
    out.message(13, |out| {
        named(out, 1, document.get("securityDefinitions"), |out, key| {
            out.message(2, |out| {
                for (tag, name) in [(1, "type"), (2, "name"), (3, "in"), (4, "description")] {
                    text(out, tag, key, name);
                }
            });
        });
    });
    out
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text(out: &mut Out, tag: u32, value: &Value, key: &str) {
    if let Some(text) = value.get(key).and_then(Value::as_str) {
        out.bytes(tag, text.as_bytes());
    }
}

fn flag(out: &mut Out, tag: u32, value: &Value, key: &str) {
    if value.get(key).and_then(Value::as_bool) == Some(true) {
        out.number(tag, 1);
    }
}

fn strings(out: &mut Out, tag: u32, list: Option<&Value>) {
    for text in list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        out.bytes(tag, text.as_bytes());
    }
}

/// A map, which gnostic holds as a list of names and values.
fn named(out: &mut Out, tag: u32, map: Option<&Value>, write: impl Fn(&mut Out, &Value)) {
    for (name, value) in map.and_then(Value::as_object).into_iter().flatten() {
        out.message(tag, |out| {
            out.bytes(1, name.as_bytes());
            out.message(2, |out| write(out, value));
        });
    }
}

fn extensions(out: &mut Out, tag: u32, value: &Value) {
    let own: Map<String, Value> = value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with("x-"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // Any value is YAML, of which JSON is a part.
    named(out, tag, Some(&Value::Object(own)), |out, value| out.bytes(2, format!("{value}\n").as_bytes()));
}

fn path_item(out: &mut Out, item: &Value) {
    for (tag, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(value) = item.get(method) {
            out.message(tag, |out| operation(out, value));
        }
    }
    array(item, "parameters").iter().for_each(|value| out.message(9, |out| parameter(out, value)));
}

fn operation(out: &mut Out, value: &Value) {
    strings(out, 1, value.get("tags"));
    text(out, 5, value, "operationId");
    strings(out, 6, value.get("produces"));
    strings(out, 7, value.get("consumes"));
    array(value, "parameters").iter().for_each(|value| out.message(8, |out| parameter(out, value)));
    out.message(9, |out| {
        named(out, 1, value.get("responses"), |out, response| {
            out.message(1, |out| {
                text(out, 1, response, "description");
                if let Some(value) = response.get("schema") {
                    out.message(2, |out| out.message(1, |out| schema(out, value)));
                }
            });
        });
    });
    strings(out, 10, value.get("schemes"));
    extensions(out, 13, value);
}

fn parameter(out: &mut Out, value: &Value) {
    let place = value.get("in").and_then(Value::as_str).unwrap_or_default();
    out.message(1, |out| match place {
        "body" => out.message(1, |out| {
            text(out, 2, value, "name");
            text(out, 3, value, "in");
            flag(out, 4, value, "required");
            if let Some(value) = value.get("schema") {
                out.message(5, |out| schema(out, value));
            }
        }),
        "path" => out.message(2, |out| out.message(4, |out| plain(out, value, [5, 19]))),
        _ => out.message(2, |out| out.message(3, |out| plain(out, value, [6, 20]))),
    });
}

/// A parameter of a path or query; the two number their type and uniqueness differently.
fn plain(out: &mut Out, value: &Value, [kind, unique]: [u32; 2]) {
    flag(out, 1, value, "required");
    text(out, 2, value, "in");
    text(out, 3, value, "description");
    text(out, 4, value, "name");
    text(out, kind, value, "type");
    flag(out, unique, value, "uniqueItems");
}

fn schema(out: &mut Out, value: &Value) {
    text(out, 1, value, "$ref");
    text(out, 2, value, "format");
    text(out, 4, value, "description");
    strings(out, 19, value.get("required"));
    array(value, "enum").iter().for_each(|word| out.message(20, |out| out.bytes(2, format!("{word}\n").as_bytes())));
    match value.get("additionalProperties") {
        None => (),
        Some(Value::Bool(allowed)) => out.message(21, |out| out.number(2, u64::from(*allowed))),
        Some(inner) => out.message(21, |out| out.message(1, |out| schema(out, inner))),
    }
    if value.get("type").is_some() {
        out.message(22, |out| text(out, 1, value, "type"));
    }
    if let Some(inner) = value.get("items") {
        out.message(23, |out| out.message(1, |out| schema(out, inner)));
    }
    if value.get("properties").is_some() {
        out.message(25, |out| named(out, 1, value.get("properties"), schema));
    }
    extensions(out, 31, value);
}
