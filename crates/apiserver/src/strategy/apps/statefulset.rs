//! StatefulSets.

use api::field::FieldError;
use api::validation::is_label;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::super::check::{At, check};
use super::super::{Strategy, items, items_mut, set_default, storage, warnings};
use super::{
    SELECTOR, always, counts, needed_selector, not_decremented, percent_or_number, selects, template_defaults,
};

pub(in super::super) struct StatefulSets;

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
    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec", "template", "spec"]
    }

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
        // Who names the strategy says how it rolls, or leaves that unsaid.
        let strategy = object.at_mut(&["spec", "updateStrategy"]);
        if strategy.text(&["type"]).is_empty() {
            strategy.insert("type".into(), "RollingUpdate".into());
            set_default(strategy, &["rollingUpdate"], json!({}));
        }
        if strategy.text(&["type"]) == "RollingUpdate" && strategy.contains_key("rollingUpdate") {
            set_default(strategy, &["rollingUpdate", "partition"], 0);
        }
        for claim in items_mut(object.at_mut(&["spec"]), "volumeClaimTemplates") {
            claim.insert("kind".into(), "PersistentVolumeClaim".into());
            claim.insert("apiVersion".into(), "v1".into());
            set_default(claim, &["spec", "volumeMode"], "Filesystem");
            set_default(claim, &["status", "phase"], "Pending");
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        drop_disabled(object);
        object.insert("status".into(), json!({"replicas": 0, "availableReplicas": 0}));
    }

    fn prepare_for_update(&self, new: &mut Object, _old: &Object) {
        drop_disabled(new);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| rules(&at.field("spec"), false))
    }

    fn judge_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| rules(&at.field("spec"), true))
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

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            let names = [
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
                "collisionCount",
            ];
            let parts = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
            let status = at.field("status");
            counts(&status, &names, &parts, "status.readyReplicas");
            not_decremented(&status, old);
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

/// What a set must be; one that `is_new` has nothing that sets that are there may go on to have.
fn rules(spec: &At<'_>, is_new: bool) {
    let management = spec.field("podManagementPolicy");
    if management.needed() && !["OrderedReady", "Parallel"].contains(&management.text()) {
        management.invalid("must be 'OrderedReady' or 'Parallel'");
    }
    stateful_rollout(&spec.field("updateStrategy"));
    for when in ["whenDeleted", "whenScaled"] {
        spec.at(&["persistentVolumeClaimRetentionPolicy", when]).one_of_if_set(&["Retain", "Delete"]);
    }
    for claim in spec.each("volumeClaimTemplates").iter().filter(|_| is_new) {
        storage::claim_spec(&claim.field("spec"));
    }
    spec.none_negative(&["replicas", "minReadySeconds"]);
    spec.at(&["ordinals", "start"]).not_negative();
    if is_new {
        spec.field("serviceName").named_if_set(is_label);
    }
    let selector = needed_selector(spec, "empty selector is invalid for statefulset");
    match selects(&selector, &spec.field("template")) {
        true => pods(spec),
        false => selector.invalid_as(SELECTOR, ""),
    }
    always(&spec.field("template"), "StatefulSet");
}

/// How many may be away at once is a feature that upstream keeps off.
fn drop_disabled(object: &mut Object) {
    object.remove_at(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"]);
}

/// The template, with the volumes that claims are made for, and without the names that the set gives its pods.
fn pods(spec: &At<'_>) {
    let (template, claims) = (spec.field("template"), spec.each("volumeClaimTemplates"));
    let named = |field: &str| !template.at(&["spec", field]).is_empty();
    if claims.is_empty() && !named("hostname") && !named("subdomain") {
        super::template(&template);
    } else {
        let mut own = template.value().as_object().cloned().unwrap_or_default();
        let pod = own.at_mut(&["spec"]);
        pod.remove("hostname");
        pod.remove("subdomain");
        let mut names: Vec<&str> = claims.iter().map(|claim| claim.at(&["metadata", "name"]).text()).collect();
        names.sort_unstable();
        names.dedup();
        let others = items(pod, &["volumes"]).into_iter().filter(|volume| !names.contains(&volume.text(&["name"])));
        let claimed = names.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let volumes: Vec<Value> = claimed.chain(others.cloned().map(Value::Object)).collect();
        if !volumes.is_empty() {
            pod.insert("volumes".into(), volumes.into());
        }
        template.extend(check(&own, |own| super::template(&own.called(template.path().clone()))));
    }
    // Upstream looks at the metadata once more.
    super::template_metadata(&template);
}

fn stateful_rollout(at: &At<'_>) {
    let rolling = at.field("rollingUpdate");
    match at.field("type").text() {
        "" => at.required(""),
        "OnDelete" if rolling.exists() => {
            rolling.invalid_as("RollingUpdateStatefulSetStrategy", "only allowed for updateStrategy 'RollingUpdate'")
        }
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
        _ => at.invalid_as("StatefulSetUpdateStrategy", "must be 'RollingUpdate' or 'OnDelete'"),
    }
}
