//! The workload kinds: a selector, a pod template and a rollout policy.

use api::field::FieldError;
use api::selector::{Labels, Selector};
use api::validation::is_label;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::{Strategy, fixed, fixed_at, items_mut, pod_defaults, pod_validation, set_default, storage, warnings};

/// Defaults of the pod template under `path`.
pub(super) fn template_defaults(object: &mut Object, path: &[&str]) {
    let spec: Vec<&str> = path.iter().copied().chain(["template", "spec"]).collect();
    pod_defaults::pod_spec(object.at_mut(&spec));
}

/// The pod template at `at`: its labels and its spec.
pub(super) fn template(at: &At<'_>) {
    // Upstream leaves the metadata out of the place.
    at.at(&["metadata", "labels"]).called(at.path().child("labels")).labels();
    let spec = at.field("spec");
    match spec.value().as_object() {
        Some(object) => spec.extend(pod_validation::pod_spec(object, spec.path())),
        None => spec.field("containers").required(""),
    }
}

/// Pods of these kinds always restart and have no deadline.
fn lasting_template(at: &At<'_>, kind: &str) {
    template(at);
    let policy = at.at(&["spec", "restartPolicy"]);
    if !policy.text().is_empty() {
        policy.one_of(&["Always"]);
    }
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
        labels.invalid("`selector` does not match template `labels`");
    }
}

/// A selector that is required and selects the template's pods, then the template. `empty` is what an empty one is told.
fn selector_and_template(spec: &At<'_>, empty: &str, kind: &str) {
    let selector = spec.field("selector");
    if selector.exists() {
        selector.selector();
        if is_empty(&selector) {
            selector.invalid(empty);
        }
    } else {
        selector.required("");
    }
    let template = spec.field("template");
    match parsed(&selector) {
        Some(parsed) if selector.exists() && !is_empty(&selector) => matches_template(&parsed, &template),
        Some(_) => (),
        // Without a selector nothing is selected.
        None if !selector.exists() => {
            template.at(&["metadata", "labels"]).invalid("`selector` does not match template `labels`")
        }
        None => {
            selector.invalid("invalid label selector");
            return;
        }
    }
    lasting_template(&template, kind);
}

fn percent_or_number(at: &At<'_>) -> i64 {
    at.number().unwrap_or_else(|| at.text().trim_end_matches('%').parse().unwrap_or(0))
}

/// A status whose counts are not negative, and whose parts are not more than the whole.
fn counts(status: &At<'_>, names: &[&str], parts: &[&str]) {
    status.none_negative(names);
    let count = |name: &str| status.field(name).number().unwrap_or(0);
    for part in parts.iter().filter(|part| count(part) > count("replicas")) {
        status.field(part).invalid("cannot be greater than status.replicas");
    }
    if count("availableReplicas") > count("readyReplicas") {
        status.field("availableReplicas").invalid("cannot be greater than readyReplicas");
    }
}

pub(super) struct Deployments;

