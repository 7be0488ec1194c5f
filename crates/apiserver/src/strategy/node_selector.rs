//! The rules of what selects nodes, by their labels and by their names.

use api::validation::{is_label_value, is_qualified_name, is_subdomain};

use super::check::At;

const NOT_AN_OPERATOR: &str = "not a valid selector operator";

/// Any of its terms selects, so there is at least one. `labels` says whether the values must be such that a label can have.
pub(super) fn node_selector(at: &At<'_>, labels: bool) {
    let terms = at.field("nodeSelectorTerms");
    if terms.is_empty() {
        return terms.required("must have at least one node selector term");
    }
    terms.items().iter().for_each(|term| node_term(term, labels));
}

/// All of what a term says must hold.
pub(super) fn node_term(at: &At<'_>, labels: bool) {
    at.each("matchExpressions").iter().for_each(|requirement| by_label(requirement, labels));
    at.each("matchFields").iter().for_each(by_name);
}

fn by_label(requirement: &At<'_>, labels: bool) {
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
        text => operator.invalid_shown(text, NOT_AN_OPERATOR),
    }
    requirement.field("key").named(is_qualified_name);
    if labels {
        values.items().iter().for_each(|value| value.named(is_label_value));
    }
}

fn by_name(requirement: &At<'_>) {
    let (operator, values) = (requirement.field("operator"), requirement.field("values"));
    match operator.text() {
        "In" | "NotIn" if values.count() != 1 => {
            values.required("must be only one value when `operator` is 'In' or 'NotIn' for node field selector");
        }
        "In" | "NotIn" => (),
        text => operator.invalid_shown(text, NOT_AN_OPERATOR),
    }
    let key = requirement.field("key");
    match key.text() {
        "metadata.name" => values.items().iter().for_each(|value| value.named(is_subdomain)),
        text => key.invalid_shown(text, "not a valid field selector key"),
    }
}

/// Whether some value is none that a label can have.
pub(super) fn has_odd_values(at: &At<'_>) -> bool {
    let terms = at.each("nodeSelectorTerms");
    let requirements = terms.iter().flat_map(|term| term.each("matchExpressions"));
    requirements
        .flat_map(|requirement| requirement.each("values"))
        .any(|value| !is_label_value(value.text()).is_empty())
}
