//! What a resize of a running pod may change: how much CPU and memory its containers get, and nothing else.

use api::field::FieldError;
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::super::items;
use super::qos_class;

const LISTS: [&str; 2] = ["initContainers", "containers"];
const ONLY: &str = "only cpu and memory resources are mutable";

pub(super) fn validate(new: &Object, old: &Object) -> Vec<FieldError> {
    if old.at(&["metadata", "annotations"]).is_some_and(|all| all.get("kubernetes.io/config.mirror").is_some()) {
        return vec![FieldError::forbidden("", "static pods cannot be resized")];
    }
    if old.text(&["spec", "os", "name"]) == "windows" {
        return vec![FieldError::forbidden("", "windows pods cannot be resized")];
    }
    let mut errors = Vec::new();
    let class = match old.text(&["status", "qosClass"]) {
        "" => qos_class(old),
        class => class,
    };
    if class != qos_class(new) {
        errors.push(FieldError::invalid("spec", class, "Pod QOS Class may not change as a result of resizing"));
    }
    if !is_supported(old) {
        errors.push(FieldError::forbidden("spec", "Pod running on node without support for resize"));
    }
    let moved = reordered(new, old);
    if !moved.is_empty() {
        errors.extend(moved);
        return errors;
    }
    for list in LISTS {
        for (index, (new, old)) in pairs(new, old, list).into_iter().enumerate() {
            for (kind, one) in [("requests", "resource requests"), ("limits", "resource limits")] {
                let names =
                    |of: &Object| of.at(&["resources", kind]).and_then(Value::as_object).cloned().unwrap_or_default();
                if names(old).keys().any(|name| !names(new).contains_key(name)) {
                    let path = format!("spec.{list}[{index}].resources.{kind}");
                    errors.push(FieldError::forbidden(path, format!("{one} cannot be removed")));
                }
            }
        }
    }
    // Upstream looks at the other list first here.
    for list in LISTS.into_iter().rev() {
        for (index, (new, old)) in pairs(new, old, list).into_iter().enumerate() {
            if with_resources_of(new, old) == with_resources_of(old, old) {
                continue;
            }
            errors.push(match list {
                "containers" => FieldError::forbidden("spec", ONLY),
                _ => FieldError::forbidden(
                    format!("spec.{list}[{index}]"),
                    "only cpu and memory resources for init or sidecar containers are mutable",
                ),
            });
        }
    }
    errors
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

/// The container with as much CPU and memory as `base` has.
fn with_resources_of(container: &Object, base: &Object) -> Object {
    let mut result = container.clone();
    for kind in ["requests", "limits"] {
        for name in ["cpu", "memory"] {
            match base.at(&["resources", kind, name]) {
                Some(amount) => result.at_mut(&["resources", kind]).insert(name.into(), amount.clone()),
                None => result.at_mut(&["resources", kind]).remove(name),
            };
        }
    }
    result
}
