//! Objects as table rows, with the columns upstream prints.

pub(crate) mod age;
mod cluster;
mod columns;
mod networking;
mod pod;
mod storage;
mod versions;

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::custom::PrinterColumn;
use crate::registry::Served;

/// One column: how it is described, and how its cell is read from an object.
pub(crate) struct Column {
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    /// Columns above zero are shown with `-o wide`.
    priority: i32,
    cell: fn(&Object) -> Value,
}

const fn text(name: &'static str, cell: fn(&Object) -> Value) -> Column {
    Column { name, kind: "string", format: "", priority: 0, cell }
}

const fn wide(name: &'static str, cell: fn(&Object) -> Value) -> Column {
    Column { name, kind: "string", format: "", priority: 1, cell }
}

const fn number(name: &'static str, cell: fn(&Object) -> Value) -> Column {
    Column { name, kind: "integer", format: "", priority: 0, cell }
}

const fn flag(name: &'static str, cell: fn(&Object) -> Value) -> Column {
    Column { name, kind: "boolean", format: "", priority: 0, cell }
}

const NAME: Column = text("Name", name);
const AGE: Column = text("Age", age);
/// When it was made, for kinds whose age nobody asks for.
const CREATED: Column =
    Column { kind: "date", ..text("Created At", |o| o.text(&["metadata", "creationTimestamp"]).into()) };

fn columns_of(served: &Served) -> (&[Column], &[PrinterColumn]) {
    match served.custom() {
        Some(custom) => (&[NAME][..], &custom.version().columns),
        None => (columns::of(&served.info.group, &served.info.plural), &[]),
    }
}

/// How the columns of a resource are described: looked up once, they do not change.
pub(crate) fn definitions(served: &Served) -> &Value {
    served.columns.get_or_init(|| describe(served))
}

fn describe(served: &Served) -> Value {
    let (columns, printed) = columns_of(served);
    let definitions = columns
        .iter()
        .map(|column| {
            let format = if column.name == "Name" { "name" } else { column.format };
            json!({
                "name": column.name, "type": column.kind, "format": format, "description": described(served, column.name),
                "priority": column.priority,
            })
        })
        .chain(printed.iter().map(PrinterColumn::definition));
    definitions.collect()
}

/// A `Table` of `objects`; `include` says how much of each object its row carries.
pub(crate) fn render(served: &Served, version: &str, objects: &[Object], meta: Value, include: Option<&str>) -> Value {
    let (columns, printed) = columns_of(served);
    let mut ordered: Vec<&Object> = objects.iter().collect();
    if served.info.plural == "flowschemas" {
        // In the order in which they are tried.
        ordered.sort_by_key(|object| object.at(&["spec", "matchingPrecedence"]).and_then(Value::as_i64));
    }
    let rows: Vec<Value> = ordered
        .into_iter()
        .map(|object| {
            let mut cells: Vec<Value> = columns.iter().map(|column| (column.cell)(object)).collect();
            if served.info.plural == "ipaddresses" {
                // A cell that has no column, as upstream's.
                cells.push(age(object));
            }
            if !printed.is_empty() {
                let whole = Value::Object(object.clone());
                cells.extend(printed.iter().map(|column| column.cell(&whole)));
            }
            let mut row = json!({"cells": cells, "object": carried(object, version, include)});
            if let (Some(conditions), Some(map)) = (pod::row_conditions(served, object), row.as_object_mut()) {
                map.insert("conditions".into(), conditions);
            }
            row
        })
        .collect();
    let is_default = columns.last().is_some_and(|column| column.name == CREATED.name);
    let rows = if rows.is_empty() && is_default { Value::Null } else { rows.into() };
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta,
        "columnDefinitions": definitions(served), "rows": rows,
    })
}

/// The `Table` of the scale of anything.
pub(crate) fn render_scale(version: &str, scale: &Object, meta: Value, include: Option<&str>) -> Value {
    const PARTS: [(&str, &str, &str); 2] = [("Desired", "ScaleSpec", "spec"), ("Available", "ScaleStatus", "status")];
    let definition = |name: &str, kind: &str, description: &str| json!({"name": name, "type": kind, "format": "", "description": description, "priority": 0});
    let (mut definitions, mut cells) = (vec![definition("Name", "string", description("Name"))], vec![name(scale)]);
    for (column, kind, part) in PARTS {
        let description = documented(&format!("io.k8s.api.autoscaling.v1.{kind}"), "replicas");
        definitions.push(definition(column, "integer", description));
        cells.push(count(scale, &[part, "replicas"]).into());
    }
    definitions.push(definition("Age", "string", description("Age")));
    cells.push(age(scale));
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta, "columnDefinitions": definitions,
        "rows": [{"cells": cells, "object": carried(scale, version, include)}],
    })
}

