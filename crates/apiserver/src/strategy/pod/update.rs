//! What may change of a pod that is there, and what is told where more does.

use api::field::{FieldError, Path};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::super::check::check;
use super::super::internal;
use super::super::node::tolerations;
use super::super::{items, items_mut, pod_validation};

const MESSAGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

pub(super) fn validate(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = pod_validation::annotations_on_update(new, old);
    for list in ["containers", "initContainers"] {
        let (now, before) = (items(new, &["spec", list]), items(old, &["spec", list]));
        if now.len() != before.len() {
            errors.push(FieldError::forbidden(format!("spec.{list}"), "pod updates may not add or remove containers"));
            return errors;
        }
        for (index, container) in now.iter().enumerate() {
            let (place, image) = (format!("spec.{list}[{index}].image"), container.text(&["image"]));
            if image.is_empty() {
                errors.push(FieldError::required(&place, ""));
            }
            if image.trim() != image {
                errors.push(FieldError::invalid(place, image, "must not have leading or trailing whitespace"));
            }
        }
    }
    let (deadline, stop) = deadline(new, old);
    errors.extend(deadline);
    if stop {
        return errors;
    }
    errors.extend(tolerated(new, old));
    errors.extend(gates(new, old));
    if new.get("spec") == old.get("spec") {
        return errors;
    }
    let (munged, complaints) = munged(new, old);
    errors.extend(complaints);
    let (before, now) = (old.get("spec").cloned().unwrap_or_default(), Value::Object(munged));
    if before != now {
        let told = format!("{MESSAGE}\n{}", internal::difference("PodSpec", &before, &now));
        errors.push(FieldError::forbidden("spec", told));
    }
    errors
}