impl Strategy for Deployments {
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
        fixed_at(new, old, &["spec", "selector"])
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let names = [
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "terminatingReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "collisionCount",
        ];
        check(new, |at| {
            let status = at.field("status");
            counts(&status, &names, &["updatedReplicas", "readyReplicas", "availableReplicas"]);
            let before = old.at(&["status", "collisionCount"]).and_then(Value::as_i64);
            let collisions = status.field("collisionCount");
            if before.is_some_and(|before| collisions.number().is_none_or(|now| now < before)) {
                collisions.invalid("cannot be decremented");
            }
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
        _ => unsupported(at, &["Recreate", "RollingUpdate"]),
    }
}

/// The whole strategy is told to be unknown, not its type.
fn unsupported(at: &At<'_>, known: &[&str]) {
    let shown = json!({"Type": at.field("type").text(), "RollingUpdate": at.field("rollingUpdate").value()});
    at.complain(FieldError::not_supported(at.path(), shown, known));
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
        check(object, |at| {
            let spec = at.field("spec");
            spec.none_negative(&["replicas", "minReadySeconds"]);
            selector_and_template(&spec, "empty selector is invalid for deployment", "ReplicaSet");
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed_at(new, old, &["spec", "selector"])
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
    let names = ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"];
    counts(status, &names, &parts);
}

pub(super) struct ReplicationControllers;

impl Strategy for ReplicationControllers {
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
            set_default(object, &["spec", "selector"], labels.clone());
            set_default(object, &["metadata", "labels"], labels);
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

pub(super) struct DaemonSets;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

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
        object.at_mut(&["metadata", "annotations"]).insert(TEMPLATE_GENERATION.into(), "1".into());
    }

    /// Counts changes of the template, as clients from before generations expect.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        let before: i64 = old.text(&["metadata", "annotations", TEMPLATE_GENERATION]).parse().unwrap_or(0);
        let changed = new.at(&["spec", "template"]) != old.at(&["spec", "template"]);
        let count = if changed { before + 1 } else { before };
        new.at_mut(&["metadata", "annotations"]).insert(TEMPLATE_GENERATION.into(), count.to_string().into());
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            let (selector, template) = (spec.field("selector"), spec.field("template"));
            selector.selector();
            match parsed(&selector) {
                Some(parsed) if selector.exists() => matches_template(&parsed, &template),
                _ => template.at(&["metadata", "labels"]).invalid("`selector` does not match template `labels`"),
            }
            if selector.exists() && is_empty(&selector) {
                selector.invalid("empty selector is invalid for daemonset");
            }
            lasting_template(&template, "DaemonSet");
            spec.field("minReadySeconds").not_negative();
            daemon_rollout(&spec.field("updateStrategy"));
            spec.field("revisionHistoryLimit").not_negative();
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed_at(new, old, &["spec", "selector"])
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            at.field("status").none_negative(&[
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ]);
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::template(object, &["spec", "template"])
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        // Only a new template is worth it here.
        match subresource.is_empty() && new.at(&["spec", "template"]) != old.at(&["spec", "template"]) {
            true => warnings::template(new, &["spec", "template"]),
            false => Vec::new(),
        }
    }
}

fn daemon_rollout(at: &At<'_>) {
    let rolling = at.field("rollingUpdate");
    match at.field("type").text() {
        "OnDelete" => (),
        "RollingUpdate" if !rolling.exists() => rolling.required(""),
        "RollingUpdate" => {
            let both = [rolling.field("maxUnavailable"), rolling.field("maxSurge")];
            for amount in &both {
                amount.number_or_percent();
            }
            both.iter().for_each(At::at_most_100_percent);
            let [unavailable, surge] = &both;
            match (percent_or_number(unavailable) != 0, percent_or_number(surge) != 0) {
                (true, true) => surge.invalid("may not be set when maxUnavailable is non-zero"),
                (false, false) => unavailable.required("cannot be 0 when maxSurge is 0"),
                _ => (),
            }
        }
        _ => unsupported(at, &["RollingUpdate", "OnDelete"]),
    }
}

pub(super) struct StatefulSets;

/// What may change once a set exists.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

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
            ("persistentVolumeClaimRetentionPolicy", json!({})),
        ] {
            set_default(object, &["spec", field], value);
        }
        for when in ["whenDeleted", "whenScaled"] {
            set_default(object, &["spec", "persistentVolumeClaimRetentionPolicy", when], "Retain");
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
        check(object, |at| {
            let spec = at.field("spec");
            let management = spec.field("podManagementPolicy");
            if !["OrderedReady", "Parallel"].contains(&management.text()) {
                management.invalid("must be 'OrderedReady' or 'Parallel'");
            }
            stateful_rollout(&spec.field("updateStrategy"));
            for when in ["whenDeleted", "whenScaled"] {
                spec.at(&["persistentVolumeClaimRetentionPolicy", when]).one_of_if_set(&["Retain", "Delete"]);
            }
            for claim in spec.each("volumeClaimTemplates") {
                storage::claim_spec(&claim.field("spec"));
            }
            spec.none_negative(&["replicas", "minReadySeconds"]);
            spec.at(&["ordinals", "start"]).not_negative();
            spec.field("serviceName").named_if_set(is_label);
            let (selector, template) = (spec.field("selector"), spec.field("template"));
            if selector.exists() {
                selector.selector();
                if is_empty(&selector) {
                    selector.invalid("empty selector is invalid for statefulset");
                }
            } else {
                selector.required("");
            }
            match parsed(&selector) {
                Some(parsed) if selector.exists() && !is_empty(&selector) => matches_template(&parsed, &template),
                Some(_) => (),
                None => selector.invalid(""),
            }
            lasting_template(&template, "StatefulSet");
            spec.field("revisionHistoryLimit").not_negative();
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        const MESSAGE: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        let rest = |object: &Object| {
            let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
            spec.retain(|key, _| !CHANGEABLE.contains(&key.as_str()));
            spec
        };
        if rest(new) == rest(old) { Vec::new() } else { vec![FieldError::forbidden("spec", MESSAGE)] }
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            let names = ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
            let parts = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
            let status = at.field("status");
            counts(&status, &names, &parts);
            status.none_negative(&["observedGeneration", "collisionCount"]);
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = warnings::template(object, &["spec", "template"]);
        told.extend(claim_and_history_warnings(object, ""));
        told
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        if !subresource.is_empty() {
            return Vec::new();
        }
        let mut told = warnings::changed(subresource, new, old, &["spec", "template"]);
        told.extend(claim_and_history_warnings(new, "Spec"));
        told
    }
}

/// `called` is what upstream calls the spec of a claim, which differs with the verb.
fn claim_and_history_warnings(object: &Object, called: &str) -> Vec<String> {
    let mut told = Vec::new();
    check(object, |at| {
        for claim in at.at(&["spec", "volumeClaimTemplates"]).items() {
            let place = if called.is_empty() { claim.path().clone() } else { claim.path().child(called) };
            warnings::claim(&claim.field("spec").called(place), &mut told);
        }
        let limit = at.at(&["spec", "revisionHistoryLimit"]);
        if limit.number().is_some_and(|limit| limit < 0) {
            let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
            told.push(format!("{}: {why}", limit.path()));
        }
    });
    told
}

fn stateful_rollout(at: &At<'_>) {
    let rolling = at.field("rollingUpdate");
    match at.field("type").text() {
        "OnDelete" if rolling.exists() => rolling.invalid("only allowed for updateStrategy 'RollingUpdate'"),
        "OnDelete" => (),
        "RollingUpdate" => {
            rolling.field("partition").not_negative();
            let unavailable = rolling.field("maxUnavailable");
            if unavailable.exists() {
                unavailable.number_or_percent();
                if percent_or_number(&unavailable) == 0 {
                    unavailable.invalid("cannot be 0");
                }
                unavailable.at_most_100_percent();
            }
        }
        _ => at.invalid("must be 'RollingUpdate' or 'OnDelete'"),
    }
}

pub(super) struct ControllerRevisions;

impl Strategy for ControllerRevisions {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("revision").not_negative();
            match at.field("data").value() {
                Value::Object(_) => (),
                Value::Null => at.field("data").required("data is mandatory"),
                _ => at.field("data").required("data must be a valid JSON object"),
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
