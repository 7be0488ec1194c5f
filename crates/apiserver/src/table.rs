//! Objects as table rows, with the columns upstream prints.

mod age;
mod columns;
mod pod;

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::registry::Served;

/// One column: how it is described, and how its cell is read from an object.
pub(crate) struct Column {
    name: &'static str,
    kind: &'static str,
    /// Columns above zero are shown with `-o wide`.
    priority: i32,
    cell: fn(&Object) -> Value,
}

const fn text(name: &'static str, cell: fn(&Object) -> Value) -> Column {
    Column { name, kind: "string", priority: 0, cell }
}

const fn wide(name: &'static str, cell: fn(&Object) -> Value) -> Column {
    Column { name, kind: "string", priority: 1, cell }
}

const fn number(name: &'static str, cell: fn(&Object) -> Value) -> Column {
    Column { name, kind: "integer", priority: 0, cell }
}

/// A `Table` of `objects`; `include` says how much of each object its row carries.
pub(crate) fn render(served: &Served, version: &str, objects: &[Object], meta: Value, include: Option<&str>) -> Value {
    let columns = columns::of(&served.info.group, &served.info.plural);
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            let format = if column.name == "Name" { "name" } else { "" };
            json!({"name": column.name, "type": column.kind, "format": format, "description": "", "priority": column.priority})
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells: Vec<Value> = columns.iter().map(|column| (column.cell)(object)).collect();
            let carried = match include {
                Some("None") => Value::Null,
                Some("Object") => Value::Object(object.clone()),
                _ => json!({
                    "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"),
                    "metadata": object.get("metadata").cloned().unwrap_or_default(),
                }),
            };
            let mut row = json!({"cells": cells, "object": carried});
            if let (Some(conditions), Some(map)) = (pod::row_conditions(served, object), row.as_object_mut()) {
                map.insert("conditions".into(), conditions);
            }
            row
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta,
        "columnDefinitions": definitions, "rows": rows,
    })
}

fn name(object: &Object) -> Value {
    object.name().into()
}

fn age(object: &Object) -> Value {
    age::since(object.text(&["metadata", "creationTimestamp"])).into()
}

/// The text at a path; `<none>` where there is none.
fn or_none(object: &Object, path: &[&str]) -> Value {
    match object.at(path) {
        Some(Value::String(text)) if !text.is_empty() => text.clone().into(),
        _ => "<none>".into(),
    }
}

fn count(object: &Object, path: &[&str]) -> i64 {
    object.at(path).and_then(Value::as_i64).unwrap_or(0)
}

fn list<'a>(object: &'a Object, path: &[&str]) -> Vec<&'a Object> {
    object.at(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object).collect()
}
