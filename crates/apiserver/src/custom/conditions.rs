//! What a definition's status says: which names it got, whether it is served, and what is wrong with it.
//!
//! All of it is decided here, from the definition and the names that others of its group hold.

use std::collections::BTreeSet;

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::handlers::now;
use crate::strategy::definitions;

/// Holds a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const APPROVED: &str = "api-approved.kubernetes.io";

/// The names that other definitions of a group hold.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) resources: BTreeSet<String>,
    pub(super) kinds: BTreeSet<String>,
}

fn conditions(object: &Object) -> impl Iterator<Item = &Object> {
    let list = object.at(&["status", "conditions"]).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_object)
}

pub(crate) fn is_true(object: &Object, kind: &str) -> bool {
    conditions(object).any(|condition| condition.text(&["type"]) == kind && condition.text(&["status"]) == "True")
}

/// Sets a condition; the time changes with its status alone.
pub(crate) fn set_condition(object: &mut Object, kind: &str, status: &str, reason: &str, message: &str) {
    let known = conditions(object).find(|known| known.text(&["type"]) == kind);
    let since =
        known.filter(|known| known.text(&["status"]) == status).map(|known| known.text(&["lastTransitionTime"]));
    let since = since.filter(|since| !since.is_empty()).map_or_else(now, ToOwned::to_owned);
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    let list = object.at_mut(&["status"]).entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|known| known.get("type").is_some_and(|known| known == kind)) {
        Some(known) => *known = condition,
        None => list.push(condition),
    }
}

fn remove_condition(object: &mut Object, kind: &str) {
    let status = object.at_mut(&["status"]);
    if let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        list.retain(|known| known.get("type").is_none_or(|known| known != kind));
    }
}

/// The definition with the status it should have.
pub(super) fn decide(definition: &Object, taken: &Taken) -> Object {
    let mut new = definition.clone();
    accept_names(&mut new, taken);
    approval(&mut new);
    structure(&mut new);
    if is_true(&new, "NamesAccepted") && !is_true(&new, "Established") {
        match definitions::has_valid_ca_bundle(&new) {
            true => {
                let message = "the initial names have been accepted";
                set_condition(&mut new, "Established", "True", "InitialNamesAccepted", message);
            }
            false => {
                let message = "The conversion webhook CABundle is invalid";
                set_condition(&mut new, "Established", "False", "InvalidCABundle", message);
            }
        }
    }
    new
}

fn accept_names(new: &mut Object, taken: &Taken) {
    let wanted = new.at(&["spec", "names"]).cloned().unwrap_or_default();
    let mut accepted = new.at(&["status", "acceptedNames"]).and_then(Value::as_object).cloned().unwrap_or_default();
    if wanted.as_object() == Some(&accepted) && !is_unnamed(&accepted) {
        return;
    }
    let mut conflict: Option<(&str, String)> = None;
    let in_use = |name: &str| format!("{name:?} is already in use");
    let is_free = |name: &str, own: &str, used: &BTreeSet<String>| name == own || !used.contains(name);
    for (key, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let name = wanted.get(key).and_then(Value::as_str).unwrap_or_default();
        match is_free(name, accepted.text(&[key]), &taken.resources) {
            true => drop(accepted.insert(key.into(), name.into())),
            false => conflict = Some((reason, in_use(name))),
        }
    }
    let list = |names: &Value, key: &str| -> Vec<String> {
        let items = names.get(key).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    };
    let own = list(&Value::Object(accepted.clone()), "shortNames");
    let short = list(&wanted, "shortNames");
    let clashing: Vec<String> =
        short.iter().filter(|name| !own.contains(name) && taken.resources.contains(*name)).map(|n| in_use(n)).collect();
    match clashing.as_slice() {
        [] => set_list(&mut accepted, "shortNames", wanted.get("shortNames")),
        [one] => conflict = Some(("ShortNamesConflict", one.clone())),
        several => conflict = Some(("ShortNamesConflict", format!("[{}]", several.join(", ")))),
    }
    for (key, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        let name = wanted.get(key).and_then(Value::as_str).unwrap_or_default();
        match is_free(name, accepted.text(&[key]), &taken.kinds) {
            true => drop(accepted.insert(key.into(), name.into())),
            false => conflict = Some((reason, in_use(name))),
        }
    }
    set_list(&mut accepted, "categories", wanted.get("categories"));
    new.at_mut(&["status"]).insert("acceptedNames".into(), Value::Object(accepted));
    match conflict {
        Some((reason, message)) => set_condition(new, "NamesAccepted", "False", reason, &message),
        None => set_condition(new, "NamesAccepted", "True", "NoConflicts", "no conflicts found"),
    }
    if !conditions(new).any(|condition| condition.text(&["type"]) == "Established") {
        set_condition(new, "Established", "False", "NotAccepted", "not all names are accepted");
    }
}

