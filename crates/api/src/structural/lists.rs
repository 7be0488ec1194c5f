//! Elements that must be unique: those of sets, and of maps by their keys.

use serde_json::{Map, Value};

use super::{ListType, Structural};
use crate::field::{FieldError, Path};

pub fn lists(value: &Value, schema: &Structural, path: &Path, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                let at = if schema.property(name).is_some() { path.child(name) } else { path.key(name) };
                if let Some(below) = schema.below(name) {
                    lists(inner, below, &at, errors);
                }
            }
        }
        Value::Array(items) => {
            match &schema.list_type {
                ListType::Atomic => (),
                ListType::Set => {
                    let keys: Vec<String> = items.iter().map(Value::to_string).collect();
                    let twice = repeated(&keys).into_iter().filter_map(|index| Some((index, items.get(index)?)));
                    errors.extend(twice.map(|(index, item)| FieldError::duplicate(&path.index(index), item.clone())));
                }
                ListType::Map(keys) => keyed(items, keys, path, errors),
            }
            if let Some(below) = schema.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    lists(item, below, &path.index(index), errors);
                }
            }
        }
        _ => (),
    }
}

fn keyed(items: &[Value], names: &[Box<str>], path: &Path, errors: &mut Vec<FieldError>) {
    let odd = items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null());
    if let Some((index, item)) = odd {
        let why = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(&path.index(index), item.clone(), why));
        return;
    }
    let key = |item: &Value| -> Value {
        let found = names.iter().filter_map(|name| Some((name.to_string(), item.get(&**name)?.clone())));
        Value::Object(Map::from_iter(found))
    };
    let keys: Vec<Value> = items.iter().map(key).collect();
    let texts: Vec<String> = keys.iter().map(Value::to_string).collect();
    let twice = repeated(&texts).into_iter().filter_map(|index| Some((index, keys.get(index)?)));
    errors.extend(twice.map(|(index, key)| FieldError::duplicate(&path.index(index), key.clone())));
}

/// Where each value comes for the second time; a third time is not told.
fn repeated(keys: &[String]) -> Vec<usize> {
    let mut seen = std::collections::HashMap::with_capacity(keys.len());
    let mut found = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        let times = seen.entry(key.as_str()).or_insert(0);
        *times += 1;
        if *times == 2 {
            found.push(index);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_comes_twice_is_told_where_it_comes_again() {
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        check(&set, json!(["a", "b", "a", "a"]), "l[2]: Duplicate value: \"a\"");
        let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object"}});
        check(&map, json!([{"k": 1}, {"k": 2}, {"k": 1}]), "l[2]: Duplicate value: {\"k\":1}");
        check(&map, json!([{}, {}]), "l[1]: Duplicate value: {}");
        check(&map, json!([1]), "l[0]: Invalid value: 1: must be an object for an array of list-type map");
        check(&map, json!([{"k": 1}, {"k": "1"}]), "");
    }

    #[track_caller]
    fn check(schema: &Value, value: Value, want: &str) {
        let root = json!({"type": "object", "properties": {"l": schema}});
        let schema = Structural::parse(root.as_object().unwrap());
        let mut errors = Vec::new();
        lists(&json!({"l": value}), &schema, &Path::default(), &mut errors);
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(told.join("; "), want);
    }
}
