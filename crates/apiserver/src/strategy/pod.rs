//! Pods.

use api::field::{FieldError, Path};
use api::quantity::Quantity;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{Strategy, items, pod_defaults, pod_resize, pod_validation, set_default, warnings};

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

    fn default(&self, object: &mut Object) {
        let spec = object.at_mut(&["spec"]);
        pod_defaults::pod_spec(spec);
        set_default(spec, &["enableServiceLinks"], true);
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
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        match object.get("spec").and_then(Value::as_object) {
            Some(spec) => {
                let mut errors = pod_validation::pod_spec(spec, &Path::new("spec"));
                errors.extend(pod_validation::only_for_pod(spec, &Path::new("spec")));
                errors
            }
            None => vec![FieldError::required("spec.containers", "")],
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        match items(object, &["spec", "ephemeralContainers"]).is_empty() {
            true => Vec::new(),
            false => vec![FieldError::forbidden("spec.ephemeralContainers", "cannot be set on create")],
        }
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        const MESSAGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        let mut errors = Vec::new();
        for list in ["containers", "initContainers"] {
            if items(new, &["spec", list]).len() != items(old, &["spec", list]).len() {
                let path = format!("spec.{list}");
                errors.push(FieldError::forbidden(path, "pod updates may not add or remove containers"));
            }
        }
        if fixed_part(new, old) != fixed_part(old, old) && errors.is_empty() {
            errors.push(FieldError::forbidden("spec", MESSAGE));
        }
        errors
    }

    fn validate_part(&self, subresource: &str, new: &Object, old: &Object) -> Vec<FieldError> {
        if subresource == "resize" { pod_resize::validate(new, old) } else { Vec::new() }
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::pod(object)
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

/// The spec with everything an update may change taken from `base`.
fn fixed_part(object: &Object, base: &Object) -> Object {
    let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let negative = base.at(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).is_some_and(|s| s < 0);
    let grace = (negative && spec.get("terminationGracePeriodSeconds") == Some(&json!(1)))
        .then_some("terminationGracePeriodSeconds");
    let free = ["activeDeadlineSeconds", "tolerations", "schedulingGates", "nodeSelector"];
    for field in free.into_iter().chain(grace) {
        match base.at(&["spec", field]) {
            Some(value) => spec.insert(field.into(), value.clone()),
            None => spec.remove(field),
        };
    }
    for list in ["containers", "initContainers"] {
        for container in super::items_mut(&mut spec, list) {
            container.remove("image");
        }
    }
    spec
}

/// Guaranteed, Burstable or BestEffort, by what the containers ask for and are limited to.
pub(crate) fn qos_class(pod: &Object) -> &'static str {
    let mut all_limited = true;
    let mut any = false;
    let containers = items(pod, &["spec", "initContainers"]).into_iter().chain(items(pod, &["spec", "containers"]));
    for container in containers {
        for resource in ["cpu", "memory"] {
            let amount = |kind: &str| {
                Quantity::parse(container.text(&["resources", kind, resource])).ok().filter(|q| !q.is_zero())
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            all_limited &= limit.is_some() && request == limit;
        }
    }
    match (any, all_limited) {
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
