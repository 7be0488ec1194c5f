//! The workload kinds: a selector, a pod template and a rollout policy.

mod daemonset;
mod statefulset;

use api::field::FieldError;
use api::selector::{Labels, Selector};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

pub(super) use self::daemonset::DaemonSets;
pub(super) use self::statefulset::StatefulSets;
use super::check::{At, check};
use super::internal;
use super::{Strategy, fixed, fixed_as, pod_defaults, pod_validation, set_default, warnings};

const SELECTOR: &str = "LabelSelector";
const NOT_SELECTED: &str = "`selector` does not match template `labels`";

/// Defaults of the pod template under `path`.
pub(super) fn template_defaults(object: &mut Object, path: &[&str]) {
    let spec: Vec<&str> = path.iter().copied().chain(["template", "spec"]).collect();
    pod_defaults::pod_spec(object.at_mut(&spec));
}

/// The pod template at `at`: its labels, annotations and spec.
pub(super) fn template(at: &At<'_>) {
    template_metadata(at);
    pod_validation::pod_spec(&at.field("spec"), None);
    pod_validation::annotations_on_create(&at.at(&["metadata", "annotations"]), &at.field("spec"));
    let later = at.at(&["spec", "ephemeralContainers"]);
    if !later.is_empty() {
        later.forbidden("ephemeral containers not allowed in pod template");
    }
}

fn template_metadata(at: &At<'_>) {
    // Upstream leaves the metadata out of the place.
    let metadata = at.field("metadata").called(at.path().clone());
    metadata.field("labels").labels();
    let annotations = metadata.field("annotations");
    at.extend(api::validation::annotations(Some(annotations.value()), annotations.path()));
    pod_validation::annotations(&annotations, &at.field("spec"));
}

/// Pods of these kinds always restart and have no deadline.
fn lasting_template(at: &At<'_>, kind: &str) {
    template(at);
    always(at, kind);
}

fn always(at: &At<'_>, kind: &str) {
    at.at(&["spec", "restartPolicy"]).one_of(&["Always"]);
    let deadline = at.at(&["spec", "activeDeadlineSeconds"]);
    if deadline.exists() {
        deadline.forbidden(format!("activeDeadlineSeconds in {kind} is not Supported"));
    }
}

fn is_empty(selector: &At<'_>) -> bool {
    selector.field("matchLabels").is_empty() && selector.field("matchExpressions").is_empty()
}

/// The selector, if it can be used to select: then there is nothing to complain of.
pub(super) fn parsed(selector: &At<'_>) -> Option<Selector> {
    if !selector.is_fine(|at| at.selector()) {
        return None;
    }
    let typed = serde_json::from_value(selector.value().clone()).ok()?;
    Selector::from_label_selector(Some(&typed)).ok()
}

pub(super) fn matches_template(selector: &Selector, template: &At<'_>) {
    let labels = template.at(&["metadata", "labels"]);
    let known: Labels = serde_json::from_value(labels.value().clone()).unwrap_or_default();
    if !selector.matches(&known) {
        labels.invalid(NOT_SELECTED);
    }
}

/// A selector that is required; `empty` is what an empty one is told.
fn needed_selector<'a>(spec: &At<'a>, empty: &str) -> At<'a> {
    let selector = spec.field("selector");
    if selector.exists() {
        selector.selector();
        if is_empty(&selector) {
            selector.invalid_as(SELECTOR, empty);
        }
    } else {
        selector.required("");
    }
    selector
}

/// Whether a selector can be used; then a template that it does not select is told so. Without a selector nothing is selected.
fn selects(selector: &At<'_>, template: &At<'_>) -> bool {
    match parsed(selector) {
        _ if !selector.exists() => template.at(&["metadata", "labels"]).invalid(NOT_SELECTED),
        Some(parsed) => matches_template(&parsed, template),
        None => return false,
    }
    true
}

/// A selector that is required and selects the template's pods, then the template.
fn selector_and_template(spec: &At<'_>, empty: &str, kind: &str) {
    let (selector, template) = (needed_selector(spec, empty), spec.field("template"));
    match selects(&selector, &template) {
        true => lasting_template(&template, kind),
        false => selector.invalid_as(SELECTOR, "invalid label selector"),
    }
}

fn percent_or_number(at: &At<'_>) -> i64 {
    at.number().unwrap_or_else(|| at.text().trim_end_matches('%').parse().unwrap_or(0))
}

/// A status whose counts are not negative, and whose parts are not more than the whole; `ready` is what one of them is told.
fn counts(status: &At<'_>, names: &[&str], parts: &[&str], ready: &str) {
    status.none_negative(names);
    let count = |name: &str| status.field(name).number().unwrap_or(0);
    let tell = |name: &str, most: &str| {
        let place = status.path().child(name);
        let detail = format!("cannot be greater than {most}");
        status.complain(FieldError::invalid(&place, count(name), detail));
    };
    for part in parts.iter().filter(|part| count(part) > count("replicas")) {
        tell(part, "status.replicas");
    }
    if count("availableReplicas") > count("readyReplicas") {
        tell("availableReplicas", ready);
    }
}

pub(super) struct Deployments;

