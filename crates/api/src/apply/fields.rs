//! Sets of fields in the form they have in `managedFields`, so that none is decoded or encoded.
//!
//! A key is a path element: `f:NAME`, `k:{"name":"a"}`, `v:"a"`. An empty object is a member; an object with `.` is a member
//! with members below it; an object without `.` only leads to members. No object leads to nothing.

use serde_json::{Map, Value};

pub type Fields = Map<String, Value>;

const SELF: &str = ".";

/// A field and what is below it; nothing by default.
#[derive(Default)]
pub(super) struct Node {
    pub(super) member: bool,
    pub(super) children: Fields,
}

impl Node {
    pub(super) fn leaf() -> Self {
        Self { member: true, children: Fields::new() }
    }

    pub(super) fn is_none(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    /// Adds this node to its parent, unless it is nothing.
    pub(super) fn put(mut self, parent: &mut Fields, key: String) {
        if self.is_none() {
            return;
        }
        if self.member && !self.children.is_empty() {
            self.children.insert(SELF.to_owned(), Value::Object(Map::new()));
        }
        parent.insert(key, Value::Object(self.children));
    }
}

/// The path elements of a level with what is below each.
pub(super) fn entries(fields: &Fields) -> impl Iterator<Item = (&String, &Fields)> {
    fields.iter().filter(|(key, _)| *key != SELF).filter_map(|(key, value)| Some((key, value.as_object()?)))
}

pub(super) fn is_member(node: &Fields) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

fn child<'a>(fields: &'a Fields, key: &str) -> Option<&'a Fields> {
    fields.get(key).and_then(Value::as_object)
}

pub(super) fn is_empty(fields: &Fields) -> bool {
    entries(fields).next().is_none()
}

pub(super) fn union(left: &Fields, right: &Fields) -> Fields {
    let mut out: Fields = entries(left).map(|(key, node)| (key.clone(), Value::Object(node.clone()))).collect();
    for (key, node) in entries(right) {
        let known = match out.remove(key) {
            Some(Value::Object(known)) => known,
            _ => {
                out.insert(key.clone(), Value::Object(node.clone()));
                continue;
            }
        };
        let member = is_member(&known) || is_member(node);
        Node { member, children: union(&known, node) }.put(&mut out, key.clone());
    }
    out
}

pub(super) fn intersection(left: &Fields, right: &Fields) -> Fields {
    let mut out = Fields::new();
    for (key, node) in entries(left) {
        if let Some(other) = child(right, key) {
            let member = is_member(node) && is_member(other);
            Node { member, children: intersection(node, other) }.put(&mut out, key.clone());
        }
    }
    out
}

/// What is in `left` and not in `right`; what is below a member of `right` stays.
pub(super) fn difference(left: &Fields, right: &Fields) -> Fields {
    subtract(left, right, false)
}

/// What is in `left` and neither in `right` nor below a member of it.
pub(super) fn recursive_difference(left: &Fields, right: &Fields) -> Fields {
    subtract(left, right, true)
}

fn subtract(left: &Fields, right: &Fields, recursive: bool) -> Fields {
    let mut out = Fields::new();
    for (key, node) in entries(left) {
        match child(right, key) {
            None => {
                out.insert(key.clone(), Value::Object(node.clone()));
            }
            Some(other) if is_member(other) && recursive => (),
            Some(other) => {
                let member = is_member(node) && !is_member(other);
                Node { member, children: subtract(node, other, recursive) }.put(&mut out, key.clone());
            }
        }
    }
    out
}

/// The parts of `fields` at and below the paths of `patterns`, where `*` stands for any element.
pub(super) fn matching(fields: &Fields, patterns: &[&[&str]]) -> Fields {
    let mut out = Fields::new();
    for (key, node) in entries(fields) {
        let name = key.strip_prefix("f:");
        let rests: Vec<&[&str]> = patterns
            .iter()
            .filter_map(|pattern| pattern.split_first())
            .filter(|(first, _)| **first == "*" || name == Some(**first))
            .map(|(_, rest)| rest)
            .collect();
        if rests.iter().any(|rest| rest.is_empty()) {
            out.insert(key.clone(), Value::Object(node.clone()));
        } else if !rests.is_empty() {
            Node { member: is_member(node), children: matching(node, &rests) }.put(&mut out, key.clone());
        }
    }
    out
}