/// What a row carries of its object.
fn carried(object: &Object, version: &str, include: Option<&str>) -> Value {
    match include {
        Some("None") => Value::Null,
        Some("Object") => Value::Object(object.clone()),
        _ => json!({
            "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"),
            "metadata": object.get("metadata").cloned().unwrap_or_default(),
        }),
    }
}

/// Resources, and below each its columns with the fields that describe them: `Column = type field`.
const DESCRIBED: &str = include_str!("table/described.txt");

/// What upstream says of a column: what the field that it shows is for.
fn described(served: &Served, column: &str) -> &'static str {
    let resource = match served.info.plural.as_str() {
        // Both groups' are the same.
        "events" => "events".to_owned(),
        _ => served.group_resource().to_string(),
    };
    let mut lines = DESCRIBED.lines().skip_while(|line| *line != resource).skip(1);
    let own = lines.by_ref().map_while(|line| line.strip_prefix("  ")).find_map(|line| {
        let (name, shown) = line.split_once(" = ")?;
        shown.split_once(' ').filter(|_| name == column)
    });
    match own {
        Some((kind, field)) => documented(&format!("io.k8s.{kind}"), field),
        None => description(column),
    }
}

/// What it says of the columns that every kind has.
pub(crate) fn description(column: &str) -> &'static str {
    let field = match column {
        "Name" => "name",
        "Age" | "Created At" => "creationTimestamp",
        _ => return "",
    };
    documented("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", field)
}

fn documented(kind: &str, field: &str) -> &'static str {
    let Some(kind) = api::schema::named(kind) else { return "" };
    let texts = api::schema::docs::of(&kind.name).unwrap_or_default();
    let index = kind.fields.iter().position(|known| known.name == field);
    index.and_then(|index| texts.get(index + 1)).copied().unwrap_or_default()
}

fn name(object: &Object) -> Value {
    object.name().into()
}

fn age(object: &Object) -> Value {
    age::since(object.text(&["metadata", "creationTimestamp"])).into()
}

/// The text at a path, or another where there is none.
fn or(object: &Object, path: &[&str], other: &str) -> Value {
    match object.text(path) {
        "" => other.into(),
        text => text.into(),
    }
}

fn or_none(object: &Object, path: &[&str]) -> Value {
    or(object, path, "<none>")
}

fn count(object: &Object, path: &[&str]) -> i64 {
    object.at(path).and_then(Value::as_i64).unwrap_or(0)
}

fn list<'a>(object: &'a Object, path: &[&str]) -> Vec<&'a Object> {
    object.at(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object).collect()
}

fn condition<'a>(object: &'a Object, path: &[&str], kind: &str, field: &str) -> &'a str {
    list(object, path).into_iter().find(|c| c.text(&["type"]) == kind).map(|c| c.text(&[field])).unwrap_or_default()
}

fn strings<'a>(object: &'a Object, path: &[&str]) -> Vec<&'a str> {
    object.at(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn labels(labels: Option<&Value>) -> Value {
    let pairs = labels.and_then(Value::as_object).into_iter().flatten();
    let text = pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>().join(",");
    if text.is_empty() { "<none>".into() } else { text.into() }
}

/// A label selector, or a plain map of labels, as text.
fn selector_at(object: &Object, path: &[&str]) -> Value {
    let Some(selector) = object.at(path) else { return "<none>".into() };
    if selector.get("matchLabels").is_none() && selector.get("matchExpressions").is_none() {
        return labels(Some(selector));
    }
    let pairs = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let mut parts: Vec<String> = pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let Some(expression) = expression.as_object() else { continue };
        let (key, values) = (expression.text(&["key"]), strings(expression, &["values"]).join(","));
        parts.push(match expression.text(&["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.join(",").into()
}
