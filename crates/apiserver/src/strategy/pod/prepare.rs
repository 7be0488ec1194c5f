//! What is made of a pod before it is judged: fields of features that are off go, and what it says in one way it says in
//! every way that somebody reads.

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::super::{items_mut, pod_validation};
use crate::handlers::now;

const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Takes away what belongs to features that upstream keeps off.
pub(in super::super) fn drop_disabled(spec: &mut Object) {
    spec.remove("schedulingGroup");
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle")
                && lifecycle.remove("stopSignal").is_some()
                && lifecycle.is_empty()
            {
                container.remove("lifecycle");
            }
        }
    }
    for volume in items_mut(spec, "volumes") {
        if let Some(Value::Object(projected)) = volume.get_mut("projected") {
            for source in items_mut(projected, "sources") {
                source.remove("clusterTrustBundle");
                source.remove("podCertificate");
            }
        }
    }
}

pub(super) fn status(status: &mut Object) {
    status.remove("nodeAllocatableResourceClaimStatuses");
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for mount in items_mut(status, list).flat_map(|container| items_mut(container, "volumeMounts")) {
            mount.remove("volumeStatus");
        }
    }
}

/// What a client did not say of generations is as it was.
pub(super) fn keep_observed(new: &mut Object, old: &Object) {
    let unset = |of: &Object| of.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0) == 0;
    let keep = |of: &mut Object, before: Option<&Value>| {
        if let (true, Some(before)) = (unset(of), before) {
            of.insert("observedGeneration".into(), before.clone());
        }
    };
    keep(new, old.get("observedGeneration"));
    let mut before: Vec<&Object> = super::super::items(old, &["conditions"]);
    for condition in items_mut(new, "conditions") {
        let same = before.iter().position(|known| known.get("type") == condition.get("type"));
        if let Some(known) = same.map(|index| before.remove(index)) {
            keep(condition, known.get("observedGeneration"));
        }
    }
}

/// A pod that waits for its gates says so from the start.
pub(super) fn gated(pod: &mut Object) {
    if super::super::items(pod, &["spec", "schedulingGates"]).is_empty() {
        return;
    }
    let condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": null,
        "lastTransitionTime": now(),
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    });
    pod.at_mut(&["status"]).insert("conditions".into(), json!([condition]));
}

/// Keys of labels whose values are the pod's own become part of the selectors.
pub(super) fn selectors(pod: &mut Object) {
    let labels = pod.at(&["metadata", "labels"]).and_then(Value::as_object).cloned().unwrap_or_default();
    let Some(Value::Object(spec)) = pod.get_mut("spec") else { return };
    items_mut(spec, "topologySpreadConstraints").for_each(|constraint| selector(constraint, &labels));
    let Some(Value::Object(affinity)) = spec.get_mut("affinity") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(Value::Object(pods)) = affinity.get_mut(kind) else { continue };
        items_mut(pods, REQUIRED).for_each(|term| selector(term, &labels));
        for preference in items_mut(pods, PREFERRED) {
            if let Some(Value::Object(term)) = preference.get_mut("podAffinityTerm") {
                selector(term, &labels);
            }
        }
    }
}

fn selector(term: &mut Object, labels: &Object) {
    let mut found = Vec::new();
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(list).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        for (key, value) in keys.filter_map(|key| Some((key, labels.get(key)?))) {
            found.push(json!({"key": key, "operator": operator, "values": [value]}));
        }
    }
    let Some(Value::Object(selector)) = term.get_mut("labelSelector").filter(|_| !found.is_empty()) else { return };
    match selector.entry("matchExpressions").or_insert_with(|| json!([])) {
        Value::Array(expressions) => expressions.extend(found),
        other => *other = found.into(),
    }
}

/// The profile that an annotation says for a container, where the field says none.
pub(super) fn apparmor(pod: &mut Object) {
    if pod.text(&["spec", "os", "name"]) == "windows" {
        return;
    }
    let annotations = pod.at(&["metadata", "annotations"]).and_then(Value::as_object).cloned().unwrap_or_default();
    let whole = pod.at(&["spec", "securityContext", "appArmorProfile"]).cloned();
    let Some(Value::Object(spec)) = pod.get_mut("spec") else { return };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            let said = annotations.get(&format!("{APPARMOR}{}", container.text(&["name"])));
            let profile = said.and_then(Value::as_str).and_then(profile);
            let own = container.at(&["securityContext", "appArmorProfile"]).is_some();
            if let Some(profile) = profile.filter(|profile| !own && Some(profile) != whole.as_ref()) {
                container.at_mut(&["securityContext"]).insert("appArmorProfile".into(), profile);
            }
        }
    }
}

/// The field that says what an annotation says, if it can be said.
pub(in super::super) fn profile(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let path = annotation.strip_prefix("localhost/")?;
            let fits = path.trim() == path && (1..=pod_validation::PROFILE_MAX).contains(&path.len());
            fits.then(|| json!({"type": "Localhost", "localhostProfile": path}))
        }
    }
}