/// Every path that is a member is visited, a level's own members before what is below them.
pub(super) fn visit<'a>(fields: &'a Fields, path: &mut Vec<&'a str>, seen: &mut impl FnMut(&[&'a str])) {
    for (key, _) in entries(fields).filter(|(_, node)| is_member(node)) {
        path.push(key);
        seen(path);
        path.pop();
    }
    for (key, node) in entries(fields) {
        path.push(key);
        visit(node, path, seen);
        path.pop();
    }
}

pub(super) fn has(fields: &Fields, path: &[&str]) -> bool {
    match path.split_first() {
        None => false,
        Some((key, [])) => child(fields, key).is_some_and(is_member),
        Some((key, rest)) => child(fields, key).is_some_and(|node| has(node, rest)),
    }
}

/// A set of plain field paths.
pub fn of_paths(paths: &[&[&str]]) -> Fields {
    fn insert(fields: &mut Fields, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else { return };
        let key = format!("f:{first}");
        let mut node = match fields.remove(&key) {
            Some(Value::Object(known)) => {
                let member = is_member(&known);
                Node { member, children: known.into_iter().filter(|(key, _)| key != SELF).collect() }
            }
            _ => Node::default(),
        };
        if rest.is_empty() {
            node.member = true;
        } else {
            insert(&mut node.children, rest);
        }
        node.put(fields, key);
    }
    let mut fields = Fields::new();
    paths.iter().for_each(|path| insert(&mut fields, path));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn fields(value: Value) -> Fields {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_member_may_have_members_below_it() {
        let parent = of_paths(&[&["a"], &["a", "b"], &["c", "d"]]);
        assert_eq!(parent, fields(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"f:d": {}}})));
        check(difference(&parent, &of_paths(&[&["a"]])), json!({"f:a": {"f:b": {}}, "f:c": {"f:d": {}}}));
        check(recursive_difference(&parent, &of_paths(&[&["a"]])), json!({"f:c": {"f:d": {}}}));
        check(difference(&parent, &of_paths(&[&["a", "b"]])), json!({"f:a": {}, "f:c": {"f:d": {}}}));
        check(difference(&parent, &of_paths(&[&["c", "d"]])), json!({"f:a": {".": {}, "f:b": {}}}));
        check(matching(&parent, &[&["*", "b"]]), json!({"f:a": {".": {}, "f:b": {}}}));
    }

    #[track_caller]
    fn check(got: Fields, want: Value) {
        assert_eq!(Value::Object(got), want);
    }

    type Paths = BTreeSet<Vec<String>>;

    fn to_paths(set: &Fields) -> Paths {
        let mut paths = Paths::new();
        visit(set, &mut Vec::new(), &mut |path| {
            paths.insert(path.iter().map(|key| key.trim_start_matches("f:").to_owned()).collect());
        });
        paths
    }

    fn build(paths: &Paths) -> Fields {
        let paths: Vec<Vec<&str>> = paths.iter().map(|p| p.iter().map(String::as_str).collect()).collect();
        of_paths(&paths.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    proptest! {
        /// The tree behaves as the plain set of its paths.
        #[test]
        fn sets_of_paths_are_the_model(
            left in proptest::collection::btree_set(proptest::collection::vec("[ab]", 1..4), 0..8),
            right in proptest::collection::btree_set(proptest::collection::vec("[ab]", 1..4), 0..8),
        ) {
            let (l, r) = (build(&left), build(&right));
            prop_assert_eq!(to_paths(&l), left.clone());
            prop_assert_eq!(to_paths(&union(&l, &r)), left.union(&right).cloned().collect::<Paths>());
            prop_assert_eq!(to_paths(&intersection(&l, &r)), left.intersection(&right).cloned().collect::<Paths>());
            prop_assert_eq!(to_paths(&difference(&l, &r)), left.difference(&right).cloned().collect::<Paths>());
            let beyond: Paths = left.iter().filter(|p| !right.iter().any(|q| p.starts_with(q))).cloned().collect();
            prop_assert_eq!(to_paths(&recursive_difference(&l, &r)), beyond);
            for path in &left {
                let keys: Vec<String> = path.iter().map(|name| format!("f:{name}")).collect();
                prop_assert!(has(&l, &keys.iter().map(String::as_str).collect::<Vec<_>>()));
            }
        }
    }
}
