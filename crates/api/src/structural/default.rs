//! Fills in what a schema has defaults for, and takes out nulls that it does not allow.

use serde_json::Value;

use super::Structural;

/// A null where none is allowed stands for nothing, so that a default takes its place.
fn is_unset(value: &Value, schema: Option<&Structural>) -> bool {
    value.is_null() && schema.is_some_and(|schema| !schema.nullable)
}

pub fn default(value: &mut Value, schema: &Structural) {
    match value {
        Value::Object(map) => {
            for (name, inner) in schema.properties() {
                let Some(wanted) = &inner.default else { continue };
                if map.get(name).is_none_or(|found| is_unset(found, Some(inner))) {
                    map.insert(name.to_owned(), wanted.clone());
                }
            }
            for (name, found) in map.iter_mut() {
                let Some(inner) = schema.below(name) else { continue };
                if schema.property(name).is_none() && is_unset(found, Some(inner)) {
                    *found = inner.default.clone().unwrap_or_default();
                }
                default(found, inner);
            }
        }
        Value::Array(items) => {
            let Some(inner) = schema.items.as_deref() else { return };
            for item in items {
                if is_unset(item, Some(inner)) {
                    *item = inner.default.clone().unwrap_or_default();
                }
                default(item, inner);
            }
        }
        _ => (),
    }
}

/// Takes out the nulls that are not allowed and have no default to take their place.
pub fn prune_nulls(value: &mut Value, schema: Option<&Structural>) {
    match value {
        Value::Object(map) => map.retain(|name, found| {
            let inner = schema.and_then(|schema| schema.below(name));
            if is_unset(found, inner) && inner.is_some_and(|inner| inner.default.is_none()) {
                return false;
            }
            prune_nulls(found, inner);
            true
        }),
        Value::Array(items) => {
            let inner = schema.and_then(|schema| schema.items.as_deref());
            items.iter_mut().for_each(|item| prune_nulls(item, inner));
        }
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_fill_gaps_and_forbidden_nulls() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "integer", "default": 5},
            "b": {"type": "object", "default": {}, "properties": {"c": {"type": "string", "default": "x"}}},
            "n": {"type": "string", "nullable": true, "default": "y"},
            "m": {"type": "string"},
            "l": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "boolean", "default": true}}}},
            "e": {"type": "object", "additionalProperties": {"type": "integer", "default": 3}},
        }});
        check(&schema, json!({}), json!({"a": 5, "b": {"c": "x"}, "n": "y"}));
        check(
            &schema,
            json!({"a": null, "b": {"c": "z"}, "n": null, "m": null, "l": [{}, {"d": false}], "e": {"k": null}}),
            json!({"a": 5, "b": {"c": "z"}, "n": null, "l": [{"d": true}, {"d": false}], "e": {"k": 3}}),
        );
    }

    #[track_caller]
    fn check(schema: &Value, mut value: Value, want: Value) {
        let schema = Structural::parse(schema.as_object().unwrap());
        prune_nulls(&mut value, Some(&schema));
        default(&mut value, &schema);
        assert_eq!(value, want);
    }
}