fn is_unnamed(names: &Object) -> bool {
    names.text(&["plural"]).is_empty() && names.text(&["kind"]).is_empty()
}

fn set_list(names: &mut Object, key: &str, list: Option<&Value>) {
    match list.filter(|list| list.as_array().is_some_and(|list| !list.is_empty())) {
        Some(list) => names.insert(key.into(), list.clone()),
        None => names.remove(key),
    };
}

/// Groups of the community need to say who approved them.
fn approval(new: &mut Object) {
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    if !definitions::is_protected(new.text(&["spec", "group"])) {
        if conditions(new).any(|condition| condition.text(&["type"]) == KIND) {
            remove_condition(new, KIND);
        }
        return;
    }
    let annotation = new.text(&["metadata", "annotations", APPROVED]).to_owned();
    let (status, reason, message) = match definitions::approval(&annotation) {
        definitions::Approval::Missing => {
            let why = format!("protected groups must have approval annotation {APPROVED:?}, {SEE}");
            ("False", "MissingAnnotation", why)
        }
        definitions::Approval::Bypassed => ("False", "UnapprovedAnnotation", format!("not approved: {annotation:?}")),
        definitions::Approval::Approved => ("True", "ApprovedAnnotation", format!("approved in {annotation}")),
        definitions::Approval::Invalid => {
            let why = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \
                 \"unapproved\", {SEE}"
            );
            ("False", "InvalidAnnotation", why)
        }
    };
    set_condition(new, KIND, status, reason, &message);
}

/// Only a definition that another hand wrote can lack structure.
fn structure(new: &mut Object) {
    const KIND: &str = "NonStructuralSchema";
    let violations = definitions::structural_violations(new);
    if violations.is_empty() {
        if conditions(new).any(|condition| condition.text(&["type"]) == KIND) {
            remove_condition(new, KIND);
        }
        return;
    }
    let message = match violations.as_slice() {
        [one] => one.to_string(),
        several => format!("[{}]", several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    set_condition(new, KIND, "True", "Violations", &message);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(names: Value, status: Value) -> Object {
        let value =
            json!({"metadata": {"name": "x"}, "spec": {"group": "example.com", "names": names}, "status": status});
        value.as_object().cloned().unwrap()
    }

    fn told(object: &Object) -> String {
        let told = conditions(object)
            .map(|c| format!("{}={} {}", c.text(&["type"]), c.text(&["status"]), c.text(&["reason"])));
        told.collect::<Vec<_>>().join("; ")
    }

    fn names() -> Value {
        json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["w"]})
    }

    #[test]
    fn free_names_are_accepted_and_served() {
        let new = decide(&definition(names(), json!({})), &Taken::default());
        assert_eq!(told(&new), "NamesAccepted=True NoConflicts; Established=True InitialNamesAccepted");
        assert_eq!(new.at(&["status", "acceptedNames"]), Some(&names()));
        assert_eq!(decide(&new, &Taken::default()), new);
    }

    #[test]
    fn names_of_others_are_refused_and_the_rest_is_taken() {
        let taken = Taken { resources: BTreeSet::from(["w".to_owned()]), kinds: BTreeSet::new() };
        let new = decide(&definition(names(), json!({})), &taken);
        assert_eq!(told(&new), "NamesAccepted=False ShortNamesConflict; Established=False NotAccepted");
        assert_eq!(new.text(&["status", "acceptedNames", "plural"]), "widgets");
        assert!(new.at(&["status", "acceptedNames", "shortNames"]).is_none());
        let freed = decide(&new, &Taken::default());
        assert_eq!(told(&freed), "NamesAccepted=True NoConflicts; Established=True InitialNamesAccepted");
    }
}
