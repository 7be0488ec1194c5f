//! Merges what is applied into what is there, and takes fields away again.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{self, Fields};
use super::form::{Form, is_vacant};
use crate::object::Object;
use crate::schema::Type;

/// `live` with everything that `config` sets; nothing is removed.
pub fn merge(live: &Object, config: &Object, schema: &Type) -> Object {
    objects(live, config, Form::Struct(schema))
}

fn objects(left: &Object, right: &Object, form: Form<'_>) -> Object {
    let mut out = Object::new();
    let only_right = right.keys().filter(|key| !left.contains_key(*key));
    for key in left.keys().chain(only_right) {
        let Some(form) = form.at_key(key) else { continue };
        if let Some(value) = values(left.get(key), right.get(key), form) {
            out.insert(key.clone(), value);
        }
    }
    out
}

fn values(left: Option<&Value>, right: Option<&Value>, form: Form<'_>) -> Option<Value> {
    let empty = Object::new();
    let whole = || right.or(left).cloned();
    let is_object = |value: Option<&Value>| value.is_some_and(Value::is_object) || is_vacant(value);
    match form {
        Form::Leaf(_) | Form::CustomLeaf(_) => whole(),
        _ if is_vacant(left) && is_vacant(right) => whole(),
        Form::Struct(_) | Form::Map(_) | Form::Custom(_) | Form::Deduced => {
            if !is_object(left) || !is_object(right) {
                return whole();
            }
            let left = left.and_then(Value::as_object).unwrap_or(&empty);
            let right = right.and_then(Value::as_object).unwrap_or(&empty);
            let merged = objects(left, right, form);
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
        Form::Keyed(..) | Form::Set(_) => {
            let left = left.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let right = right.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let merged = lists(left, right, form);
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
    }
}

/// The order of `right` where it says one, the order of `left` for the rest.
fn lists(left: &[Value], right: &[Value], form: Form<'_>) -> Vec<Value> {
    let Some(inner) = form.element() else { return right.to_vec() };
    let keyed = |items: &[Value]| -> Vec<(String, Value)> {
        items.iter().filter_map(|item| Some((form.element_key(item).ok()?, item.clone()))).collect()
    };
    let (left, right) = (keyed(left), keyed(right));
    let right_by_key: BTreeMap<&str, &Value> = right.iter().map(|(key, item)| (key.as_str(), item)).collect();
    let mut left_by_key: BTreeMap<&str, Option<&Value>> = BTreeMap::new();
    for (key, item) in &left {
        // Elements that share a key are not merged with the new one, which replaces them all.
        left_by_key.entry(key).and_modify(|known| *known = None).or_insert(Some(item));
    }
    let mut shared = right.iter().map(|(key, _)| key.as_str()).filter(|key| left_by_key.contains_key(key)).peekable();
    let mut merged: Vec<&str> = Vec::new();
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut l, mut r) = (left.iter().peekable(), right.iter().peekable());
    loop {
        let next_left = l.peek().map(|(key, item)| (key.as_str(), item));
        let next_right = r.peek().map(|(key, _)| key.as_str());
        match (next_left, next_right) {
            (None, None) => break,
            // A shared element whose turn has not come, or has passed.
            (Some((key, _)), _)
                if right_by_key.contains_key(key)
                    && next_right != Some(key)
                    && (merged.contains(&key) || shared.peek().is_some_and(|next| *next != key)) =>
            {
                l.next();
            }
            (Some((key, item)), _) if !right_by_key.contains_key(key) => {
                out.extend(values(Some(item), None, inner));
                l.next();
            }
            (left_key, Some(key)) => {
                let theirs = left_by_key.get(key).copied().flatten();
                out.extend(values(theirs, right_by_key.get(key).copied(), inner));
                merged.push(key);
                if shared.peek() == Some(&key) {
                    shared.next();
                }
                if left_key.is_some_and(|(left_key, _)| left_key == key) {
                    l.next();
                }
                r.next();
            }
            (Some(_), None) => {
                l.next();
            }
        }
    }
    out
}

/// `object` without the fields of `set`.
pub(super) fn remove(object: &Object, set: &Fields, schema: &Type) -> Object {
    remove_keys(object, set, Form::Struct(schema))
}

fn remove_keys(object: &Object, set: &Fields, form: Form<'_>) -> Object {
    let mut out = Object::new();
    for (key, value) in object {
        let below = match set.get(&format!("f:{key}")) {
            None => None,
            Some(Value::Object(node)) if fields::is_member(node) => continue,
            Some(node) => node.as_object(),
        };
        let kept = match (below, form.at_key(key)) {
            (Some(below), Some(form)) => remove_below(value, below, form),
            _ => value.clone(),
        };
        out.insert(key.clone(), kept);
    }
    out
}

/// What is left of a value; null where nothing is.
fn remove_below(value: &Value, set: &Fields, form: Form<'_>) -> Value {
    match (form, value) {
        (Form::Struct(_) | Form::Map(_) | Form::Custom(_) | Form::Deduced, Value::Object(object)) => {
            let kept = remove_keys(object, set, form);
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        (Form::Keyed(..) | Form::Set(_), Value::Array(items)) => {
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let node = form.element_key(item).ok().and_then(|key| set.get(&key)).and_then(Value::as_object);
                match (node, form.element()) {
                    (Some(node), _) if fields::is_member(node) => (),
                    (Some(node), Some(inner)) => kept.push(remove_below(item, node, inner)),
                    _ => kept.push(item.clone()),
                }
            }
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        (Form::Leaf(_) | Form::CustomLeaf(_), Value::Array(_) | Value::Object(_)) => Value::Null,
        (_, other) => other.clone(),
    }
}

/// `set` with every field of a struct on its paths as a member too.
pub(super) fn with_named_fields(set: &Fields, schema: &Type) -> Fields {
    named(set, Form::Struct(schema))
}

fn named(set: &Fields, form: Form<'_>) -> Fields {
    let mut out = Fields::new();
    for (key, node) in fields::entries(set) {
        let field = key.strip_prefix("f:");
        let below = match field {
            Some(name) => form.at_key(name),
            None => form.element(),
        };
        let is_named = field.is_some_and(|name| form.declares(name));
        let member = is_named || fields::is_member(node);
        let children = match below {
            Some(form) => named(node, form),
            None => fields::union(node, &Fields::new()),
        };
        fields::Node { member, children }.put(&mut out, key.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_take_the_order_of_what_is_applied() {
        check("a b c", "b", "a b c");
        check("a b c", "c b a", "c b a");
        check("a b c", "d a", "d a b c");
        check("a b c d", "c x a", "b c d x a");
        check("", "a b", "a b");
        check("a b", "", "a b");
    }

    #[track_caller]
    fn check(live: &str, config: &str, want: &str) {
        let list = |text: &str| -> Object {
            let items: Vec<Value> = text.split_whitespace().map(|name| json!({"name": name})).collect();
            json!({"spec": {"containers": items}}).as_object().cloned().unwrap()
        };
        let schema = crate::schema::of_kind("", "v1", "Pod").unwrap();
        let merged = merge(&list(live), &list(config), schema);
        let names: Vec<&str> =
            merged["spec"]["containers"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names.join(" "), want, "{live} + {config}");
    }

    #[test]
    fn what_is_left_empty_is_null() {
        let schema = crate::schema::of_kind("", "v1", "ConfigMap").unwrap();
        let object =
            json!({"data": {"a": "1"}, "metadata": {"labels": {"x": "y", "z": "w"}}}).as_object().cloned().unwrap();
        let set = json!({"f:data": {"f:a": {}}, "f:metadata": {"f:labels": {"f:x": {}}}}).as_object().cloned().unwrap();
        let left = remove(&object, &set, schema);
        assert_eq!(Value::Object(left), json!({"data": null, "metadata": {"labels": {"z": "w"}}}));
    }
}
