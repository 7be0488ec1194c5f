//! How upstream's own types show themselves in messages: every field, set or not, in the order and by the names of their
//! declaration.
//!
//! Each line of the table is a type and its fields, `Name=key:kind`: the name that is shown, the key where the value is
//! found if it is not the name with a small first letter (`^` in the object around this one), and what it is. A `?` says
//! that the field is left out where it is empty, `@` that the fields of the type are shown as if they were here. Kinds are
//! `s` text, `i` a number, `b` a boolean, `q` an amount, `t` anything, `*`, `[` and `{` a pointer to, a list of and a map of
//! what follows, and else a type.

mod diff;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use api::field::{FieldError, Path, escaped};
use serde_json::{Map, Value};

const TABLE: &str = concat!(include_str!("internal/types.txt"), include_str!("internal/objects.txt"));
static NULL: Value = Value::Null;

/// The value as the type `kind` shows it, in one line; nothing is null, whatever it is not.
pub(super) fn shown(kind: &str, value: &Value) -> String {
    if value.is_null() {
        return "null".to_owned();
    }
    let mut writer = Writer { out: String::new(), indent: None };
    writer.value(kind, value, &Map::new());
    writer.out
}

/// What changes between two values of the type `kind`, line by line.
pub(super) fn difference(kind: &str, old: &Value, new: &Value) -> String {
    diff::unified(&pretty(kind, old), &pretty(kind, new))
}

/// An invalid value of the type `kind`.
pub(super) fn invalid(kind: &str, path: &Path, value: &Value, detail: impl Into<String>) -> FieldError {
    let mut error = FieldError::invalid(path, Value::Null, detail);
    error.value = shown(kind, value);
    error
}

fn pretty(kind: &str, value: &Value) -> String {
    let mut writer = Writer { out: String::new(), indent: Some(0) };
    writer.value(kind, value, &Map::new());
    writer.out
}

fn fields_of(kind: &str) -> Option<&'static str> {
    static TYPES: OnceLock<HashMap<&str, &str>> = OnceLock::new();
    let types = TYPES.get_or_init(|| TABLE.lines().filter_map(|line| line.split_once(' ')).collect());
    types.get(kind).copied()
}

struct Writer {
    out: String,
    /// How deep this line is, where there are lines.
    indent: Option<usize>,
}

impl Writer {
    fn value(&mut self, kind: &str, value: &Value, around: &Map<String, Value>) {
        let (sort, rest) = match kind.chars().next() {
            Some(sort @ ('*' | '[' | '{')) => (sort, kind.get(1..).unwrap_or_default()),
            _ => (' ', kind),
        };
        match (sort, value) {
            ('*' | '[' | '{', Value::Null) => self.out.push_str("null"),
            ('[', Value::Array(items)) => {
                self.list(('[', ']'), items.iter(), |writer, item| writer.value(rest, item, around));
            }
            ('{', Value::Object(entries)) => self.list(('{', '}'), entries.iter(), |writer, (key, value)| {
                writer.key(key);
                writer.value(rest, value, around);
            }),
            _ => match (rest, value) {
                ("s", Value::Null) => self.out.push_str("\"\""),
                ("i", Value::Null) => self.out.push('0'),
                ("b", Value::Null) => self.out.push_str("false"),
                ("q", Value::Null) => self.out.push_str("\"0\""),
                _ => match fields_of(rest) {
                    Some(fields) => self.object(fields, value, around),
                    None => self.out.push_str(&escaped(&value.to_string())),
                },
            },
        }
    }

    fn object(&mut self, fields: &str, value: &Value, around: &Map<String, Value>) {
        let (empty, mut found) = (Map::new(), Vec::new());
        let object = value.as_object().unwrap_or(&empty);
        gather(fields, object, around, &mut found);
        self.list(('{', '}'), found.into_iter(), |writer, (name, kind, value)| {
            writer.key(name);
            writer.value(kind, value, object);
        });
    }

