//! Horizontal pod autoscalers.

use api::field::FieldError;
use api::validation::{is_label, is_path_segment};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::quota::container_resource_name;
use super::{Strategy, set_default};
use crate::convert;

const METRICS: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
/// In the order upstream looks at them.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const LONGEST_WINDOW: i64 = 3600;
const LONGEST_PERIOD: i64 = 1800;

pub(super) struct HorizontalPodAutoscalers;

impl Strategy for HorizontalPodAutoscalers {
    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "minReplicas"], 1);
        // The first version has no metrics but one.
        if object.text(&["apiVersion"]) == "autoscaling/v1" {
            convert::settle_autoscaler_in_v1(object);
            return;
        }
        let cpu = json!({"type": "Resource", "resource": {
            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80},
        }});
        if object.at(&["spec", "metrics"]).and_then(Value::as_array).is_none_or(Vec::is_empty) {
            object.at_mut(&["spec"]).insert("metrics".into(), json!([cpu]));
        }
        if object.at(&["spec", "behavior"]).is_some() {
            behavior_defaults(object.at_mut(&["spec", "behavior"]));
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        convert::keep_autoscaler_part(object, None, true);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        convert::keep_autoscaler_part(new, Some(old), true);
    }

    fn prepare_part(&self, _subresource: &str, new: &mut Object, old: &Object) {
        convert::keep_autoscaler_part(new, Some(old), false);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        // What the first version lacks, it carries along: the rules are those of the version that has it all.
        let whole = (object.text(&["apiVersion"]) == "autoscaling/v1").then(|| convert::autoscaler_from_v1(object));
        check(whole.as_ref().unwrap_or(object), |at| {
            let spec = at.field("spec");
            let (least, most) = (spec.field("minReplicas"), spec.field("maxReplicas"));
            if least.number().is_some_and(|number| number < 1) {
                least.invalid("must be greater than or equal to 1");
            }
            let highest = most.number().unwrap_or(0);
            match highest {
                0 => most.required("must be set and greater than 0"),
                number if number < 0 => most.invalid("must be greater than or equal to 1"),
                _ => (),
            }
            if least.number().is_some_and(|least| highest < least) {
                let detail = "must be greater than or equal to `minReplicas`";
                most.complain(FieldError::invalid(most.path(), highest, detail));
            }
            reference(&spec.field("scaleTargetRef"), false);
            spec.each("metrics").iter().for_each(metric);
            let to_zero = ["Object", "External"];
            let scales_to_zero =
                spec.each("metrics").iter().any(|metric| to_zero.contains(&metric.field("type").text()));
            if least.number() == Some(0) && !scales_to_zero {
                let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
                spec.field("metrics").forbidden(detail);
            }
            for direction in ["scaleUp", "scaleDown"] {
                scaling_rules(&spec.at(&["behavior", direction]));
            }
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| at.field("status").none_negative(&["currentReplicas", "desiredReplicas"]))
    }
}

/// What each direction does unless told otherwise.
fn behavior_defaults(behavior: &mut Object) {
    let up = json!({
        "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}],
    });
    let down = json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]});
    for (direction, usual) in [("scaleUp", up), ("scaleDown", down)] {
        let rules = behavior.at_mut(&[direction]);
        for (key, value) in usual.as_object().into_iter().flatten() {
            rules.entry(key).or_insert_with(|| value.clone());
        }
    }
}

/// A reference to what is scaled, or described.
fn reference(at: &At<'_>, core_allowed: bool) {
    at.field("kind").needed_named(is_path_segment);
    at.field("name").needed_named(is_path_segment);
    let version = at.field("apiVersion");
    if version.text().matches('/').count() > 1 {
        let detail = format!("unexpected GroupVersion string: {}", version.text());
        version.complain(FieldError::invalid(version.path(), version.text(), detail));
    } else if !core_allowed && !version.text().contains('/') {
        let detail = "apiVersion must specify API group";
        version.complain(FieldError::invalid(version.path(), version.text(), detail));
    }
}

