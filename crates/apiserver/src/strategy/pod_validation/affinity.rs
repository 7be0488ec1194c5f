//! The rules of where a pod may and should run.

use api::field::FieldError;
use api::validation::{is_label, is_label_value, is_qualified_name, is_subdomain};

use super::super::check::At;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const NOT_AN_OPERATOR: &str = "not a valid selector operator";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(at: &At<'_>) {
    let node = at.field("nodeAffinity");
    if node.field(REQUIRED).exists() {
        node_selector(&node.field(REQUIRED));
    }
    for preference in node.each(PREFERRED) {
        weight(&preference.field("weight"));
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

fn node_selector(at: &At<'_>) {
    let terms = at.field("nodeSelectorTerms");
    if terms.is_empty() {
        terms.required("must have at least one node selector term");
    }
    terms.items().iter().for_each(|term| node_term(term, true));
}

/// Values that no label can have are let be where a term only prefers.
fn node_term(at: &At<'_>, strict: bool) {
    for requirement in at.each("matchExpressions") {
        let (operator, values) = (requirement.field("operator"), requirement.field("values"));
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                values.required("must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "Gt" | "Lt" if values.count() != 1 => {
                values.required("must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => (),
            _ => operator.complain(FieldError::invalid(operator.path(), operator.text(), NOT_AN_OPERATOR)),
        }
        requirement.field("key").named(is_qualified_name);
        if strict {
            values.items().iter().for_each(|value| value.named(is_label_value));
        }
    }
    for requirement in at.each("matchFields") {
        let (operator, values) = (requirement.field("operator"), requirement.field("values"));
        match operator.text() {
            "In" | "NotIn" if values.count() != 1 => {
                values.required("must be only one value when `operator` is 'In' or 'NotIn' for node field selector");
            }
            "In" | "NotIn" => (),
            _ => operator.complain(FieldError::invalid(operator.path(), operator.text(), NOT_AN_OPERATOR)),
        }
        let key = requirement.field("key");
        match key.text() {
            "metadata.name" => values.items().iter().for_each(|value| value.named(is_subdomain)),
            text => key.complain(FieldError::invalid(key.path(), text, "not a valid field selector key")),
        }
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