    fn key(&mut self, key: &str) {
        let space = if self.indent.is_some() { " " } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(self.out, "{}:{space}", escaped(&Value::from(key).to_string()));
    }

    fn list<T>(
        &mut self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        self.out.push(open);
        let some = items.len() > 0;
        self.indent = self.indent.map(|depth| depth + 1);
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.line();
            each(self, item);
        }
        self.indent = self.indent.map(|depth| depth - 1);
        if some {
            self.line();
        }
        self.out.push(close);
    }

    fn line(&mut self) {
        if let Some(depth) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', depth));
        }
    }
}

/// The fields of `object` that are shown: name, kind and value.
fn gather<'a>(
    fields: &'a str,
    object: &'a Map<String, Value>,
    around: &'a Map<String, Value>,
    found: &mut Vec<(&'a str, &'a str, &'a Value)>,
) {
    for field in fields.split(' ') {
        let Some((place, kind)) = field.split_once(':') else { continue };
        if let Some(key) = place.strip_prefix('@') {
            if let (Some(Value::Object(inner)), Some(fields)) = (object.get(key), fields_of(kind)) {
                gather(fields, inner, object, found);
            }
            continue;
        }
        let (place, optional) = place.strip_suffix('?').map_or((place, false), |place| (place, true));
        let (name, value) = match place.split_once('=') {
            Some((name, key)) => (name, key.strip_prefix('^').map_or_else(|| object.get(key), |key| around.get(key))),
            None => (place, object.get(place).or_else(|| object.get(&small(place)))),
        };
        let value = value.unwrap_or(&NULL);
        // What is pointed to is there, even if it is nothing.
        let shown = if kind.starts_with('*') { !value.is_null() } else { !is_empty(value) };
        if !optional || shown {
            found.push((name, kind, value));
        }
    }
}

fn small(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_is_shown_in_the_order_of_its_type() {
        assert_eq!(shown("SeccompProfile", &json!({"type": "x"})), r#"{"Type":"x","LocalhostProfile":null}"#);
        assert_eq!(
            shown("PodFailurePolicy", &json!({"rules": [{"action": "a&b"}]})),
            r#"{"Rules":[{"Action":"a\u0026b","OnExitCodes":null,"OnPodConditions":null}]}"#
        );
        assert_eq!(
            shown("ResourceRequirements", &json!({"limits": {"cpu": "1"}, "claims": [{"name": "a"}]})),
            r#"{"Limits":{"cpu":"1"},"Requests":null,"Claims":[{"Name":"a","Request":""}]}"#
        );
    }

    #[test]
    fn metadata_is_shown_beside_the_spec_and_the_host_in_the_security_context() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"hostPID": true, "securityContext": {}}});
        let shown = shown("PodTemplateSpec", &template);
        assert!(shown.starts_with(r#"{"labels":{"a":"b"},"Spec":{"Volumes":null,"#), "{shown}");
        assert!(shown.contains(r#""SecurityContext":{"HostNetwork":false,"HostPID":true,"#), "{shown}");
    }

    #[test]
    fn every_kind_in_the_table_is_in_the_table() {
        for (name, fields) in TABLE.lines().filter_map(|line| line.split_once(' ')) {
            for field in fields.split(' ') {
                let kind = field.split_once(':').unwrap().1.trim_start_matches(['*', '[', '{']);
                assert!(kind.len() == 1 || fields_of(kind).is_some(), "{name}: {field}");
            }
        }
    }

    #[test]
    fn what_changes_is_told_with_the_lines_around_it() {
        let (old, new) = (json!({"drop": ["a"]}), json!({"add": ["b"], "drop": ["a"]}));
        let want =
            "@@ -1,5 +1,7 @@\n {\n- \"Add\": null,\n+ \"Add\": [\n+  \"b\"\n+ ],\n  \"Drop\": [\n   \"a\"\n  ]\n";
        assert_eq!(difference("Capabilities", &old, &new), want);
    }
}
