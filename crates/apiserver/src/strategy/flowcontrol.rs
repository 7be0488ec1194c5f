//! Flow schemas and priority levels.

use api::field::FieldError;
use api::validation::{is_label, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::{Strategy, set_default};
use crate::bootstrap::flow;

const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const SUBJECTS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
const MOST_PRECEDENCE: i64 = 10_000;
const MOST_QUEUES: i64 = 10_000_000;
/// Of a hash that deals a hand of queues.
const MOST_HASH_BITS: f64 = 60.0;

pub(super) struct FlowSchemas;

impl Strategy for FlowSchemas {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        if object.at(&["spec", "matchingPrecedence"]).and_then(Value::as_i64).unwrap_or(0) == 0 {
            object.at_mut(&["spec"]).insert("matchingPrecedence".into(), 1000.into());
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            let precedence = spec.field("matchingPrecedence");
            match precedence.number().unwrap_or(0) {
                number if number <= 0 => precedence.invalid("must be a positive value"),
                number if number > MOST_PRECEDENCE => {
                    precedence.invalid(format!("must not be greater than {MOST_PRECEDENCE}"));
                }
                1 if object.name() != "exempt" => {
                    precedence.invalid("only the schema named 'exempt' may have matchingPrecedence 1");
                }
                _ => (),
            }
            let method = spec.field("distinguisherMethod");
            if method.exists() && !["ByNamespace", "ByUser"].contains(&method.field("type").text()) {
                // Shown as upstream keeps it.
                let (place, shown) = (method.field("type"), json!({"Type": method.field("type").text()}));
                place.complain(FieldError::not_supported(place.path(), shown, &["ByNamespace", "ByUser"]));
            }
            let level = spec.at(&["priorityLevelConfiguration", "name"]);
            match level.text() {
                "" => level.required("must reference a priority level"),
                _ => level.named(is_subdomain),
            }
            spec.each("rules").iter().for_each(rule);
            if flow::mandatory("FlowSchema", object.name()).is_some_and(|fixed| Some(&fixed) != object.get("spec")) {
                spec.invalid(format!("spec of '{}' must equal the fixed value", object.name()));
            }
            conditions(&at);
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| conditions(&at))
    }
}

fn conditions(at: &At<'_>) {
    let types: Vec<At<'_>> = at.at(&["status", "conditions"]).items().iter().map(|c| c.field("type")).collect();
    for (index, kind) in types.iter().enumerate() {
        if types.iter().take(index).any(|before| before.text() == kind.text()) {
            kind.complain(FieldError::duplicate(kind.path(), kind.text()));
        }
        kind.needed();
    }
}

