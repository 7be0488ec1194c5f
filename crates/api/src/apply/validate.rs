//! Whether an applied configuration fits its schema: server-side apply refuses what it cannot track.
//!
//! As upstream, the walk ends at the first field that does not fit.

use serde_json::Value;

use super::form::{Form, Node, display};
use crate::object::Object;
use crate::schema::{Shape, Type};
use crate::structural::Kind;

/// What is wrong with `config`, in upstream's words.
pub fn validate(config: &Object, schema: &Type) -> Result<(), String> {
    let mut walk = Walk { path: Vec::new(), error: None };
    walk.object(config, Form::Struct(schema));
    walk.error.map_or(Ok(()), Err)
}

struct Walk {
    path: Vec<String>,
    error: Option<String>,
}

impl Walk {
    fn fail(&mut self, why: impl std::fmt::Display) {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        self.error.get_or_insert_with(|| format!("{}: {why}", display(&path)));
    }

    fn object(&mut self, object: &Object, form: Form<'_>) {
        for (key, value) in object {
            self.path.push(format!("f:{key}"));
            match form.at_key(key) {
                Some(inner) => self.value(value, inner),
                None => self.fail("field not declared in schema"),
            }
            self.path.pop();
        }
    }

    fn value(&mut self, value: &Value, form: Form<'_>) {
        match (form, value) {
            (_, Value::Null) => (),
            (Form::Deduced, Value::Object(object)) => self.object(object, form),
            (Form::Deduced, _) => (),
            (Form::Struct(_) | Form::Map(_) | Form::Custom(_), Value::Object(object)) => self.object(object, form),
            (Form::Custom(node), _) if node.schema.kind == Kind::Any => (),
            (Form::Struct(_) | Form::Map(_) | Form::Custom(_), other) => {
                self.fail(format!("expected map, got {}", go_value(other)))
            }
            (Form::Keyed(..) | Form::Set(_), Value::Array(items)) => self.elements(items, form),
            (Form::Keyed(..) | Form::Set(_), other) => self.fail(format!("expected list, got {}", go_value(other))),
            (Form::Leaf(shape), value) => self.leaf(value, shape),
            (Form::CustomLeaf(node), value) => self.custom(value, node),
        }
    }

    fn elements(&mut self, items: &[Value], form: Form<'_>) {
        let mut seen: Vec<String> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match form.element_key(item) {
                Err(why) => self.fail(format!("element {index}: {why}")),
                Ok(key) => {
                    if seen.contains(&key) {
                        self.fail(format!("duplicate entries for key {}", display(&[&key])));
                    }
                    if let Some(inner) = form.element() {
                        self.path.push(key.clone());
                        self.value(item, inner);
                        self.path.pop();
                    }
                    seen.push(key);
                }
            }
        }
    }

    fn leaf(&mut self, value: &Value, shape: &Shape) {
        let why = match (shape, value) {
            (Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime, Value::String(_))
            | (Shape::Int32 | Shape::Int64 | Shape::Double, Value::Number(_))
            | (Shape::Bool, Value::Bool(_))
            | (Shape::Quantity | Shape::IntOrString, Value::String(_) | Value::Number(_))
            | (Shape::List(_), Value::Array(_))
            | (Shape::Any | Shape::SchemaOr(_), _) => return,
            (Shape::Object(schema), Value::Object(object)) => return self.object(object, Form::Struct(schema)),
            (Shape::Map(inner), Value::Object(object)) => return self.object(object, Form::Map(inner)),
            (Shape::Int32 | Shape::Int64 | Shape::Double, other) => {
                format!("expected numeric (int or float), got {}", go_type(other))
            }
            (Shape::Bool, other) => format!("expected boolean, got {}", go_type(other)),
            (Shape::List(_), other) => format!("expected list, got {}", go_value(other)),
            (Shape::Object(_) | Shape::Map(_), other) => format!("expected map, got {}", go_value(other)),
            (_, other) => format!("expected string, got {}", go_syntax(other)),
        };
        self.fail(why);
    }
}

impl Walk {
    fn custom(&mut self, value: &Value, node: Node<'_>) {
        let format = node.schema.rules.as_ref().and_then(|rules| rules.format.as_deref()).unwrap_or_default();
        let why = match (node.schema.kind, value) {
            (Kind::Object, Value::Object(object)) => return self.object(object, Form::Custom(node)),
            (Kind::Any, _)
            | (Kind::Array, Value::Array(_))
            | (Kind::Boolean, Value::Bool(_))
            | (Kind::Integer | Kind::Number, Value::Number(_)) => return,
            (Kind::Object, other) => format!("expected map, got {}", go_value(other)),
            (Kind::Array, other) => format!("expected list, got {}", go_value(other)),
            (Kind::Boolean, other) => format!("expected boolean, got {}", go_type(other)),
            (Kind::Integer | Kind::Number, other) => {
                format!("expected numeric (int or float), got {}", go_type(other))
            }
            (Kind::String, other) if matches!(format, "" | "byte") => {
                if other.is_string() {
                    return;
                }
                format!("expected string, got {}", go_syntax(other))
            }
            (Kind::String | Kind::IntOrString, other @ (Value::Object(_) | Value::Array(_))) => {
                format!("expected any scalar, got {}", go_value(other))
            }
            (Kind::String | Kind::IntOrString, _) => return,
        };
        self.fail(why);
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn go_value(value: &Value) -> String {
    format!("&{{{}}}", crate::patch::go_text(value))
}

/// A value as it would be written in upstream's language.
fn go_syntax(value: &Value) -> String {
    fn inner(value: &Value) -> String {
        match value {
            Value::Null => "interface {}(nil)".to_owned(),
            Value::Array(items) => {
                format!("[]interface {{}}{{{}}}", items.iter().map(inner).collect::<Vec<_>>().join(", "))
            }
            Value::Object(map) => {
                let fields = map.iter().map(|(key, value)| format!("{key:?}:{}", inner(value)));
                format!("map[string]interface {{}}{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
            scalar => scalar.to_string(),
        }
    }
    format!("&value.valueUnstructured{{Value:{}}}", inner(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_cannot_be_tracked_is_refused() {
        check(json!({"spec": {"containers": [{"name": "a", "image": "x"}]}}), "");
        check(json!({"spec": {"foo": 1}}), ".spec.foo: field not declared in schema");
        check(
            json!({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}),
            ".spec.containers: duplicate entries for key [name=\"a\"]",
        );
        check(
            json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": "x"}]}]}}),
            ".spec.containers[name=\"a\"].ports[containerPort=\"x\",protocol=\"TCP\"].containerPort: expected numeric (int or float), got string",
        );
        check(json!({"spec": {"foo": 1, "bar": 2}}), ".spec.bar: field not declared in schema");
    }

    #[track_caller]
    fn check(config: Value, want: &str) {
        let schema = crate::schema::of_kind("", "v1", "Pod").unwrap();
        let got = validate(config.as_object().unwrap(), schema).err().unwrap_or_default();
        assert_eq!(got, want);
    }
}
