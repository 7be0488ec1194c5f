//! The workload kinds: a selector, a pod template and a rollout policy.

use api::field::{FieldError, Path};
use api::selector::{Labels, Selector};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{Strategy, items_mut, pod_defaults, pod_validation, set_default};

/// Defaults of the pod template under `path`.
pub(super) fn template_defaults(object: &mut Object, path: &[&str]) {
    let spec: Vec<&str> = path.iter().copied().chain(["template", "spec"]).collect();
    pod_defaults::pod_spec(object.at_mut(&spec));
}

/// The rules of a template whose pods always restart.
fn template_rules(object: &Object) -> Vec<FieldError> {
    let path = Path::new("spec").child("template");
    let Some(Value::Object(spec)) = object.at(&["spec", "template", "spec"]) else {
        return vec![FieldError::required(&path.child("spec").child("containers"), "")];
    };
    let mut errors = api::validation::labels(
        object.at(&["spec", "template", "metadata", "labels"]),
        &path.child("metadata").child("labels"),
    );
    errors.extend(pod_validation::pod_spec(spec, &path.child("spec")));
    let policy = spec.text(&["restartPolicy"]);
    if policy != "Always" {
        errors.push(FieldError::not_supported(&path.child("spec").child("restartPolicy"), policy, &["Always"]));
    }
    errors
}

/// A label selector that is required and must match the template's labels.
fn selector_rules(object: &Object) -> Vec<FieldError> {
    let Some(selector) = object.at(&["spec", "selector"]) else {
        return vec![FieldError::required("spec.selector", "")];
    };
    let empty = |key: &str| {
        selector
            .get(key)
            .is_none_or(|v| v.as_object().is_none_or(Object::is_empty) && v.as_array().is_none_or(Vec::is_empty))
    };
    if empty("matchLabels") && empty("matchExpressions") {
        let detail = "empty selector is invalid for deployment";
        return vec![FieldError::invalid("spec.selector", selector.clone(), detail)];
    }
    let parsed =
        serde_json::from_value(selector.clone()).ok().and_then(|s| Selector::from_label_selector(Some(&s)).ok());
    let Some(parsed) = parsed else {
        return vec![FieldError::invalid("spec.selector", selector.clone(), "invalid label selector")];
    };
    let labels = object.at(&["spec", "template", "metadata", "labels"]).cloned().unwrap_or_else(|| json!({}));
    let known: Labels = serde_json::from_value(labels.clone()).unwrap_or_default();
    if parsed.matches(&known) {
        return Vec::new();
    }
    let detail = "`selector` does not match template `labels`";
    vec![FieldError::invalid("spec.template.metadata.labels", labels, detail)]
}

fn selector_is_immutable(new: &Object, old: &Object) -> Vec<FieldError> {
    let (now, before) = (new.at(&["spec", "selector"]), old.at(&["spec", "selector"]));
    if now == before {
        return Vec::new();
    }
    vec![FieldError::invalid("spec.selector", now.cloned().unwrap_or_default(), "field is immutable")]
}

fn not_negative(object: &Object, fields: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in fields {
        if let Some(value) = object.at(&["spec", field]).and_then(Value::as_i64).filter(|v| *v < 0) {
            errors.push(FieldError::invalid(format!("spec.{field}"), value, "must be greater than or equal to 0"));
        }
    }
    errors
}

pub(super) struct Deployments;