fn rule(at: &At<'_>) {
    if at.each("subjects").is_empty() {
        at.field("subjects").required("subjects must contain at least one value");
    }
    at.each("subjects").iter().for_each(subject);
    if at.field("resourceRules").is_empty() && at.field("nonResourceRules").is_empty() {
        at.required("at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for rule in at.each("resourceRules") {
        verbs(&rule);
        some(&rule.field("apiGroups"), "resource rules must supply at least one api group", "api groups");
        some(&rule.field("resources"), "resource rules must supply at least one resource", "resources");
        let namespaces = rule.field("namespaces");
        if namespaces.is_empty() && !rule.field("clusterScope").is_true() {
            namespaces.required("resource rules that are not cluster scoped must supply at least one namespace");
        } else if has_all(&namespaces) {
            alone(&namespaces, "namespaces");
        } else {
            for namespace in namespaces.items() {
                for detail in is_label(namespace.text()) {
                    namespace.invalid(format!("each member of this list must be '*' or a DNS-1123 label; {detail}"));
                }
            }
        }
    }
    for rule in at.each("nonResourceRules") {
        verbs(&rule);
        let urls = rule.field("nonResourceURLs");
        if urls.is_empty() {
            urls.required("nonResourceURLs must contain at least one value");
        } else if has_all(&urls) {
            alone(&urls, "non-resource URLs");
        } else {
            urls.items().iter().for_each(path);
        }
    }
}

fn subject(at: &At<'_>) {
    let kind = at.field("kind");
    let Some((name, field)) = SUBJECTS.iter().find(|(name, _)| *name == kind.text()) else {
        return kind.one_of(&["Group", "ServiceAccount", "User"]);
    };
    let own = at.field(field);
    if !own.exists() {
        own.required(&format!("{field} is required when subject kind is '{name}'"));
    } else {
        let called = own.field("name");
        match called.text() {
            "" => called.required(""),
            "*" => (),
            _ if *name == "ServiceAccount" => called.named(is_subdomain),
            _ => (),
        }
        if *name == "ServiceAccount" {
            let namespace = own.field("namespace");
            match namespace.text() {
                "" => namespace.required("must specify namespace for service account"),
                _ => namespace.named(is_label),
            }
        }
    }
    // Upstream names the others in an order of its own for each.
    let others: &[&str] = match *name {
        "ServiceAccount" => &["user", "group"],
        "User" => &["serviceAccount", "group"],
        _ => &["serviceAccount", "user"],
    };
    for other in others.iter().filter(|other| at.field(other).exists()) {
        let kind = SUBJECTS.iter().find(|(_, field)| field == other).map(|(name, _)| *name).unwrap_or_default();
        at.field(other).forbidden(format!("{other} is forbidden when subject kind is not '{kind}'"));
    }
}

fn has_all(list: &At<'_>) -> bool {
    list.items().iter().any(|item| item.text() == "*")
}

fn alone(list: &At<'_>, what: &str) {
    if has_all(list) && list.count() > 1 {
        list.invalid(format!("if '*' is present, must not specify other {what}"));
    }
}

fn some(list: &At<'_>, missing: &str, what: &str) {
    if list.is_empty() {
        list.required(missing);
    }
    alone(list, what);
}

fn verbs(rule: &At<'_>) {
    let verbs = rule.field("verbs");
    some(&verbs, "verbs must contain at least one value", "verbs");
    if !has_all(&verbs) && !verbs.items().iter().all(|verb| VERBS.contains(&verb.text())) {
        verbs.complain(FieldError::not_supported(verbs.path(), verbs.value().clone(), &VERBS));
    }
}

fn path(at: &At<'_>) {
    let text = at.text();
    let stars = text.matches('*').count();
    match text {
        "" => at.invalid("must not be empty"),
        "/" => (),
        _ if !text.starts_with('/') => at.invalid("must start with slash"),
        _ if text.contains(' ') => at.invalid("must not contain white-space"),
        _ if text.contains("//") => at.invalid("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !text.ends_with("/*")) => at.invalid("wildcard can only do suffix matching"),
        _ => (),
    }
}

pub(super) struct PriorityLevelConfigurations;

impl Strategy for PriorityLevelConfigurations {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        for (field, shares) in [("exempt", 0), ("limited", 30)] {
            if object.at(&["spec", field]).is_some() {
                set_default(object, &["spec", field, "nominalConcurrencyShares"], shares);
                set_default(object, &["spec", field, "lendablePercent"], 0);
            }
        }
        let queuing = ["spec", "limited", "limitResponse", "queuing"];
        if object.at(&queuing).is_some() {
            let queuing = object.at_mut(&queuing);
            for (field, usual) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                if queuing.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                    queuing.insert(field.into(), usual.into());
                }
            }
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let name = object.name();
        check(object, |at| {
            let spec = at.field("spec");
            let kind = spec.field("type");
            if (name == "exempt") != (kind.text() == "Exempt") {
                kind.complain(FieldError::invalid(
                    kind.path(),
                    kind.text(),
                    "must be 'Exempt' if and only if `name` is 'exempt'",
                ));
            }
            let (exempt, limited) = (spec.field("exempt"), spec.field("limited"));
            match kind.text() {
                "" => kind.required(""),
                "Exempt" => {
                    if limited.exists() {
                        limited.forbidden("must be nil if the type is not Limited");
                    }
                    shares(&exempt);
                    lendable(&exempt);
                }
                "Limited" => {
                    if exempt.exists() {
                        exempt.forbidden("must be nil if the type is Limited");
                    }
                    if limited.exists() {
                        limits(&limited);
                    } else {
                        limited.required("must not be empty when type is Limited");
                    }
                }
                _ => kind.one_of(&["Exempt", "Limited"]),
            }
            if let Some(fixed) = flow::mandatory("PriorityLevelConfiguration", name) {
                let except = |spec: &Value| -> Value {
                    let fields = spec.as_object().into_iter().flatten();
                    let fields = fields.filter(|(key, _)| !(name == "exempt" && *key == "exempt"));
                    fields.map(|(key, value)| (key.clone(), value.clone())).collect::<Object>().into()
                };
                if except(&fixed) != except(object.get("spec").unwrap_or(&Value::Null)) {
                    let part = if name == "exempt" { " except the 'spec.exempt' field" } else { "" };
                    spec.invalid(format!("spec of '{name}'{part} must equal the fixed value"));
                }
            }
            conditions(&at);
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| conditions(&at))
    }
}

fn shares(at: &At<'_>) {
    let shares = at.field("nominalConcurrencyShares");
    if shares.number().is_some_and(|number| number < 0) {
        shares.invalid("must be a non-negative integer");
    }
}

fn lendable(at: &At<'_>) {
    at.field("lendablePercent").between(0, 100);
}

fn limits(at: &At<'_>) {
    shares(at);
    let response = at.field("limitResponse");
    let (kind, queuing) = (response.field("type"), response.field("queuing"));
    match kind.text() {
        "" => kind.required(""),
        "Reject" if queuing.exists() => queuing.forbidden("must be nil if limited.limitResponse.type is not Limited"),
        "Reject" => (),
        "Queue" if queuing.exists() => queues(&queuing),
        "Queue" => queuing.required("must not be empty if limited.limitResponse.type is Limited"),
        _ => kind.one_of(&["Queue", "Reject"]),
    }
    lendable(at);
    let borrowing = at.field("borrowingLimitPercent");
    if borrowing.number().is_some_and(|number| number < 0) {
        borrowing.invalid("if specified, must be a non-negative integer");
    }
}

fn queues(at: &At<'_>) {
    let positive = |place: &At<'_>| {
        let number = place.number().unwrap_or(0);
        if number <= 0 {
            place.complain(FieldError::invalid(place.path(), json!(number), "must be positive"));
        }
        number
    };
    positive(&at.field("queueLengthLimit"));
    let queues = positive(&at.field("queues"));
    if queues > MOST_QUEUES {
        at.field("queues").invalid(format!("must not be greater than {MOST_QUEUES}"));
    }
    let place = at.field("handSize");
    let hand = positive(&place);
    if hand <= 0 {
        return;
    }
    if hand > queues {
        place.invalid(format!("should not be greater than queues ({queues})"));
    } else if entropy_bits(queues, hand) > MOST_HASH_BITS {
        place.invalid(format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MOST_HASH_BITS}"
        ));
    }
}

/// How many bits it takes to deal a hand out of a deck.
fn entropy_bits(deck: i64, hand: i64) -> f64 {
    // Both are 32 bits wide in the API.
    let [deck, hand] = [deck, hand].map(|number| f64::from(i32::try_from(number).unwrap_or(i32::MAX)));
    (deck.log2() * hand).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_takes_as_many_bits_as_its_cards_have_choices() {
        assert_eq!(entropy_bits(64, 8), 48.0);
        assert_eq!(entropy_bits(1, 1), 0.0);
        assert!(entropy_bits(1_000_000, 8) > MOST_HASH_BITS);
    }
}
