//! The patch formats: JSON patch, merge patch, strategic merge patch.

mod json;
mod strategic;

use serde_json::Value;

pub use json::json_patch;
pub use strategic::strategic_merge;

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch document itself is malformed: 400.
    #[error("{0}")]
    Malformed(String),
    /// The patch asks for more than anyone may: 413.
    #[error("{0}")]
    TooLarge(String),
    /// The patch cannot be followed, which upstream takes for a mistake of its own: 500.
    #[error("{0}")]
    Unclear(String),
    /// The patch does not fit the object: 422.
    #[error("{0}")]
    Unfit(String),
    /// A test in the patch does not hold: 422.
    #[error("{0}")]
    TestFailed(String),
}

/// A value as Go prints it.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", go_texts(items)),
        Value::Object(map) => go_map(map),
        other => other.to_string(),
    }
}

fn go_texts(items: &[Value]) -> String {
    items.iter().map(go_text).collect::<Vec<_>>().join(" ")
}

fn go_map(map: &serde_json::Map<String, Value>) -> String {
    let fields = map.iter().map(|(key, value)| format!("{key}:{}", go_text(value)));
    format!("map[{}]", fields.collect::<Vec<_>>().join(" "))
}

/// RFC 7386: objects merge, null deletes, everything else replaces.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(map) = target else { return };
    for (key, change) in changes {
        if change.is_null() {
            map.remove(key);
        } else {
            merge_patch(map.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_follows_the_rfc() {
        let mut target = json!({"a": "b", "c": {"d": "e", "f": "g"}});
        merge_patch(&mut target, &json!({"a": "z", "c": {"f": null}, "n": {"x": null, "y": 1}}));
        assert_eq!(target, json!({"a": "z", "c": {"d": "e"}, "n": {"y": 1}}));
    }
}
