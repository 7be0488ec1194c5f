//! What the fields of built-in kinds may say, where that is one of a few words: `kubectl explain` shows it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

const TEXT: &str = include_str!("enums.txt");

/// The values of a field, and what is told of each.
struct Words {
    /// The field is a list of them.
    is_list: bool,
    values: Vec<Value>,
    told: String,
}

/// By type and field; fields that share their words share the entry.
static FIELDS: OnceLock<HashMap<(&'static str, &'static str), Arc<Words>>> = OnceLock::new();

/// Adds to the schema of a field what it may say.
pub(super) fn add(kind: &str, field: &str, schema: &mut Map<String, Value>) {
    let Some(words) = FIELDS.get_or_init(read).get(&(kind, field)) else { return };
    let values = Value::from(words.values.clone());
    if words.is_list {
        if let Some(Value::Object(items)) = schema.get_mut("items") {
            items.insert("enum".into(), values);
        }
        return;
    }
    schema.insert("enum".into(), values);
    let before = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    schema.insert("description".into(), format!("{before}\n\nPossible enum values:{}", words.told).into());
}

/// Paragraphs: the fields, then a line for each value.
fn read() -> HashMap<(&'static str, &'static str), Arc<Words>> {
    let mut found = HashMap::new();
    for paragraph in TEXT.split("\n\n").skip(1) {
        let (values, fields): (Vec<&str>, Vec<&str>) = paragraph.lines().partition(|line| line.starts_with("  "));
        let fields: Vec<(&str, &str)> = fields.iter().filter_map(|line| line.split_once(' ')).collect();
        let mut words = Words {
            is_list: fields.iter().any(|(_, field)| field.ends_with("[]")),
            values: Vec::new(),
            told: String::new(),
        };
        for line in values {
            let line = line.trim_start();
            let end = line.get(1..).and_then(|rest| rest.find('"')).map_or(line.len(), |end| end + 2);
            let (word, told) = line.split_at_checked(end).unwrap_or((line, ""));
            words.values.push(Value::from(word.trim_matches('"')));
            words.told += &format!("\n - `{word}`{}", told.replace("\\n", "\n"));
        }
        let words = Arc::new(words);
        found.extend(fields.into_iter().map(|(kind, field)| ((kind, field.trim_end_matches("[]")), words.clone())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_tell_what_they_may_say() {
        let check = |field: &str, schema: Value, want: Value| {
            let mut schema = schema.as_object().cloned().unwrap();
            add("io.k8s.api.core.v1.ServiceSpec", field, &mut schema);
            assert_eq!(Value::Object(schema), want);
        };
        let words = json!(["", "IPv4", "IPv6"]);
        check("ipFamilies", json!({"items": {"type": "string"}}), json!({"items": {"type": "string", "enum": words}}));
        check("clusterIP", json!({"type": "string"}), json!({"type": "string"}));
        let told = "x\n\nPossible enum values:\n - `\"Cluster\"` routes traffic to all endpoints.\n - `\"Local\"` routes traffic \
                    only to endpoints on the same node as the client pod (dropping the traffic if there are no local endpoints).";
        check(
            "internalTrafficPolicy",
            json!({"description": "x"}),
            json!({"description": told, "enum": ["Cluster", "Local"]}),
        );
    }

    #[test]
    fn every_field_that_is_named_is_there() {
        for (kind, field) in FIELDS.get_or_init(read).keys() {
            let known = api::schema::named(kind).is_some_and(|kind| kind.field(field).is_some());
            assert!(known, "{kind} {field}");
        }
    }
}
