//! Lists and maps with nothing in them: judged as they were sent, though they are neither stored nor shown.

use serde_json::{Map, Value};

/// Where an object had lists and maps with nothing in them.
#[derive(Debug, Default)]
pub struct Empties(Vec<Empty>);

#[derive(Debug)]
struct Empty {
    /// Innermost first.
    path: Vec<Step>,
    value: Value,
    /// What is there instead: null, or nothing.
    is_null: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    Name(String),
    Index(usize),
}

/// A list or map without anything in it.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

impl Empties {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there are any in a field of the object.
    pub fn are_in(&self, field: &str) -> bool {
        self.0.iter().any(|empty| matches!(empty.path.last(), Some(Step::Name(name)) if name == field))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// One of the field `name` of what is walked.
    pub(super) fn push(&mut self, name: &str, value: Value, is_null: bool) {
        self.0.push(Empty { path: vec![Step::Name(name.to_owned())], value, is_null });
    }

    /// What came after the first `count` is within this step.
    #[inline]
    pub(super) fn within(&mut self, count: usize, step: impl Fn() -> Step) {
        if self.0.len() == count {
            return;
        }
        self.0.iter_mut().skip(count).for_each(|empty| empty.path.push(step()));
    }

    /// Puts them where they were, as far as nothing else is there by now.
    pub fn put_into(&self, object: &mut Map<String, Value>) {
        for empty in &self.0 {
            if let Some((parent, name)) = empty.place(object)
                && parent.get(name).is_none_or(Value::is_null)
            {
                parent.insert(name.to_owned(), empty.value.clone());
            }
        }
    }

    /// Takes them out again.
    pub fn take_from(&self, object: &mut Map<String, Value>) {
        for empty in &self.0 {
            if let Some((parent, name)) = empty.place(object)
                && parent.get(name).is_some_and(is_empty)
            {
                match empty.is_null {
                    true => parent.insert(name.to_owned(), Value::Null),
                    false => parent.remove(name),
                };
            }
        }
    }
}

impl Empty {
    /// The object it is in, and what it is called there.
    fn place<'a>(&self, object: &'a mut Map<String, Value>) -> Option<(&'a mut Map<String, Value>, &str)> {
        let (Step::Name(name), outer) = self.path.split_first()? else { return None };
        let Some((Step::Name(first), between)) = outer.split_last() else { return Some((object, name)) };
        let parent = between.iter().rev().try_fold(object.get_mut(first)?, |value, step| match step {
            Step::Name(name) => value.get_mut(name),
            Step::Index(index) => value.get_mut(index),
        })?;
        parent.as_object_mut().map(|parent| (parent, name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn what_is_empty_is_taken_out_and_put_back_where_it_was() {
        let sent = json!({"metadata": {"name": "a", "labels": {}, "managedFields": []}, "spec": {
            "containers": [{"name": "a", "args": []}, {"name": "b", "resources": {"limits": {}}}], "volumes": [],
        }});
        let schema = crate::schema::of_kind("", "v1", "Pod").unwrap();
        let mut value = sent.clone();
        crate::decode::conform(&mut value, schema).unwrap();
        let Value::Object(mut object) = value else { unreachable!() };
        let conformed = object.clone();
        let empties = crate::decode::complete(&mut object, schema);
        let plain = object.clone();
        assert_eq!(object["spec"]["containers"][0], json!({"name": "a", "resources": {}}));
        assert_eq!(object["metadata"], json!({"name": "a", "managedFields": []}));
        assert!(empties.are_in("spec") && !empties.are_in("status"));
        empties.put_into(&mut object);
        assert_eq!(object["spec"], conformed["spec"]);
        object["metadata"]["labels"] = json!({"a": "b"});
        empties.take_from(&mut object);
        assert_eq!(object["spec"], plain["spec"]);
        assert_eq!(object["metadata"]["labels"], json!({"a": "b"}), "something else is there by now");
    }
}
