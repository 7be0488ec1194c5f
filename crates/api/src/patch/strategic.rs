//! Strategic merge patch: a merge patch that knows, from the schema, which lists are keyed.

use serde_json::{Map, Value};

use super::{PatchError, go_map, go_text, go_texts};
use crate::schema::{Field, Shape, Type};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";

/// Merges `patch` into `target`, an object of type `schema`.
pub fn strategic_merge(target: &mut Value, patch: &Value, schema: &Type) -> Result<(), PatchError> {
    let Value::Object(changes) = patch else {
        return Err(PatchError::Malformed(
            "json: cannot unmarshal into Go value of type map[string]interface {}".into(),
        ));
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return Ok(()) };
    merge_object(map, changes, Some(schema))
}

/// `schema` is absent below free-form maps, where everything is merged as plain JSON.
fn merge_object(
    target: &mut Map<String, Value>,
    changes: &Map<String, Value>,
    schema: Option<&Type>,
) -> Result<(), PatchError> {
    match changes.get(DIRECTIVE).and_then(Value::as_str) {
        None | Some("merge") => (),
        Some("replace") => {
            *target = changes.clone();
            target.remove(DIRECTIVE);
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some(other) => {
            let shown = go_map(changes);
            return Err(PatchError::Unclear(format!("unknown patch type: {other} in map: {shown}")));
        }
    }
    if let Some(Value::Array(kept)) = changes.get(RETAIN_KEYS) {
        let is_kept = |key: &str| kept.iter().any(|k| k.as_str() == Some(key));
        let mut told = changes.iter().filter(|(key, change)| !change.is_null() && !key.starts_with('$'));
        if !told.all(|(key, _)| is_kept(key)) {
            return Err(PatchError::Malformed("invalid patch format of retainKeys".into()));
        }
        target.retain(|key, _| kept.iter().any(|k| k.as_str() == Some(key)));
    }
    let ordered = changes.keys().filter_map(|key| key.strip_prefix(SET_ELEMENT_ORDER));
    let before: Map<String, Value> =
        ordered.filter_map(|list| Some((list.to_owned(), target.get(list)?.clone()))).collect();
    for (key, change) in changes {
        if key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(SET_ELEMENT_ORDER) {
            continue;
        }
        if let Some(list) = key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST) {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (target.get_mut(list), change) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if change.is_null() {
            target.remove(key);
            continue;
        }
        let field = schema.and_then(|schema| schema.field(key));
        merge_field(target, key, change, field)?;
    }
    for (key, order) in changes {
        if let (Some(list), Value::Array(order)) = (key.strip_prefix(SET_ELEMENT_ORDER), order) {
            let merge_key = schema.and_then(|s| s.field(list)).map(|f| f.patch.merge_key.as_ref()).unwrap_or_default();
            if let Some(Value::Array(named)) = changes.get(list) {
                check_order(named, order, merge_key)?;
            }
            if let Some(Value::Array(items)) = target.get_mut(list) {
                let server = before.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                arrange(items, order, server, merge_key);
            }
        }
    }
    Ok(())
}

fn merge_field(
    target: &mut Map<String, Value>,
    key: &str,
    change: &Value,
    field: Option<&Field>,
) -> Result<(), PatchError> {
    match change {
        Value::Object(changes) => {
            let slot = target.entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            let Value::Object(map) = slot else { return Ok(()) };
            match field.map(|f| &f.shape) {
                Some(Shape::Object(schema)) => merge_object(map, changes, Some(schema))?,
                Some(Shape::Map(inner)) => merge_map(map, changes, inner)?,
                _ => merge_object(map, changes, None)?,
            }
            if changes.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                target.remove(key);
            }
        }
        Value::Array(changes) if field.is_some_and(|f| f.patch.merge) => {
            let slot = target.entry(key.to_owned()).or_insert_with(|| Value::Array(Vec::new()));
            if !slot.is_array() {
                *slot = Value::Array(Vec::new());
            }
            if let (Value::Array(items), Some(field)) = (slot, field) {
                merge_list(items, changes, field)?;
            }
        }
        Value::Array(changes) => {
            let is_directive =
                |item: &Value| item.get(DIRECTIVE).is_some() && item.as_object().map_or(0, Map::len) == 1;
            let items = changes.iter().filter(|item| !is_directive(item)).cloned().collect();
            target.insert(key.to_owned(), Value::Array(items));
        }
        _ => {
            target.insert(key.to_owned(), change.clone());
        }
    }
    Ok(())
}

fn merge_map(target: &mut Map<String, Value>, changes: &Map<String, Value>, inner: &Shape) -> Result<(), PatchError> {
    let Shape::Object(schema) = inner else { return merge_object(target, changes, None) };
    for (key, change) in changes {
        match change {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(changes) => {
                let slot = target.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = slot {
                    merge_object(map, changes, Some(schema))?;
                }
            }
            other => {
                target.insert(key.clone(), other.clone());
            }
        }
    }
    Ok(())
}

