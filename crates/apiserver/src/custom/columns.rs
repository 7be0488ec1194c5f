//! The columns that a definition has its objects printed with.

use api::jsonpath::JsonPath;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::table::{age, description};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PrinterColumn {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    /// `None` where there is no such path: the column is empty.
    path: Option<JsonPath>,
}

fn column(name: &str, kind: &str, description: &str, path: &str) -> PrinterColumn {
    PrinterColumn {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: String::new(),
        description: description.to_owned(),
        priority: 0,
        path: JsonPath::parse(path).ok(),
    }
}

/// What a version says, or the age alone.
pub(super) fn columns(version: &Object) -> Vec<PrinterColumn> {
    let listed = version.get("additionalPrinterColumns").and_then(Value::as_array);
    let listed: Vec<&Object> = listed.into_iter().flatten().filter_map(Value::as_object).collect();
    if listed.is_empty() {
        return vec![created()];
    }
    let read = |listed: &&Object| {
        let path = listed.text(&["jsonPath"]);
        let described = match listed.text(&["description"]) {
            "" => format!("Custom resource definition column (in JSONPath format): {path}"),
            text => text.to_owned(),
        };
        PrinterColumn {
            format: listed.text(&["format"]).to_owned(),
            priority: listed.get("priority").and_then(Value::as_i64).unwrap_or(0),
            ..column(listed.text(&["name"]), listed.text(&["type"]), &described, path)
        }
    };
    listed.iter().map(read).collect()
}

fn created() -> PrinterColumn {
    column("Age", "date", description("Age"), ".metadata.creationTimestamp")
}

impl PrinterColumn {
    pub(crate) fn definition(&self) -> Value {
        json!({
            "name": self.name, "type": self.kind, "format": self.format, "description": self.description,
            "priority": self.priority,
        })
    }

    pub(crate) fn cell(&self, object: &Value) -> Value {
        let found = self.path.as_ref().map(|path| path.find(object)).unwrap_or_default();
        match found.first() {
            None => Value::Null,
            Some(value) => cell(&self.kind, value),
        }
    }
}

fn cell(kind: &str, value: &Value) -> Value {
    match (kind, value) {
        ("string", value) => printed(value).into(),
        (_, Value::Null) => Value::Null,
        ("integer", Value::Number(number)) => {
            number.as_i64().or_else(|| number.as_f64().map(|number| number as i64)).into()
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => match text.parse::<jiff::Timestamp>() {
            Ok(_) => age::since(text).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

/// A value as text: lists and objects as JSON.
fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<no value>".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_of_their_columns_type() {
        let object = json!({"spec": {"n": 3, "f": 2.5, "b": true, "s": "x", "l": [1, "a"], "bad": "no date"}});
        let check = |kind: &str, path: &str, want: Value| {
            assert_eq!(column("C", kind, "", path).cell(&object), want, "{kind} {path}");
        };
        check("integer", ".spec.n", json!(3));
        check("integer", ".spec.f", json!(2));
        check("integer", ".spec.s", Value::Null);
        check("number", ".spec.f", json!(2.5));
        check("boolean", ".spec.b", json!(true));
        check("string", ".spec.n", json!("3"));
        check("string", ".spec.l", json!("[1,\"a\"]"));
        check("string", ".spec.none", Value::Null);
        check("date", ".spec.bad", json!("<invalid>"));
    }
}
