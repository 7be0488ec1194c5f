//! The rules of where a pod may and should run.

use api::field::FieldError;
use api::validation::{is_label, is_qualified_name};

use super::super::check::At;
use super::super::node_selector::{node_selector, node_term};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(at: &At<'_>) {
    let node = at.field("nodeAffinity");
    if node.field(REQUIRED).exists() {
        node_selector(&node.field(REQUIRED), true);
    }
    for preference in node.each(PREFERRED) {
        weight(&preference.field("weight"));
        // Values that no label can have are let be where a term only prefers.
        node_term(&preference.field("preference"), false);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = at.field(kind);
        pods.each(REQUIRED).iter().for_each(pod_term);
        for preference in pods.each(PREFERRED) {
            weight(&preference.field("weight"));
            pod_term(&preference.field("podAffinityTerm"));
        }
    }
}

fn weight(at: &At<'_>) {
    if !(1..=100).contains(&at.number().unwrap_or(0)) {
        at.complain(FieldError::invalid(at.path(), at.number().unwrap_or(0), "must be in the range 1-100"));
    }
}

fn pod_term(at: &At<'_>) {
    at.field("labelSelector").selector();
    at.field("namespaceSelector").selector();
    for name in at.each("namespaces") {
        name.called(at.path().child("namespace")).named(is_label);
    }
    label_keys(at);
    let key = at.field("topologyKey");
    if key.is_empty() {
        key.required("can not be empty");
    }
    key.named(is_qualified_name);
}

/// Keys whose values come from the pod, which narrow a selector that is there.
fn label_keys(at: &At<'_>) {
    let (selector, keys) = (at.field("labelSelector"), at.each("matchLabelKeys"));
    for list in ["matchLabelKeys", "mismatchLabelKeys"].map(|field| at.field(field)) {
        if !list.is_empty() && !selector.exists() {
            list.forbidden("must not be specified when labelSelector is not set");
        } else {
            list.items().iter().for_each(|key| key.named(is_qualified_name));
        }
    }
    let mut selected: Vec<&str> = selector.field("matchLabels").entries().into_iter().map(|(key, _)| key).collect();
    for key in selector.each("matchExpressions").iter().map(|expression| expression.field("key").text()) {
        // What comes once was merged from the keys; upstream tells of the term here.
        let index = keys.iter().rposition(|own| own.text() == key).filter(|_| selected.contains(&key));
        if let Some(index) = index {
            let detail = "exists in both matchLabelKeys and labelSelector";
            at.complain(FieldError::invalid(&at.path().index(index), key, detail));
        }
        selected.push(key);
    }
    let mismatched = at.each("mismatchLabelKeys");
    for key in keys.iter().filter(|key| mismatched.iter().any(|other| other.text() == key.text())) {
        key.invalid("exists in both matchLabelKeys and mismatchLabelKeys");
    }
}

pub(super) fn spread(at: &At<'_>) {
    let all = at.items();
    for (index, constraint) in all.iter().enumerate() {
        let (skew, key) = (constraint.field("maxSkew"), constraint.field("topologyKey"));
        let number = skew.number().unwrap_or(0);
        if number <= 0 {
            skew.complain(FieldError::invalid(skew.path(), number, "must be greater than zero"));
        }
        if key.is_empty() {
            key.required("can not be empty");
        }
        let action = constraint.field("whenUnsatisfiable");
        action.one_of(&["DoNotSchedule", "ScheduleAnyway"]);
        // Upstream tells of the one that comes again later.
        let pair = (key.text(), action.text());
        let again =
            |other: &At<'_>| pair == (other.field("topologyKey").text(), other.field("whenUnsatisfiable").text());
        if all.iter().skip(index + 1).any(again) {
            let place = constraint.path().child("{topologyKey, whenUnsatisfiable}");
            constraint.complain(FieldError::duplicate(&place, format!("{{{}, {}}}", pair.0, pair.1)));
        }
        let domains = constraint.field("minDomains");
        if domains.number().is_some_and(|number| number <= 0) {
            domains.invalid("must be greater than zero");
        }
        if domains.exists() && action.text() != "DoNotSchedule" {
            let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}", action.text());
            domains.invalid(detail);
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.field(policy).one_of_if_set(&["Honor", "Ignore"]);
        }
        label_keys(constraint);
        constraint.field("labelSelector").selector();
    }
}
