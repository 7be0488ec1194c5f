//! A structural schema as expressions see it, and how large its values can be.

use std::collections::BTreeMap;

use api::{Object, ObjectExt as _};
use cel::schema::{Format, ListKind, Schema, Shape};
use serde_json::Value;

use super::flag;
use crate::admission::rules::strings;

/// The largest request that is accepted: nothing in it can be larger.
pub(super) const REQUEST: u64 = 3 << 20;

/// `is_resource`: it has a type and metadata, whether or not they are described.
pub(super) fn seen(schema: &Object, is_resource: bool, name: &str) -> Schema {
    let count = |key: &str| schema.get(key).and_then(Value::as_i64).map(|count| u64::try_from(count).unwrap_or(0));
    let make = |shape: Shape, max_elements: u64, min_size: u64| Schema { shape, max_elements, min_size };
    let text = || count("maxLength").map_or(REQUEST - 2, |most| most.saturating_mul(4));
    let unknown = || make(Shape::Unknown, 0, 0);
    if flag(schema, "x-kubernetes-int-or-string") {
        return make(Shape::IntOrString, text(), 1);
    }
    match schema.text(&["type"]) {
        "array" => {
            let Some(items) = schema.get("items").and_then(Value::as_object) else { return unknown() };
            let items = inner(items, &format!("{name}.@items"));
            if items.cel_type().is_none() {
                return unknown();
            }
            let most = count("maxItems").unwrap_or((REQUEST - 2) / (items.min_size + 1));
            make(Shape::List { items: Box::new(items), kind: list_kind(schema) }, most, 2)
        }
        "object" => match schema.get("additionalProperties").and_then(Value::as_object) {
            Some(values) => {
                let values = inner(values, &format!("{name}.@values"));
                if values.cel_type().is_none() {
                    return unknown();
                }
                let most = count("maxProperties").unwrap_or((REQUEST - 2) / (values.min_size + 6));
                make(Shape::Map(Box::new(values)), most, 2)
            }
            None => object(schema, is_resource, name),
        },
        "string" => match schema.text(&["format"]) {
            "byte" => make(Shape::String(Format::Byte), count("maxLength").unwrap_or(REQUEST - 2), 2),
            "duration" => make(Shape::String(Format::Duration), 32, 3),
            "date" => make(Shape::String(Format::Date), 12, 12),
            "date-time" => make(Shape::String(Format::DateTime), 32, 21),
            _ => make(Shape::String(Format::Plain), plain_text(schema, text()), 2),
        },
        "boolean" => make(Shape::Boolean, 0, 4),
        "integer" => make(Shape::Integer, 0, 1),
        "number" => make(Shape::Number, 0, 1),
        _ => unknown(),
    }
}

fn inner(schema: &Object, name: &str) -> Schema {
    seen(schema, flag(schema, "x-kubernetes-embedded-resource"), name)
}

/// An enumeration is as long as its longest value.
fn plain_text(schema: &Object, most: u64) -> u64 {
    let values = schema.get("enum").and_then(Value::as_array).filter(|values| !values.is_empty());
    match values.filter(|_| schema.get("maxLength").is_none()) {
        Some(values) => values.iter().filter_map(Value::as_str).map(|value| value.len() as u64).max().unwrap_or(0),
        None => most,
    }
}

fn list_kind(schema: &Object) -> ListKind {
    match schema.text(&["x-kubernetes-list-type"]) {
        "set" => ListKind::Set,
        "map" => ListKind::Map(strings(schema.get("x-kubernetes-list-map-keys"))),
        _ => ListKind::Atomic,
    }
}

fn object(schema: &Object, is_resource: bool, name: &str) -> Schema {
    let required = strings(schema.get("required"));
    let (mut fields, mut least) = (BTreeMap::new(), 2);
    for (field, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let Some(property) = property.as_object() else { continue };
        let seen = inner(property, &format!("{name}.{field}"));
        if seen.cel_type().is_some() && required.contains(field) && property.get("default").is_none_or(Value::is_null) {
            least += field.len() as u64 + seen.min_size + 4;
        }
        fields.insert(field.clone(), seen);
    }
    if is_resource {
        let text = || Schema { shape: Shape::String(Format::Plain), max_elements: REQUEST - 2, min_size: 2 };
        let described = |schema: &Schema| match &schema.shape {
            Shape::Object { fields, .. } => fields.contains_key("name") && fields.contains_key("generateName"),
            _ => false,
        };
        fields.insert("apiVersion".to_owned(), text());
        fields.insert("kind".to_owned(), text());
        if !fields.get("metadata").is_some_and(described) {
            let names = ["name", "generateName"].map(|name| (name.to_owned(), text())).into_iter().collect();
            let shape = Shape::Object { name: format!("{name}.metadata").into(), fields: names };
            fields.insert("metadata".to_owned(), Schema { shape, max_elements: 0, min_size: 2 });
        }
    }
    Schema { shape: Shape::Object { name: name.into(), fields }, max_elements: 0, min_size: least }
}
