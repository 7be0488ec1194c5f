//! Tolerations as sets: which includes another, and what remains of two lists together.

use api::{Object, ObjectExt as _};
use serde_json::Value;

fn seconds(toleration: &Object) -> Option<i64> {
    toleration.get("tolerationSeconds").and_then(Value::as_i64)
}

/// Everything `less` tolerates, `more` does.
fn includes(more: &Object, less: &Object) -> bool {
    if more == less {
        return true;
    }
    let text = |toleration: &'_ Object, field: &str| toleration.text(&[field]).to_owned();
    let exists = text(more, "operator") == "Exists";
    if text(less, "key") != text(more, "key") && !(text(more, "key").is_empty() && exists) {
        return false;
    }
    let effect = text(more, "effect");
    if !effect.is_empty() && text(less, "effect") != effect {
        return false;
    }
    if effect == "NoExecute"
        && let Some(longest) = seconds(more)
        && seconds(less).is_none_or(|asked| asked > longest)
    {
        return false;
    }
    match text(more, "operator").as_str() {
        "Equal" | "" => text(less, "operator") == "Equal" && text(less, "value") == text(more, "value"),
        "Exists" => true,
        _ => false,
    }
}

/// Both lists without what another of them includes.
pub(super) fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Object> = first.iter().chain(second).filter_map(Value::as_object).collect();
    let mut merged: Vec<&Object> = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let known = merged.iter().any(|other| includes(other, one));
        let comes = all.iter().skip(index + 1).any(|other| other != one && includes(other, one));
        if !known && !comes {
            merged.push(one);
        }
    }
    merged.into_iter().cloned().map(Value::Object).collect()
}

/// All of `asked` is within what is listed; where nothing is listed, nothing is refused.
pub(super) fn is_within(asked: &[Value], listed: &[Value]) -> bool {
    let objects = |list: &'_ [Value]| list.iter().filter_map(Value::as_object).cloned().collect::<Vec<_>>();
    let listed = objects(listed);
    listed.is_empty() || objects(asked).iter().all(|one| listed.iter().any(|more| includes(more, one)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_wider_toleration_is_kept() {
        let exists = json!({"key": "a", "operator": "Exists"});
        let equal = json!({"key": "a", "operator": "Equal", "value": "x", "effect": "NoSchedule"});
        let all = json!({"operator": "Exists"});
        let other = json!({"key": "b", "operator": "Exists"});
        let short = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        let long = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 50});
        let check = |first: &[&Value], second: &[&Value], want: &[&Value]| {
            let list = |values: &[&Value]| values.iter().map(|value| (*value).clone()).collect::<Vec<_>>();
            assert_eq!(merge(&list(first), &list(second)), list(want));
        };
        check(&[&equal], &[&exists], &[&exists]);
        check(&[&exists, &other], &[&equal], &[&exists, &other]);
        check(&[&exists, &other], &[&all], &[&all]);
        check(&[&equal], &[&equal], &[&equal]);
        check(&[&short], &[&long], &[&long]);
        assert!(is_within(std::slice::from_ref(&equal), std::slice::from_ref(&exists)));
        assert!(!is_within(&[other], &[exists]));
        assert!(is_within(&[equal], &[]));
    }
}
