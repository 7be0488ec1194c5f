//! Nodes and runtime classes.

use api::field::{FieldError, Path};
use api::validation::{is_label, is_label_value, is_qualified_name};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::{Strategy, fixed};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) struct Nodes;

impl Strategy for Nodes {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.unschedulable"]
    }

    fn keeps_status_on_create(&self) -> bool {
        true
    }

    /// What a node has is what it gives, unless it says otherwise; its range is the first of its ranges.
    fn default(&self, object: &mut Object) {
        if let (Some(capacity), None) =
            (object.at(&["status", "capacity"]).cloned(), object.at(&["status", "allocatable"]))
        {
            object.at_mut(&["status"]).insert("allocatable".into(), capacity);
        }
        let one = object.text(&["spec", "podCIDR"]).to_owned();
        let first = object.at(&["spec", "podCIDRs"]).and_then(Value::as_array).and_then(|list| list.first()).cloned();
        match (one.is_empty(), first) {
            (false, None) => drop(object.at_mut(&["spec"]).insert("podCIDRs".into(), json!([one]))),
            (true, Some(range)) => drop(object.at_mut(&["spec"]).insert("podCIDR".into(), range)),
            _ => (),
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            taints(&spec.field("taints").called(Path::new("metadata").child("taints")));
            for range in spec.each("podCIDRs") {
                range.cidr();
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let (now, before) = (new.at(&["spec", "podCIDRs"]), old.at(&["spec", "podCIDRs"]));
        if before.is_some() && now != before {
            let detail = "node updates may not change podCIDR except from \"\" to valid";
            errors.push(FieldError::forbidden("spec.podCIDRs", detail));
        }
        let (now, before) = (new.text(&["spec", "providerID"]), old.text(&["spec", "providerID"]));
        if !before.is_empty() && now != before {
            let detail = "node updates may not change providerID except from \"\" to valid";
            errors.push(FieldError::forbidden("spec.providerID", detail));
        }
        errors
    }
}

fn taints(at: &At<'_>) {
    let mut seen = Vec::new();
    for taint in at.items() {
        taint.field("key").named(is_qualified_name);
        taint.field("value").named_if_set(is_label_value);
        let effect = taint.field("effect");
        if effect.text().is_empty() {
            effect.required("")
        } else {
            effect.one_of(&EFFECTS)
        }
        let pair = (taint.field("key").text(), effect.text());
        if seen.contains(&pair) {
            let shown =
                json!({"Key": pair.0, "Value": taint.field("value").text(), "Effect": pair.1, "TimeAdded": null});
            let mut error = FieldError::duplicate(taint.path(), shown);
            error.detail = "taints must be unique by key and effect pair".into();
            taint.complain(error);
        }
        seen.push(pair);
    }
}

pub(super) struct RuntimeClasses;

impl Strategy for RuntimeClasses {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("handler").named(is_label);
            for (_, amount) in at.at(&["overhead", "podFixed"]).called(Path::new("overhead").child("limits")).entries()
            {
                amount.quantity_not_negative();
            }
            let scheduling = at.field("scheduling");
            scheduling.field("nodeSelector").labels();
            tolerations(&scheduling.field("tolerations"));
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed(new, old, &["handler"])
    }
}

pub(super) fn tolerations(at: &At<'_>) {
    for toleration in at.items() {
        let (key, operator) = (toleration.field("key"), toleration.field("operator"));
        let (value, effect) = (toleration.field("value"), toleration.field("effect"));
        key.named_if_set(is_qualified_name);
        if key.is_empty() && operator.text() != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            operator.complain(FieldError::invalid(operator.path(), operator.text(), detail));
        }
        if toleration.field("tolerationSeconds").exists() && effect.text() != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            effect.complain(FieldError::invalid(effect.path(), effect.text(), detail));
        }
        match operator.text() {
            "Equal" | "" => {
                let wrong = is_label_value(value.text());
                if !wrong.is_empty() {
                    operator.complain(FieldError::invalid(operator.path(), value.text(), wrong.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                operator.complain(FieldError::invalid(operator.path(), value.text(), detail));
            }
            "Exists" => (),
            _ => operator.one_of(&["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            effect.one_of(&EFFECTS);
        }
    }
}