impl Strategy for Deployments {
    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec", "template", "spec"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn counts_annotations(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        set_default(object, &["spec", "replicas"], 1);
        set_default(object, &["spec", "strategy", "type"], "RollingUpdate");
        if object.text(&["spec", "strategy", "type"]) == "RollingUpdate" {
            set_default(object, &["spec", "strategy", "rollingUpdate", "maxUnavailable"], "25%");
            set_default(object, &["spec", "strategy", "rollingUpdate", "maxSurge"], "25%");
        }
        set_default(object, &["spec", "revisionHistoryLimit"], 10);
        set_default(object, &["spec", "progressDeadlineSeconds"], 600);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("replicas").not_negative();
            selector_and_template(&spec, "empty selector is invalid for deployment", "ReplicaSet");
            rollout(&spec.field("strategy"));
            spec.none_negative(&["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]);
            let deadline = spec.field("progressDeadlineSeconds");
            if deadline.number().is_some_and(|seconds| seconds <= spec.field("minReadySeconds").number().unwrap_or(0)) {
                deadline.invalid("must be greater than minReadySeconds");
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed_as(SELECTOR, new, old, &["spec", "selector"])
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let names = [
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ];
        check(new, |at| {
            let status = at.field("status");
            counts(&status, &names, &["updatedReplicas", "readyReplicas", "availableReplicas"], "readyReplicas");
            not_decremented(&status, old);
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::workload(object, &["spec", "template"])
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        warnings::changed(subresource, new, old, &["spec", "template"])
    }
}

fn rollout(at: &At<'_>) {
    let rolling = at.field("rollingUpdate");
    match at.field("type").text() {
        "Recreate" if rolling.exists() => {
            rolling.forbidden("may not be specified when strategy `type` is 'Recreate'");
        }
        "Recreate" => (),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.field("maxUnavailable"), rolling.field("maxSurge"));
            unavailable.number_or_percent();
            surge.number_or_percent();
            if percent_or_number(&unavailable) == 0 && percent_or_number(&surge) == 0 {
                unavailable.invalid("may not be 0 when `maxSurge` is 0");
            }
            unavailable.at_most_100_percent();
        }
        _ => unsupported(at, "DeploymentStrategy", &["Recreate", "RollingUpdate"]),
    }
}

/// The whole strategy is told to be unknown, not its type.
fn unsupported(at: &At<'_>, kind: &str, known: &[&str]) {
    let mut error = FieldError::not_supported(at.path(), Value::Null, known);
    error.value = internal::shown(kind, at.value());
    at.complain(error);
}

/// A count of collisions that is less than it was.
fn not_decremented(status: &At<'_>, old: &Object) {
    let before = old.at(&["status", "collisionCount"]).and_then(Value::as_i64);
    let collisions = status.field("collisionCount");
    let now = collisions.number().unwrap_or(0);
    if before.is_some_and(|before| now < before) {
        collisions.complain(FieldError::invalid(collisions.path(), now, "cannot be decremented"));
    }
}

pub(super) struct ReplicaSets;

impl Strategy for ReplicaSets {
    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec", "template", "spec"]
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        set_default(object, &["spec", "replicas"], 1);
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"replicas": 0}));
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.none_negative(&["replicas", "minReadySeconds"]);
            selector_and_template(&spec, "empty selector is invalid for deployment", "ReplicaSet");
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed_as(SELECTOR, new, old, &["spec", "selector"])
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| replica_counts(&at.field("status")))
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::workload(object, &["spec", "template"])
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        warnings::changed(subresource, new, old, &["spec", "template"])
    }
}

fn replica_counts(status: &At<'_>) {
    let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    let names = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    counts(status, &names, &parts, "readyReplicas");
}

pub(super) struct ReplicationControllers;

impl Strategy for ReplicationControllers {
    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec", "template", "spec"]
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        if object.at(&["spec", "template"]).is_some() {
            template_defaults(object, &["spec"]);
        }
        set_default(object, &["spec", "replicas"], 1);
        if let Some(labels) = object.at(&["spec", "template", "metadata", "labels"]).cloned() {
            for path in [["spec", "selector"], ["metadata", "labels"]] {
                if object.at(&path).and_then(Value::as_object).is_none_or(Object::is_empty) {
                    object.at_mut(&path).extend(labels.as_object().cloned().unwrap_or_default());
                }
            }
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"replicas": 0}));
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("minReadySeconds").not_negative();
            let selector = spec.field("selector");
            if selector.is_empty() {
                selector.required("");
            }
            spec.field("replicas").not_negative();
            let template = spec.field("template");
            if !template.exists() {
                template.required("");
                return;
            }
            let wanted: Labels = serde_json::from_value(selector.value().clone()).unwrap_or_default();
            if !wanted.is_empty() {
                matches_template(&Selector::from_labels(&wanted), &template);
            }
            lasting_template(&template, "ReplicationController");
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| replica_counts(&at.field("status")))
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::workload(object, &["spec", "template"])
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        // Upstream tells of the template that is replaced.
        match warnings::has_new_spec(subresource, new, old) {
            true => warnings::template(old, &["spec", "template"]),
            false => Vec::new(),
        }
    }
}

pub(super) struct ControllerRevisions;

impl Strategy for ControllerRevisions {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("revision").not_negative();
            let data = at.field("data");
            if !data.exists() {
                data.required("data is mandatory");
            } else if !data.value().is_object() {
                data.required("data must be a valid JSON object");
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = check(new, |at| at.field("revision").not_negative());
        errors.extend(fixed(new, old, &["data"]));
        errors
    }
}

pub(super) struct PodTemplates;

impl Strategy for PodTemplates {
    fn pod_spec(&self) -> &'static [&'static str] {
        &["template", "spec"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &[]);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| template(&at.field("template")))
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::template(object, &["template"])
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        warnings::changed(subresource, new, old, &["template"])
    }
}