/// Merges a list whose elements are identified by a key, or are primitives that form a set.
fn merge_list(items: &mut Vec<Value>, changes: &[Value], field: &Field) -> Result<(), PatchError> {
    let merge_key = field.patch.merge_key.as_ref();
    let server = items.clone();
    if merge_key.is_empty() {
        for change in changes {
            if !items.contains(change) {
                items.push(change.clone());
            }
        }
        arrange(items, changes, &server, merge_key);
        return Ok(());
    }
    let element = match &field.shape {
        Shape::List(inner) => match &**inner {
            Shape::Object(schema) => Some(&**schema),
            _ => None,
        },
        _ => None,
    };
    let directive = |change: &Value| change.get(DIRECTIVE).and_then(Value::as_str).map(ToOwned::to_owned);
    if changes.iter().any(|c| directive(c).as_deref() == Some("replace")) {
        *items = changes.iter().filter(|c| directive(c).is_none()).cloned().collect();
        return Ok(());
    }
    for change in changes {
        let Value::Object(fields) = change else {
            let shown = go_text(&Value::from(vec![items.clone(), changes.to_vec()]));
            return Err(PatchError::Unclear(format!("list element types are not identical: {shown}")));
        };
        let Some(id) = fields.get(merge_key) else {
            let shown = go_text(change);
            let why = format!("map: {shown} does not contain declared merge key: {merge_key}");
            return Err(PatchError::Unclear(why));
        };
        let known = items.iter().position(|item| item.get(merge_key) == Some(id));
        match (directive(change).as_deref(), known) {
            (Some("delete"), _) => items.retain(|item| item.get(merge_key) != Some(id)),
            (_, Some(index)) => {
                if let Some(Value::Object(map)) = items.get_mut(index) {
                    merge_object(map, fields, element)?;
                }
            }
            (_, None) => {
                let mut fresh = Map::new();
                merge_object(&mut fresh, fields, element)?;
                items.push(Value::Object(fresh));
            }
        }
    }
    arrange(items, changes, &server, merge_key);
    Ok(())
}

/// What a patch names of a list comes in the order that it asks for; what goes need not be in it.
fn check_order(named: &[Value], order: &[Value], merge_key: &str) -> Result<(), PatchError> {
    let id = |item: &Value| if merge_key.is_empty() { Some(item.clone()) } else { item.get(merge_key).cloned() };
    let mut rest = order.iter();
    let stays = |item: &&Value| item.get(DIRECTIVE).is_none();
    match named.iter().filter(stays).all(|item| rest.any(|other| id(other) == id(item))) {
        true => Ok(()),
        false => Err(PatchError::Unclear(format!(
            "The order in patch list:\n[{}]\n doesn't match $setElementOrder list:\n[{}]\n",
            go_texts(named),
            go_texts(order)
        ))),
    }
}

/// Puts the elements of `named` in its order, and those of the server among them so that what was in front of another
/// stays there. What is new goes before what the server alone has.
fn arrange(items: &mut Vec<Value>, named: &[Value], server: &[Value], merge_key: &str) {
    let id = |item: &Value| if merge_key.is_empty() { Some(item.clone()) } else { item.get(merge_key).cloned() };
    let place = |list: &[Value], item: &Value| {
        let wanted = id(item)?;
        list.iter().position(|other| id(other).as_ref() == Some(&wanted))
    };
    let (mut own, mut others): (Vec<Value>, Vec<Value>) =
        std::mem::take(items).into_iter().partition(|item| place(named, item).is_some());
    own.sort_by_key(|item| place(named, item));
    others.sort_by_key(|item| place(server, item));
    let mut others = others.into_iter().peekable();
    for item in own {
        while let Some(other) = others.peek() {
            match (place(server, other), place(server, &item)) {
                (Some(before), Some(after)) if before < after => items.extend(others.next()),
                _ => break,
            }
        }
        items.push(item);
    }
    items.extend(others);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keyed_lists_merge_by_key() {
        check(
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}}),
        );
        check(
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        );
        check(
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
        );
    }

    #[test]
    fn what_is_new_goes_before_what_the_server_alone_has() {
        let conditions = |names: &[&str]| {
            let list: Vec<Value> = names.iter().map(|name| json!({"type": name})).collect();
            json!({"status": {"conditions": list}})
        };
        check(conditions(&["PodScheduled"]), conditions(&["Ready"]), conditions(&["Ready", "PodScheduled"]));
        check(conditions(&["A", "B", "C"]), conditions(&["C", "D"]), conditions(&["A", "B", "C", "D"]));
        check(conditions(&["A", "B", "C"]), conditions(&["D", "B"]), conditions(&["D", "A", "B", "C"]));
    }

    #[test]
    fn maps_scalars_and_atomic_lists() {
        check(
            json!({"metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x"]}}),
            json!({"metadata": {"labels": {"a": null, "c": "3"}, "finalizers": ["y"]}}),
            json!({"metadata": {"labels": {"b": "2", "c": "3"}, "finalizers": ["y", "x"]}}),
        );
        check(
            json!({"spec": {"containers": [{"name": "a", "args": ["1", "2"]}]}}),
            json!({"spec": {"containers": [{"name": "a", "args": ["3"]}]}}),
            json!({"spec": {"containers": [{"name": "a", "args": ["3"]}]}}),
        );
        check(
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
        );
        check(
            json!({"metadata": {"finalizers": ["x", "y"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}),
            json!({"metadata": {"finalizers": ["y"]}}),
        );
    }

    #[track_caller]
    fn check(mut target: Value, patch: Value, want: Value) {
        strategic_merge(&mut target, &patch, crate::schema::of_kind("", "v1", "Pod").unwrap()).unwrap();
        assert_eq!(target, want);
    }
}
