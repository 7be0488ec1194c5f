//! Disruption budgets and priority classes.

use api::field::{FieldError, Path};
use api::validation::NameRule;
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::check::{check, shown};
use super::conditions::conditions;
use super::{Strategy, set_default};

const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// What a budget asks for, as upstream keeps it.
const BUDGET: [(&str, &str, &str); 4] = [
    ("MinAvailable", "minAvailable", "null"),
    ("Selector", "selector", "null"),
    ("MaxUnavailable", "maxUnavailable", "null"),
    ("UnhealthyPodEvictionPolicy", "unhealthyPodEvictionPolicy", "null"),
];

pub(super) struct PodDisruptionBudgets;

impl Strategy for PodDisruptionBudgets {
    /// Upstream asks no more of its name.
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            let (least, most) = (spec.field("minAvailable"), spec.field("maxUnavailable"));
            if least.exists() && most.exists() {
                let detail = "minAvailable and maxUnavailable cannot be both set";
                let error = FieldError::invalid(spec.path(), Value::Null, detail);
                spec.complain(FieldError { value: shown(spec.value(), &BUDGET), ..error });
            }
            for amount in [least, most] {
                if amount.number_or_percent() {
                    amount.at_most_100_percent();
                }
            }
            spec.field("selector").selector();
            spec.field("unhealthyPodEvictionPolicy").one_of_if_set(&["AlwaysAllow", "IfHealthyBudget"]);
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
            conditions(&at.at(&["status", "conditions"]));
            at.field("status").none_negative(&counts);
        })
    }
}

pub(super) struct PriorityClasses;

impl Strategy for PriorityClasses {
    /// Nothing is counted afterwards.
    fn prepare_for_create(&self, object: &mut Object) {
        object.metadata().insert("generation".into(), 1.into());
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["preemptionPolicy"], "PreemptLowerPriority");
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let name = object.name();
        check(object, |at| {
            let value = at.field("value");
            if name.starts_with("system-") {
                let known = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name);
                let why = match known {
                    Some((_, priority)) if value.number() == Some(*priority) => None,
                    Some((_, priority)) => Some(format!("value of {name} PriorityClass must be {priority}")),
                    None => Some(format!("{name} is not a known system priority class")),
                };
                if let Some(why) = why {
                    let reserved =
                        "priority class names with 'system-' prefix are reserved for system use only. error: ";
                    at.field("metadata").field("name").forbidden(format!("{reserved}{why}"));
                }
            } else if value.number().is_some_and(|number| number > HIGHEST_USER_PRIORITY) {
                let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
                value.forbidden(detail);
            }
            if at.field("preemptionPolicy").exists() {
                at.field("preemptionPolicy").needed_one_of(&["PreemptLowerPriority", "Never"]);
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let number = |object: &Object| object.get("value").and_then(Value::as_i64).unwrap_or(0);
        if number(new) != number(old) {
            errors.push(FieldError::forbidden(&Path::new("value"), "may not be changed in an update."));
        }
        errors.extend(super::fixed(new, old, &["preemptionPolicy"]));
        errors
    }
}