fn metric(at: &At<'_>) {
    let kind = at.field("type");
    if kind.text().is_empty() {
        kind.required("must specify a metric source type");
    }
    kind.one_of(&METRICS);
    let present: Vec<&str> = SOURCES.iter().map(|(_, field)| *field).filter(|field| at.field(field).exists()).collect();
    if let Some(first) = present.first() {
        source(first, &at.field(first));
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind.text()).map(|(_, field)| *field);
    match expected {
        Some(field) if !at.field(field).exists() => {
            at.field(field).required("must populate information for the given metric source");
        }
        Some(_) => (),
        None => kind.one_of(&METRICS),
    }
    if present.len() != 1 {
        for field in present.iter().filter(|field| Some(**field) != expected) {
            at.field(field).forbidden("must populate the given metric source only");
        }
    }
}

fn source(kind: &str, at: &At<'_>) {
    let target = at.field("target");
    let (value, average) = (target.field("value"), target.field("averageValue"));
    match kind {
        "object" => {
            reference(&at.field("describedObject"), true);
            identifier(&at.field("metric"));
            amounts(&target);
            if !value.exists() && !average.exists() {
                average.required("must set either a target value or averageValue");
            }
        }
        "external" => {
            identifier(&at.field("metric"));
            amounts(&target);
            if !value.exists() && !average.exists() {
                average.required("must set either a target value for metric or a per-pod target");
            }
            if value.exists() && average.exists() {
                value.forbidden("may not set both a target value for metric and a per-pod target");
            }
        }
        "pods" => {
            identifier(&at.field("metric"));
            amounts(&target);
            if !average.exists() {
                average.required("must specify a positive target averageValue");
            }
        }
        _ => {
            let (name, container) = (at.field("name"), at.field("container"));
            match name.text() {
                "" => name.required("must specify a resource name"),
                text if kind == "containerResource" => container_resource_name(&name, text),
                _ => (),
            }
            match container.text() {
                _ if kind != "containerResource" => (),
                "" => container.required("must specify a container"),
                _ => container.named(is_label),
            }
            amounts(&target);
            let utilization = target.field("averageUtilization");
            if !utilization.exists() && !average.exists() {
                utilization.required("must set either a target raw value or a target utilization");
            }
            if utilization.exists() && average.exists() {
                average.forbidden("may not set both a target raw value and a target utilization");
            }
        }
    }
}

fn identifier(at: &At<'_>) {
    let name = at.field("name");
    match name.text() {
        "" => name.required("must specify a metric name"),
        _ => name.named(is_path_segment),
    }
}

fn amounts(at: &At<'_>) {
    let kind = at.field("type");
    if kind.text().is_empty() {
        kind.required("must specify a metric target type");
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind.text()) {
        kind.complain(FieldError::invalid(
            kind.path(),
            kind.text(),
            "must be either Utilization, Value, or AverageValue",
        ));
    }
    for field in ["value", "averageValue"] {
        let amount = at.field(field);
        if amount.quantity().is_some_and(|quantity| !quantity.is_positive()) {
            amount.invalid("must be positive");
        }
    }
    let utilization = at.field("averageUtilization");
    if utilization.number().is_some_and(|number| number < 1) {
        utilization.invalid("must be greater than 0");
    }
}

fn scaling_rules(at: &At<'_>) {
    if !at.exists() {
        return;
    }
    let window = at.field("stabilizationWindowSeconds");
    match window.number() {
        Some(seconds) if seconds < 0 => window.invalid("must be greater than or equal to zero"),
        Some(seconds) if seconds > LONGEST_WINDOW => {
            window.invalid(format!("must be less than or equal to {LONGEST_WINDOW}"));
        }
        _ => (),
    }
    at.field("selectPolicy").one_of_if_set(&["Disabled", "Max", "Min"]);
    if at.field("policies").is_empty() {
        at.field("policies").required("must specify at least one Policy");
    }
    for policy in at.each("policies") {
        policy.field("type").one_of(&["Percent", "Pods"]);
        for field in ["value", "periodSeconds"] {
            let amount = policy.field(field);
            if amount.number().unwrap_or(0) <= 0 {
                amount.complain(FieldError::invalid(
                    amount.path(),
                    amount.number().unwrap_or(0),
                    "must be greater than zero",
                ));
            }
        }
        let period = policy.field("periodSeconds");
        if period.number().is_some_and(|seconds| seconds > LONGEST_PERIOD) {
            period.invalid(format!("must be less than or equal to {LONGEST_PERIOD}"));
        }
    }
    at.field("tolerance").quantity_not_negative();
}
