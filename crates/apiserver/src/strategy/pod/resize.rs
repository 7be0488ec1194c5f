//! What a resize of a running pod may change: how much CPU and memory it and its containers get, and nothing else.

use api::field::FieldError;
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::super::{items, items_mut};
use super::qos_class;

const LISTS: [&str; 2] = ["initContainers", "containers"];
const AMOUNTS: [&str; 2] = ["requests", "limits"];
const ONLY: &str = "only cpu and memory resources are mutable";

/// Complaints of the resize, and whether they are all that is told of it.
pub(super) fn validate(new: &Object, old: &Object) -> (Vec<FieldError>, bool) {
    if old.at(&["metadata", "annotations"]).is_some_and(|all| all.get("kubernetes.io/config.mirror").is_some()) {
        return (vec![FieldError::forbidden("", "static pods cannot be resized")], true);
    }
    if old.text(&["spec", "os", "name"]) == "windows" {
        return (vec![FieldError::forbidden("", "windows pods cannot be resized")], true);
    }
    let mut errors = Vec::new();
    let class = match old.text(&["status", "qosClass"]) {
        "" => qos_class(old),
        class => class,
    };
    if class != qos_class(new) {
        let shown = new.text(&["status", "qosClass"]);
        errors.push(FieldError::invalid("spec", shown, "Pod QOS Class may not change as a result of resizing"));
    }
    if !is_supported(old) {
        errors.push(FieldError::forbidden("spec", "Pod running on node without support for resize"));
    }
    let whole = |pod: &Object| AMOUNTS.iter().any(|kind| !amounts(pod.at(&["spec", "resources", kind])).is_empty());
    if whole(old) || whole(new) {
        errors.extend(whole_pod(new, old));
    }
    let moved = reordered(new, old);
    if !moved.is_empty() {
        errors.extend(moved);
        return (errors, false);
    }
    for list in LISTS {
        for (index, (new, old)) in pairs(new, old, list).into_iter().enumerate() {
            errors.extend(removed(new, old, &format!("spec.{list}[{index}].resources"), "resource"));
        }
    }
    // Upstream looks at the other list first here.
    for list in LISTS.into_iter().rev() {
        for (index, (new, old)) in pairs(new, old, list).into_iter().enumerate() {
            let place = format!("spec.{list}[{index}]");
            let changes = with_resources_of(new, old) != with_resources_of(old, old);
            if list == "containers" {
                errors.extend(changes.then(|| FieldError::forbidden("spec", ONLY)));
                continue;
            }
            if changes {
                let detail = "only cpu and memory resources for init or sidecar containers are mutable";
                errors.push(FieldError::forbidden(&place, detail));
            }
            if new != old && new.text(&["restartPolicy"]) != "Always" {
                let restarts = |policy: &&Object| policy.text(&["restartPolicy"]) == "RestartContainer";
                for _ in items(new, &["resizePolicy"]).iter().filter(|policy| restarts(policy)) {
                    let detail =
                        "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                    errors.push(FieldError::forbidden(&place, detail));
                }
            }
        }
    }
    (errors, false)
}

/// Whether anything else of the spec changes, which is told where nothing else is.
pub(super) fn changes_more(new: &Object, old: &Object) -> Option<FieldError> {
    let spec = |pod: &Object| {
        let mut spec = pod.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        for list in LISTS {
            let kept = items(old, &["spec", list]);
            for (container, old) in items_mut(&mut spec, list).zip(kept) {
                *container = with_resources_of(container, old);
            }
        }
        let before = old.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        with_resources_of(&spec, &before)
    };
    (spec(new) != spec(old)).then(|| FieldError::forbidden("spec", ONLY))
}

fn amounts(list: Option<&Value>) -> Object {
    list.and_then(Value::as_object).cloned().unwrap_or_default()
}

/// What a pod has as a whole stays named, though there may be more or less of it.
fn whole_pod(new: &Object, old: &Object) -> Vec<FieldError> {
    let spec = |pod: &Object| pod.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let (new, old) = (spec(new), spec(old));
    if old.contains_key("resources") && !new.contains_key("resources") {
        return vec![FieldError::forbidden("spec.resources", "pod-level resources cannot be removed")];
    }
    let mut errors = removed(&new, &old, "spec.resources", "pod-level resource");
    let own = |of: &Object| with_resources_of(of, &old).get("resources").cloned();
    if own(&new) != own(&old) {
        errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable at pod-level"));
    }
    errors
}

fn removed(new: &Object, old: &Object, place: &str, called: &str) -> Vec<FieldError> {
    let lost = AMOUNTS.into_iter().filter(|kind| {
        let (now, before) = (amounts(new.at(&["resources", kind])), amounts(old.at(&["resources", kind])));
        before.keys().any(|name| !now.contains_key(name))
    });
    lost.map(|kind| FieldError::forbidden(format!("{place}.{kind}"), format!("{called} {kind} cannot be removed")))
        .collect()
}

/// A kubelet that can resize tells what its containers have.
fn is_supported(pod: &Object) -> bool {
    let statuses = items(pod, &["status", "containerStatuses"]);
    let running = statuses.into_iter().find(|status| status.at(&["state", "running"]).is_some());
    running.is_none_or(|status| status.contains_key("resources"))
}

fn reordered(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for list in LISTS.into_iter().rev() {
        if items(new, &["spec", list]).len() != items(old, &["spec", list]).len() {
            let detail = format!("{list} may not be added or removed on resize");
            errors.push(FieldError::forbidden(format!("spec.{list}"), detail));
            continue;
        }
        for (index, (new, old)) in pairs(new, old, list).into_iter().enumerate() {
            if new.get("name") != old.get("name") {
                let detail = format!("{list} may not be renamed or reordered on resize");
                errors.push(FieldError::forbidden(format!("spec.{list}[{index}].name"), detail));
            }
        }
    }
    errors
}

fn pairs<'a>(new: &'a Object, old: &'a Object, list: &str) -> Vec<(&'a Object, &'a Object)> {
    items(new, &["spec", list]).into_iter().zip(items(old, &["spec", list])).collect()
}

/// The container or pod with as much CPU and memory as `base` has.
fn with_resources_of(holder: &Object, base: &Object) -> Object {
    let mut result = holder.clone();
    for kind in AMOUNTS {
        for name in ["cpu", "memory"] {
            match base.at(&["resources", kind, name]) {
                Some(amount) => result.at_mut(&["resources", kind]).insert(name.into(), amount.clone()),
                None => result.at_mut(&["resources", kind]).remove(name),
            };
        }
    }
    result
}