/// A deadline only comes nearer; tells whether to stop here.
fn deadline(new: &Object, old: &Object) -> (Option<FieldError>, bool) {
    const PLACE: &str = "spec.activeDeadlineSeconds";
    let seconds = |of: &Object| of.at(&["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64);
    let tell = |value: Value, detail: &str| Some(FieldError::invalid(PLACE, value, detail));
    match (seconds(new), seconds(old)) {
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            (tell(now.into(), "must be between 0 and 2147483647, inclusive"), true)
        }
        (Some(now), Some(before)) if before < now => {
            (tell(now.into(), "must be less than or equal to previous value"), true)
        }
        (None, Some(_)) => (tell(Value::Null, "must not update from a positive integer to nil value"), false),
        _ => (None, false),
    }
}

/// Tolerations stay, however long each now is; others may come.
fn tolerated(new: &Object, old: &Object) -> Vec<FieldError> {
    let bare = |toleration: &Object| {
        let mut bare = toleration.clone();
        bare.remove("tolerationSeconds");
        bare
    };
    let place = ["spec", "tolerations"];
    let now: Vec<Object> = items(new, &place).into_iter().map(bare).collect();
    if items(old, &place).into_iter().any(|toleration| !now.contains(&bare(toleration))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        return vec![FieldError::forbidden("spec.tolerations", detail)];
    }
    check(new, |at| tolerations(&at.at(&place)))
}

/// Gates only open.
fn gates(new: &Object, old: &Object) -> Vec<FieldError> {
    let place = ["spec", "schedulingGates"];
    let known: Vec<&str> = items(old, &place).into_iter().map(|gate| gate.text(&["name"])).collect();
    let names: Vec<&str> = items(new, &place).into_iter().map(|gate| gate.text(&["name"])).collect();
    // One that is there more than once is told of where it is last.
    let is_last = |index: usize, name: &str| !names.iter().skip(index + 1).any(|later| *later == name);
    let added = names.iter().enumerate().filter(|(index, name)| !known.contains(name) && is_last(*index, name));
    let told = added.map(|(index, name)| {
        let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
        FieldError::forbidden(format!("spec.schedulingGates[{index}].name"), detail)
    });
    told.collect()
}

/// The new spec with everything that may change as it was.
fn munged(new: &Object, old: &Object) -> (Object, Vec<FieldError>) {
    let mut spec = new.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let empty = Object::new();
    let before = old.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    for list in ["containers", "initContainers"] {
        for (container, old) in items_mut(&mut spec, list).zip(items(before, &[list])) {
            keep(container, old, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        keep(&mut spec, before, field);
    }
    let grace = |of: &Object| of.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
    if grace(before).is_some_and(|seconds| seconds < 0) && grace(&spec) == Some(1) {
        keep(&mut spec, before, "terminationGracePeriodSeconds");
    }
    let mut errors = Vec::new();
    // Where a gated pod may run can still be narrowed.
    if !items(before, &["schedulingGates"]).is_empty() {
        errors.extend(narrowed_selector(&spec, before));
        keep(&mut spec, before, "nodeSelector");
        let affinity = |of: &Object| of.at(&["affinity", "nodeAffinity"]).cloned();
        let (now, old) = (affinity(&spec), affinity(before));
        if now != old {
            errors.extend(narrowed_affinity(&spec, before));
            keep_affinity(&mut spec, before, old);
        }
    }
    (spec, errors)
}

fn keep(spec: &mut Object, old: &Object, field: &str) {
    match old.get(field) {
        Some(value) => spec.insert(field.to_owned(), value.clone()),
        None => spec.remove(field),
    };
}

fn keep_affinity(spec: &mut Object, old: &Object, node: Option<Value>) {
    let others =
        |of: &Object| ["podAffinity", "podAntiAffinity"].iter().any(|name| of.at(&["affinity", name]).is_some());
    match node {
        Some(node) => drop(spec.at_mut(&["affinity"]).insert("nodeAffinity".into(), node)),
        None if !old.contains_key("affinity") && !others(spec) => drop(spec.remove("affinity")),
        None => drop(spec.at_mut(&["affinity"]).remove("nodeAffinity")),
    }
}

fn narrowed_selector(spec: &Object, old: &Object) -> Option<FieldError> {
    let labels = |of: &Object| of.get("nodeSelector").and_then(Value::as_object).cloned().unwrap_or_default();
    let (now, before) = (labels(spec), labels(old));
    let lost = before.iter().any(|(key, value)| now.get(key) != Some(value));
    lost.then(|| {
        let shown = spec.get("nodeSelector").cloned().unwrap_or_default();
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        FieldError::invalid("spec.nodeSelector", shown, detail)
    })
}

fn narrowed_affinity(spec: &Object, old: &Object) -> Vec<FieldError> {
    let place = ["affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"];
    let path = Path::new("spec.affinity.nodeAffinity").child(REQUIRED).child("nodeSelectorTerms");
    let terms = |of: &Object| of.at(&place).and_then(Value::as_array).cloned().unwrap_or_default();
    if old.at(&["affinity", "nodeAffinity", REQUIRED]).is_none() {
        return Vec::new();
    }
    let (now, before) = (terms(spec), terms(old));
    if !before.is_empty() && now.len() != before.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        let shown = spec.at(&place).cloned().unwrap_or_default();
        return vec![internal::invalid("[NodeSelectorTerm", &path, &shown, detail)];
    }
    let pairs = now.iter().zip(&before).enumerate().filter(|(_, (now, before))| !only_adds(now, before));
    let detail = "only additions are allowed (no mutations or deletions)";
    pairs.map(|(index, (now, _))| internal::invalid("NodeSelectorTerm", &path.index(index), now, detail)).collect()
}

/// A term that selected nothing goes on to; one that selected something selects no more than that.
fn only_adds(now: &Value, before: &Value) -> bool {
    let list = |of: &Value, name: &str| of.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let fields = ["matchExpressions", "matchFields"];
    if fields.iter().all(|name| list(before, name).is_empty()) {
        return fields.iter().all(|name| list(now, name).is_empty());
    }
    fields.iter().all(|name| list(now, name).starts_with(&list(before, name)))
}

/// What was added to a pod to look into it stays as it is. Tells, too, whether that is all that is told of the change.
pub(super) fn ephemeral_containers(new: &Object, old: &Object) -> (Vec<FieldError>, bool) {
    if old.at(&["metadata", "annotations"]).is_some_and(|all| all.get("kubernetes.io/config.mirror").is_some()) {
        return (vec![FieldError::forbidden("", "static pods do not support ephemeral containers")], true);
    }
    let mut errors = pod_validation::annotations_on_update(new, old);
    let place = ["spec", "ephemeralContainers"];
    let now = items(new, &place);
    for before in items(old, &place) {
        let name = before.text(&["name"]);
        let told = match now.iter().rev().find(|container| container.text(&["name"]) == name) {
            None => format!("existing ephemeral containers {name:?} may not be removed\n"),
            Some(now) if *now == before => continue,
            Some(now) => {
                let difference = internal::difference("EphemeralContainer", &json!(before), &json!(now));
                format!("existing ephemeral containers {name:?} may not be changed\n{difference}")
            }
        };
        errors.push(FieldError::forbidden("spec.ephemeralContainers", told));
    }
    (errors, false)
}
