//! Pods.

pub(super) mod prepare;
mod resize;
mod status;
mod update;

use api::field::FieldError;
use api::quantity::Quantity;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::check;
use super::{Strategy, items, pod_defaults, pod_validation, warnings};

pub(super) struct Pods;

impl Strategy for Pods {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec"]
    }

    fn default(&self, object: &mut Object) {
        let spec = object.at_mut(&["spec"]);
        pod_defaults::pod_spec(spec);
        pod_defaults::pod(spec);
        // The older field has the last word where both are there.
        let first = object.text(&["status", "podIP"]).to_owned();
        let listed = object.at(&["status", "podIPs"]).and_then(|list| list.get(0)?.get("ip")).and_then(Value::as_str);
        match (first.is_empty(), listed.map(str::to_owned)) {
            (true, Some(address)) => drop(object.at_mut(&["status"]).insert("podIP".into(), address.into())),
            (false, listed) if listed.as_ref() != Some(&first) => {
                object.at_mut(&["status"]).insert("podIPs".into(), json!([{"ip": first}]));
            }
            _ => (),
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        let class = qos_class(object);
        object.insert("status".into(), json!({"phase": "Pending", "qosClass": class}));
        prepare::gated(object);
        prepare::selectors(object);
        prepare::apparmor(object);
    }

    fn prepare_part(&self, subresource: &str, new: &mut Object, old: &Object) {
        if subresource != "status" {
            return;
        }
        let empty = Object::new();
        let before = old.get("status").and_then(Value::as_object).unwrap_or(&empty);
        let status = new.at_mut(&["status"]);
        if let (true, Some(class)) = (status.text(&["qosClass"]).is_empty(), before.get("qosClass")) {
            status.insert("qosClass".into(), class.clone());
        }
        prepare::keep_observed(status, before);
        prepare::status(status);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        pod_validation::pod(object)
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if !items(object, &["spec", "ephemeralContainers"]).is_empty() {
            errors.push(FieldError::forbidden("spec.ephemeralContainers", "cannot be set on create"));
        }
        let gated = !items(object, &["spec", "schedulingGates"]).is_empty();
        if gated && !object.text(&["spec", "nodeName"]).is_empty() {
            let detail = "cannot be set until all schedulingGates have been cleared";
            errors.push(FieldError::forbidden("spec.nodeName", detail));
        }
        errors.extend(check(object, |pod| {
            pod_validation::annotations_on_create(&pod.at(&["metadata", "annotations"]), &pod.field("spec"));
        }));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        update::validate(new, old)
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        status::validate(new, old)
    }

    fn validate_part(&self, subresource: &str, new: &Object, old: &Object) -> Vec<FieldError> {
        let (told, alone) = match subresource {
            "resize" => resize::validate(new, old),
            "ephemeralcontainers" => update::ephemeral_containers(new, old),
            _ => return Vec::new(),
        };
        if alone {
            return told;
        }
        let mut errors = self.validate(new);
        errors.extend(told);
        if subresource == "resize" && errors.is_empty() {
            errors.extend(resize::changes_more(new, old));
        }
        errors
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::pod(object)
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        if subresource == "status" { status::warnings(new) } else { Vec::new() }
    }

    /// A pod that runs nowhere, or runs no more, has nothing to shut down.
    fn grace_period(&self, object: &Object, asked: Option<i64>) -> Option<i64> {
        let own = object.at(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(30);
        let finished = matches!(object.text(&["status", "phase"]), "Succeeded" | "Failed");
        if object.text(&["spec", "nodeName"]).is_empty() || finished {
            return Some(0);
        }
        // A negative period means: at once, but still by the kubelet.
        Some(match asked.unwrap_or(own) {
            seconds if seconds < 0 => 1,
            seconds => seconds,
        })
    }
}

/// Guaranteed, Burstable or BestEffort, by what the pod or else its containers ask for and are limited to.
pub(crate) fn qos_class(pod: &Object) -> &'static str {
    let amount = |of: &Object, kind: &str, resource: &str| {
        Quantity::parse(of.text(&["resources", kind, resource])).ok().filter(Quantity::is_positive)
    };
    let whole = pod.get("spec").and_then(Value::as_object).filter(|spec| spec.contains_key("resources"));
    let parts = match whole {
        Some(spec) => vec![spec],
        None => [items(pod, &["spec", "initContainers"]), items(pod, &["spec", "containers"])].concat(),
    };
    let limited = |part: &&Object| ["cpu", "memory"].iter().all(|name| amount(part, "limits", name).is_some());
    // A pod that asks for something as a whole need not be limited to be asked whether that is the same.
    let mut guaranteed = match whole {
        Some(spec) => limited(&spec) || spec.at(&["resources", "limits"]).is_none(),
        None => parts.iter().all(limited),
    };
    let mut any = false;
    for name in ["cpu", "memory"] {
        let sum = |kind: &str| parts.iter().filter_map(|part| amount(part, kind, name)).reduce(Quantity::plus);
        let (requests, limits) = (sum("requests"), sum("limits"));
        any |= requests.is_some() || limits.is_some();
        guaranteed &= requests == limits;
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qos_follows_requests_and_limits() {
        check(json!({}), "BestEffort");
        check(json!({"requests": {"cpu": "1"}}), "Burstable");
        check(
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}),
            "Guaranteed",
        );
        check(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}), "Burstable");
    }

    #[track_caller]
    fn check(resources: Value, want: &str) {
        let Value::Object(pod) = json!({"spec": {"containers": [{"resources": resources}]}}) else { unreachable!() };
        assert_eq!(qos_class(&pod), want);
    }
}
