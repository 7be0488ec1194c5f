//! RFC 6902 JSON patch.

use std::io;

use serde_json::Value;

use super::PatchError;

/// More operations than any honest client sends, as upstream limits it.
const MAX_OPERATIONS: usize = 10_000;
/// What `copy` may add up to: copies of copies double.
const MAX_COPIED: usize = 3 << 20;
/// Deeper than any real object, shallower than what the decoder takes.
const MAX_DEPTH: usize = 100;

pub fn json_patch(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = patch
        .as_array()
        .ok_or_else(|| malformed("json: cannot unmarshal object into Go value of type jsonpatch.Patch"))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut left = MAX_COPIED;
    operations.iter().try_for_each(|operation| apply(target, operation, &mut left))
}

/// A value at this path is not nested deeper than anything may be.
fn fit(path: &str, value: Value) -> Result<Value, PatchError> {
    if path.matches('/').count() + depth(&value) > MAX_DEPTH {
        return Err(malformed("the patched object is nested too deeply"));
    }
    Ok(value)
}

/// Counts what is written, up to a limit.
struct Counted<'a>(&'a mut usize);

impl io::Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        *self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How deep values are nested, as far as it matters.
fn depth(value: &Value) -> usize {
    fn below(value: &Value, level: usize) -> usize {
        if level > MAX_DEPTH {
            return level;
        }
        match value {
            Value::Array(items) => items.iter().map(|item| below(item, level + 1)).max().unwrap_or(level),
            Value::Object(map) => map.values().map(|item| below(item, level + 1)).max().unwrap_or(level),
            _ => level,
        }
    }
    below(value, 0)
}

/// `left` is what may still be copied.
fn apply(target: &mut Value, operation: &Value, left: &mut usize) -> Result<(), PatchError> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let path = text("path").ok_or_else(|| unusable("Unable to decode path: missing"))?;
    let from = || text("from").ok_or_else(|| unusable("operation, missing from field"));
    // Whoever says nothing says null.
    let value = || operation.get("value").cloned().unwrap_or_default();
    match text("op").unwrap_or_default() {
        "add" => add(target, path, fit(path, value())?),
        "remove" => remove(target, path, "remove").map(|_| ()),
        "replace" => {
            let value = fit(path, value())?;
            if let Some((Value::Object(map), last)) = parent(target, path) {
                map.insert(last, value);
                return Ok(());
            }
            *find(target, path).ok_or_else(|| unfit("replace", path))? = value;
            Ok(())
        }
        "move" => {
            let taken = remove(target, from()?, "move")?;
            add(target, path, fit(path, taken)?)
        }
        "copy" => {
            let source = find(target, from()?).ok_or_else(|| unfit("copy", path))?;
            if serde_json::to_writer(Counted(left), source).is_err() {
                return Err(malformed("Unable to copy, the accumulated size increase of copy is over the limit"));
            }
            let source = fit(path, source.clone())?;
            add(target, path, source)
        }
        "test" => {
            let wanted = operation.get("value").unwrap_or(&Value::Null);
            let found = find(target, path).map_or(&Value::Null, |v| &*v);
            let matched = found == wanted;
            if matched { Ok(()) } else { Err(PatchError::TestFailed(format!("testing value {path} failed"))) }
        }
        other => Err(unusable(&format!("Unexpected kind: {other}"))),
    }
}

fn malformed(message: &str) -> PatchError {
    PatchError::Malformed(message.to_owned())
}

fn unusable(message: &str) -> PatchError {
    PatchError::Unfit(message.to_owned())
}

fn unfit(operation: &str, path: &str) -> PatchError {
    PatchError::Unfit(format!("{operation} operation does not apply: doc is missing path: {path}: missing value"))
}

/// `~1` is a slash and `~0` a tilde.
fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

fn find<'a>(target: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    if path.is_empty() {
        return Some(target);
    }
    path.strip_prefix('/')?.split('/').map(unescape).try_fold(target, |node, token| match node {
        Value::Object(map) => map.get_mut(&token),
        Value::Array(items) => {
            let index = index(&token, items.len())?;
            items.get_mut(index)
        }
        _ => None,
    })
}

/// A place in a list; a negative one counts from its end.
fn index(token: &str, length: usize) -> Option<usize> {
    let index = token.parse::<i64>().ok()?;
    let index = if index < 0 { index.checked_add(i64::try_from(length).ok()?)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

fn parent<'a>(target: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let (before, last) = path.rsplit_once('/')?;
    Some((find(target, before)?, unescape(last)))
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    let (parent, last) = parent(target, path).ok_or_else(|| unfit("add", path))?;
    match parent {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => {
            let index = index(&last, items.len() + 1).ok_or_else(|| unfit("add", path))?;
            items.insert(index, value);
        }
        _ => return Err(unfit("add", path)),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str, operation: &str) -> Result<Value, PatchError> {
    let missing = || unfit(operation, path);
    let (parent, last) = parent(target, path).ok_or_else(missing)?;
    match parent {
        Value::Object(map) => map.remove(&last).ok_or_else(missing),
        Value::Array(items) => {
            let index = index(&last, items.len()).ok_or_else(missing)?;
            Ok(items.remove(index))
        }
        _ => Err(missing()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operations_apply_in_order() {
        check(r#"[{"op":"add","path":"/a/b~1c","value":1}]"#, json!({"a": {"x": [1, 2], "b/c": 1}}));
        check(r#"[{"op":"add","path":"/a/x/-","value":3}]"#, json!({"a": {"x": [1, 2, 3]}}));
        check(r#"[{"op":"remove","path":"/a/x/0"}]"#, json!({"a": {"x": [2]}}));
        check(r#"[{"op":"remove","path":"/a/x/-1"}]"#, json!({"a": {"x": [1]}}));
        check(r#"[{"op":"add","path":"/a/x/-1","value":3}]"#, json!({"a": {"x": [1, 2, 3]}}));
        check(r#"[{"op":"replace","path":"/a/y"}]"#, json!({"a": {"x": [1, 2], "y": null}}));
        check(r#"[{"op":"move","from":"/a/x","path":"/y"}]"#, json!({"a": {}, "y": [1, 2]}));
        check(r#"[{"op":"test","path":"/a/x/1","value":2},{"op":"replace","path":"/a","value":0}]"#, json!({"a": 0}));
    }

    #[track_caller]
    fn check(patch: &str, want: Value) {
        let mut target = json!({"a": {"x": [1, 2]}});
        json_patch(&mut target, &serde_json::from_str(patch).unwrap()).unwrap();
        assert_eq!(target, want, "{patch}");
    }

    #[test]
    fn misfits_are_refused() {
        for bad in [r#"[{"op":"remove","path":"/b"}]"#, r#"[{"op":"test","path":"/a","value":1}]"#, r#"{}"#] {
            let mut target = json!({"a": {}});
            assert!(json_patch(&mut target, &serde_json::from_str(bad).unwrap()).is_err(), "{bad}");
        }
    }
}
