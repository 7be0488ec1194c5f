//! What changed between two objects, and what one object sets, as sets of fields.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{Fields, Node};
use super::form::{Form, is_vacant};
use crate::object::Object;
use crate::schema::Type;

/// The fields that differ between two objects.
#[derive(Debug, Default, PartialEq)]
pub struct Comparison {
    pub added: Fields,
    pub modified: Fields,
    pub removed: Fields,
    /// Something that is new cannot be told apart from its like, so that nobody can manage it.
    pub is_nameless: bool,
}

impl Comparison {
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

#[derive(Default)]
struct Parts {
    added: Node,
    modified: Node,
    removed: Node,
    is_nameless: bool,
}

impl Parts {
    fn put(self, parent: &mut Self, key: &str) {
        parent.is_nameless |= self.is_nameless;
        for (node, parent) in [
            (self.added, &mut parent.added),
            (self.modified, &mut parent.modified),
            (self.removed, &mut parent.removed),
        ] {
            if !node.is_none() {
                node.put(&mut parent.children, key.to_owned());
            }
        }
    }
}

/// Compares everything but the object's own `managedFields`, which describe and are not described.
pub fn compare(old: &Object, new: &Object, schema: &Type) -> Comparison {
    let mut parts = Parts::default();
    fields(old, new, Form::Struct(schema), 0, &mut parts);
    Comparison {
        added: parts.added.children,
        modified: parts.modified.children,
        removed: parts.removed.children,
        is_nameless: parts.is_nameless,
    }
}

fn fields(old: &Object, new: &Object, form: Form<'_>, depth: usize, parts: &mut Parts) {
    let only_new = new.keys().filter(|key| !old.contains_key(*key));
    for key in old.keys().chain(only_new) {
        let (left, right) = (old.get(key), new.get(key));
        if left == right || (depth == 1 && key == "managedFields") {
            continue;
        }
        if let Some(form) = form.at_key(key) {
            value(left, right, form, depth + 1).put(parts, &format!("f:{key}"));
        }
    }
}

fn value(old: Option<&Value>, new: Option<&Value>, form: Form<'_>, depth: usize) -> Parts {
    if old == new {
        return Parts::default();
    }
    let empty = Object::new();
    let as_object = |value: Option<&Value>| value.and_then(Value::as_object).is_some() || is_vacant(value);
    let mut parts = Parts::default();
    match form {
        Form::Leaf(_) | Form::CustomLeaf(_) => return leaf(old, new),
        _ if is_vacant(old) && is_vacant(new) => return leaf(old, new),
        Form::Struct(_) | Form::Map(_) | Form::Custom(_) | Form::Deduced => {
            if !as_object(old) || !as_object(new) {
                return leaf(old, new);
            }
            let left = old.and_then(Value::as_object).unwrap_or(&empty);
            let right = new.and_then(Value::as_object).unwrap_or(&empty);
            fields(left, right, form, depth, &mut parts);
        }
        Form::Keyed(..) | Form::Set(_) => {
            let left = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let right = new.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            elements(left, right, form, depth + 1, &mut parts);
        }
    }
    parts.added.member = old.is_none();
    parts.removed.member = new.is_none();
    parts
}

fn leaf(old: Option<&Value>, new: Option<&Value>) -> Parts {
    let mut parts = Parts::default();
    match (old, new) {
        (None, _) => parts.added = Node::leaf(),
        (_, None) => parts.removed = Node::leaf(),
        _ => parts.modified = Node::leaf(),
    }
    parts
}

/// Elements by their key, with all that share it; an element without a key is not tracked.
fn by_key<'a>(items: &'a [Value], form: Form<'_>) -> BTreeMap<String, Vec<&'a Value>> {
    let mut found: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for item in items {
        if let Ok(key) = form.element_key(item) {
            found.entry(key).or_default().push(item);
        }
    }
    found
}

fn elements(old: &[Value], new: &[Value], form: Form<'_>, depth: usize, parts: &mut Parts) {
    let Some(inner) = form.element() else { return };
    let (left, right) = (by_key(old, form), by_key(new, form));
    parts.is_nameless |= right.values().map(Vec::len).sum::<usize>() < new.len();
    let only_right = right.keys().filter(|key| !left.contains_key(*key));
    for key in left.keys().chain(only_right) {
        let l = left.get(key).map_or(&[][..], Vec::as_slice);
        let r = right.get(key).map_or(&[][..], Vec::as_slice);
        match (l, r) {
            ([] | [_], [] | [_]) => value(l.first().copied(), r.first().copied(), inner, depth).put(parts, key),
            // Elements that share a key are one value.
            ([_, _, ..], [_, _, ..]) => {
                if l != r {
                    Parts { modified: Node::leaf(), ..Parts::default() }.put(parts, key);
                }
            }
            ([_, _, ..], _) => {
                let mut now = r.first().map_or_else(Parts::default, |item| value(None, Some(item), inner, depth));
                now.removed = Node::leaf();
                now.put(parts, key);
            }
            _ => {
                let mut now = l.first().map_or_else(Parts::default, |item| value(Some(item), None, inner, depth));
                now.added = Node::leaf();
                now.put(parts, key);
            }
        }
    }
}

/// Every field, key and element that an object sets.
pub fn field_set(object: &Object, schema: &Type) -> Fields {
    object_set(object, Form::Struct(schema))
}

fn object_set(object: &Object, form: Form<'_>) -> Fields {
    let mut out = Fields::new();
    for (key, value) in object {
        let Some(inner) = form.at_key(key) else { continue };
        let mut node = set(value, inner);
        // A field of a struct is no member for what is below it; a key of a map is.
        node.member |= !form.declares(key) || value.is_null() || value.as_object().is_some_and(Object::is_empty);
        node.put(&mut out, format!("f:{key}"));
    }
    out
}

fn set(value: &Value, form: Form<'_>) -> Node {
    match (form, value) {
        (Form::Leaf(_) | Form::CustomLeaf(_), _) => Node::leaf(),
        (Form::Struct(_) | Form::Map(_) | Form::Custom(_) | Form::Deduced, Value::Object(object)) => {
            Node { member: false, children: object_set(object, form) }
        }
        (Form::Keyed(..) | Form::Set(_), Value::Array(items)) => {
            let Some(inner) = form.element() else { return Node::leaf() };
            let mut children = Fields::new();
            for (key, items) in by_key(items, form) {
                let mut node = match items.as_slice() {
                    [item] => set(item, inner),
                    _ => Node::leaf(),
                };
                node.member = true;
                node.put(&mut children, key);
            }
            Node { member: false, children }
        }
        (_, Value::Null) => Node::default(),
        _ => Node::leaf(),
    }
}
