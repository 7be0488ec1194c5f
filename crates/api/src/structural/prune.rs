//! Drops what a schema does not specify.

use serde_json::Value;

use super::{Additional, Structural, is_meta};

/// Drops unknown fields below `value`; their paths are added to `unknown`, in order.
pub fn prune(value: &mut Value, schema: &Structural, unknown: &mut Vec<String>) {
    let mut walk = Walk { path: String::new(), unknown: Vec::new() };
    walk.value(value, Some(schema), false);
    walk.unknown.sort();
    unknown.append(&mut walk.unknown);
}

struct Walk {
    path: String,
    unknown: Vec<String>,
}

impl Walk {
    /// `preserved`: unknown fields at this place stay.
    fn value(&mut self, value: &mut Value, schema: Option<&Structural>, preserved: bool) {
        let preserved = preserved || schema.is_some_and(|schema| schema.preserve_unknown);
        let length = self.path.len();
        match value {
            Value::Object(map) => {
                map.retain(|key, value| {
                    if schema.is_some_and(|schema| schema.embedded) && is_meta(key) {
                        return true;
                    }
                    self.key(key);
                    let kept = self.field(value, key, schema, preserved);
                    if !kept && (length > 0 || !is_meta(key)) {
                        self.unknown.push(self.path.clone());
                    }
                    self.path.truncate(length);
                    kept
                });
            }
            Value::Array(items) => {
                let inner = schema.and_then(|schema| schema.items.as_deref());
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    match (preserved, inner) {
                        // What is kept as it is has nothing to look for in it.
                        (true, None) => (),
                        (true, Some(inner)) => self.value(item, Some(inner), true),
                        (false, inner) => self.value(item, inner, false),
                    }
                    self.path.truncate(length);
                }
            }
            _ => (),
        }
    }

    /// Prunes a field's value; tells whether the field is specified.
    fn field(&mut self, value: &mut Value, key: &str, schema: Option<&Structural>, preserved: bool) -> bool {
        let Some(schema) = schema else { return false };
        match (schema.property(key), &schema.additional) {
            (Some(inner), _) => self.value(value, Some(inner), false),
            (None, Additional::Schema(inner)) => self.value(value, Some(inner), false),
            (None, Additional::Unsaid) => return preserved,
            // Anything may be there, and nothing is said of what is in it.
            (None, Additional::Allowed | Additional::Forbidden) => self.value(value, None, false),
        }
        true
    }

    fn key(&mut self, key: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_specified_goes_and_is_told() {
        let spec = |inner: Value| json!({"type": "object", "properties": {"spec": inner}});
        check(
            spec(json!({"type": "object", "properties": {"a": {"type": "string"}}})),
            json!({"kind": "K", "metadata": {"x": 1}, "spec": {"a": "1", "b": 2}, "other": 1}),
            json!({"kind": "K", "metadata": {"x": 1}, "spec": {"a": "1"}}),
            "other spec.b",
        );
        check(
            spec(
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}),
            ),
            json!({"spec": {"a": {"b": "1", "c": 1}, "free": {"x": [1, {"y": 2}]}}}),
            json!({"spec": {"a": {"b": "1"}, "free": {"x": [1, {"y": 2}]}}}),
            "spec.a.c",
        );
        check(
            spec(json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}})),
            json!({"spec": [{"a": "1"}, {"b": 1}]}),
            json!({"spec": [{"a": "1"}, {}]}),
            "spec[1].b",
        );
        check(
            spec(
                json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            ),
            json!({"spec": {"x": {"a": "1", "b": 1}}}),
            json!({"spec": {"x": {"a": "1"}}}),
            "spec.x.b",
        );
        check(
            spec(
                json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}),
            ),
            json!({"spec": {"kind": "P", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"b": 1}, "status": {}}}),
            json!({"spec": {"kind": "P", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {}}}),
            "spec.spec.b spec.status",
        );
    }

    #[track_caller]
    fn check(schema: Value, mut value: Value, want: Value, unknown: &str) {
        let schema = Structural::parse(schema.as_object().unwrap()).root();
        let mut found = Vec::new();
        prune(&mut value, &schema, &mut found);
        assert_eq!((value, found.join(" ")), (want, unknown.to_owned()));
    }
}