impl Strategy for Deployments {
    fn counts_generation(&self) -> bool {
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
        let mut errors =
            not_negative(object, &["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]);
        errors.extend(selector_rules(object));
        errors.extend(template_rules(object));
        errors.extend(strategy_rules(object));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        selector_is_immutable(new, old)
    }
}

fn strategy_rules(object: &Object) -> Vec<FieldError> {
    let kind = object.text(&["spec", "strategy", "type"]);
    let rolling = object.at(&["spec", "strategy", "rollingUpdate"]);
    match kind {
        "Recreate" if rolling.is_some() => vec![FieldError::forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        )],
        "Recreate" => Vec::new(),
        "RollingUpdate" => {
            let zero =
                |key: &str| rolling.and_then(|r| r.get(key)).is_none_or(|v| v == &json!(0) || v == "0%" || v == "0");
            if zero("maxUnavailable") && zero("maxSurge") {
                let value = rolling.and_then(|r| r.get("maxUnavailable")).cloned().unwrap_or_default();
                let detail = "may not be 0 when `maxSurge` is 0";
                return vec![FieldError::invalid("spec.strategy.rollingUpdate.maxUnavailable", value, detail)];
            }
            Vec::new()
        }
        other => vec![FieldError::not_supported("spec.strategy.type", other, &["Recreate", "RollingUpdate"])],
    }
}

pub(super) struct ReplicaSets;

impl Strategy for ReplicaSets {
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
        let mut errors = not_negative(object, &["replicas", "minReadySeconds"]);
        errors.extend(selector_rules(object));
        errors.extend(template_rules(object));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        selector_is_immutable(new, old)
    }
}

pub(super) struct ReplicationControllers;

impl Strategy for ReplicationControllers {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        set_default(object, &["spec", "replicas"], 1);
        if let Some(labels) = object.at(&["spec", "template", "metadata", "labels"]).cloned() {
            set_default(object, &["spec", "selector"], labels.clone());
            set_default(object, &["metadata", "labels"], labels);
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"replicas": 0}));
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = not_negative(object, &["replicas", "minReadySeconds"]);
        if object.at(&["spec", "selector"]).and_then(Value::as_object).is_none_or(Object::is_empty) {
            errors.push(FieldError::required("spec.selector", ""));
        }
        errors.extend(template_rules(object));
        errors
    }
}

pub(super) struct DaemonSets;

impl Strategy for DaemonSets {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        set_default(object, &["spec", "updateStrategy", "type"], "RollingUpdate");
        if object.text(&["spec", "updateStrategy", "type"]) == "RollingUpdate" {
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"], 1);
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "maxSurge"], 0);
        }
        set_default(object, &["spec", "revisionHistoryLimit"], 10);
    }

    fn prepare_for_create(&self, object: &mut Object) {
        let zero = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
        object.insert("status".into(), zero);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = not_negative(object, &["minReadySeconds", "revisionHistoryLimit"]);
        errors.extend(selector_rules(object));
        errors.extend(template_rules(object));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        selector_is_immutable(new, old)
    }
}

pub(super) struct StatefulSets;

impl Strategy for StatefulSets {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        for (field, value) in [
            ("podManagementPolicy", json!("OrderedReady")),
            ("replicas", json!(1)),
            ("revisionHistoryLimit", json!(10)),
            ("persistentVolumeClaimRetentionPolicy", json!({"whenDeleted": "Retain", "whenScaled": "Retain"})),
        ] {
            set_default(object, &["spec", field], value);
        }
        set_default(object, &["spec", "updateStrategy", "type"], "RollingUpdate");
        if object.text(&["spec", "updateStrategy", "type"]) == "RollingUpdate" {
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "partition"], 0);
        }
        for claim in items_mut(object.at_mut(&["spec"]), "volumeClaimTemplates") {
            set_default(claim, &["kind"], "PersistentVolumeClaim");
            set_default(claim, &["apiVersion"], "v1");
            set_default(claim, &["spec", "volumeMode"], "Filesystem");
            set_default(claim, &["status", "phase"], "Pending");
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"replicas": 0, "availableReplicas": 0}));
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = not_negative(object, &["replicas", "minReadySeconds", "revisionHistoryLimit"]);
        errors.extend(selector_rules(object));
        errors.extend(template_rules(object));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        const MESSAGE: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        let fixed = |object: &Object| {
            let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
            for field in [
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
            ] {
                spec.remove(field);
            }
            spec
        };
        if fixed(new) == fixed(old) { Vec::new() } else { vec![FieldError::forbidden("spec", MESSAGE)] }
    }
}
