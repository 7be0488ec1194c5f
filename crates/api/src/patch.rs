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
    /// The patch does not fit the object: 422.
    #[error("{0}")]
    Unfit(String),
    /// A test in the patch does not hold: 422.
    #[error("{0}")]
    TestFailed(String),
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
