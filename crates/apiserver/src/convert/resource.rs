//! Claims and slices of resource.k8s.io/v1beta1, where the fields of a request's only alternative are its own, and those of a device are its `basic`.

use api::Object;
use serde_json::Value;

pub(super) fn from_v1beta1(object: &mut Object) {
    each_request(object, |request| {
        nest(request, "exactly", &["name", "firstAvailable"]);
        // The name of the class is written even where there is none.
        let is_unset = |exactly: &Object| exactly.values().all(|value| value == "");
        if request.get("exactly").and_then(Value::as_object).is_some_and(is_unset) {
            request.remove("exactly");
        }
    });
    each(object, "/devices", |device| flatten(device, "basic"));
}

pub(super) fn to_v1beta1(object: &mut Object) {
    each_request(object, |request| flatten(request, "exactly"));
    each(object, "/devices", |device| nest(device, "basic", &["name"]));
}

/// The requests of a claim, and of a template.
fn each_request(object: &mut Object, change: fn(&mut Object)) {
    each(object, "/devices/requests", change);
    each(object, "/spec/devices/requests", change);
}

fn each(object: &mut Object, place: &str, change: fn(&mut Object)) {
    let list = object.get_mut("spec").and_then(|spec| spec.pointer_mut(place)).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut).for_each(change);
}

/// Puts everything but what is `kept` below `key`.
fn nest(map: &mut Object, key: &str, kept: &[&str]) {
    let (own, inner): (Object, Object) =
        std::mem::take(map).into_iter().partition(|(name, _)| kept.contains(&name.as_str()));
    *map = own;
    map.insert(key.to_owned(), Value::Object(inner));
}

fn flatten(map: &mut Object, key: &str) {
    if let Some(Value::Object(inner)) = map.remove(key) {
        map.extend(inner);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_versions_say_the_same() {
        for (older, newer) in [
            (
                json!({"spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "c", "count": 1}]}}}),
                json!({"spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "count": 1}}]}}}),
            ),
            (
                json!({"spec": {"spec": {"devices": {"requests": [{"name": "a", "firstAvailable": [{"name": "b"}]}]}}}}),
                json!({"spec": {"spec": {"devices": {"requests": [{"name": "a", "firstAvailable": [{"name": "b"}]}]}}}}),
            ),
            (
                json!({"spec": {"devices": [{"name": "a", "basic": {"allNodes": true}}, {"name": "b", "basic": {}}]}}),
                json!({"spec": {"devices": [{"name": "a", "allNodes": true}, {"name": "b"}]}}),
            ),
        ] {
            let (mut up, mut down) = (older.as_object().cloned().unwrap(), newer.as_object().cloned().unwrap());
            from_v1beta1(&mut up);
            to_v1beta1(&mut down);
            assert_eq!((Value::Object(down), Value::Object(up)), (older, newer));
        }
    }
}
