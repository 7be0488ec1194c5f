//! Any Kubernetes object as JSON: its metadata, its parts by path, and its canonical bytes.

use serde_json::{Map, Value};

/// An object whose kind is known only at run time.
pub type Object = Map<String, Value>;

/// Reading and writing the parts every object has.
pub trait ObjectExt {
    fn at(&self, path: &[&str]) -> Option<&Value>;
    /// The object at `path`, made where it is missing.
    fn at_mut(&mut self, path: &[&str]) -> &mut Object;
    fn text(&self, path: &[&str]) -> &str;
    fn remove_at(&mut self, path: &[&str]);

    fn metadata(&mut self) -> &mut Object {
        self.at_mut(&["metadata"])
    }
    fn name(&self) -> &str {
        self.text(&["metadata", "name"])
    }
    fn namespace(&self) -> &str {
        self.text(&["metadata", "namespace"])
    }
    fn uid(&self) -> &str {
        self.text(&["metadata", "uid"])
    }
    fn resource_version(&self) -> &str {
        self.text(&["metadata", "resourceVersion"])
    }
    fn is_terminating(&self) -> bool {
        self.at(&["metadata", "deletionTimestamp"]).is_some()
    }
    fn finalizers(&self) -> Vec<&str> {
        let list = self.at(&["metadata", "finalizers"]).and_then(Value::as_array);
        list.map(|items| items.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
    }
}

impl ObjectExt for Object {
    fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.get(*first)?, |value, key| value.get(key))
    }

    fn at_mut(&mut self, path: &[&str]) -> &mut Object {
        path.iter().fold(self, |map, key| {
            let slot = map.entry(*key).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            match slot {
                Value::Object(inner) => inner,
                _ => unreachable!("made an object above"),
            }
        })
    }

    fn text(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn remove_at(&mut self, path: &[&str]) {
        let Some((last, parents)) = path.split_last() else { return };
        let mut map = self;
        for key in parents {
            match map.get_mut(*key) {
                Some(Value::Object(inner)) => map = inner,
                _ => return,
            }
        }
        map.remove(*last);
    }
}

/// The form objects have at rest: `{"kind":…,"apiVersion":…,"metadata":{…},…}`.
///
/// The type comes first so that a list can leave it out of its items, and metadata next so that the resource version can
/// be spliced in, both without decoding. `resourceVersion` itself is never stored: it is the store's revision.
pub fn canonical(object: &Object) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(b"{\"kind\":");
    write_json(&mut out, object.get("kind").unwrap_or(&Value::Null));
    out.extend_from_slice(b",\"apiVersion\":");
    write_json(&mut out, object.get("apiVersion").unwrap_or(&Value::Null));
    out.extend_from_slice(b",\"metadata\":{");
    if let Some(Value::Object(metadata)) = object.get("metadata") {
        write_fields(&mut out, metadata.iter().filter(|(key, _)| *key != "resourceVersion"), true);
    }
    out.push(b'}');
    write_fields(
        &mut out,
        object.iter().filter(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion" | "metadata")),
        false,
    );
    out.push(b'}');
    out
}

fn write_fields<'a>(out: &mut Vec<u8>, fields: impl Iterator<Item = (&'a String, &'a Value)>, mut first: bool) {
    for (key, value) in fields {
        if !first {
            out.push(b',');
        }
        first = false;
        write_json(out, &Value::String(key.clone()));
        out.push(b':');
        write_json(out, value);
    }
}

fn write_json(out: &mut Vec<u8>, value: &Value) {
    // Writing a `Value` to memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn canonical_bytes_put_type_and_metadata_first() {
        let Value::Object(object) = json!({"apiVersion": "v1", "data": {"a": "1"}, "kind": "ConfigMap", "metadata": {"name": "x", "resourceVersion": "7"}})
        else {
            unreachable!()
        };
        let bytes = canonical(&object);
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"},"data":{"a":"1"}}"#
        );
    }
}
