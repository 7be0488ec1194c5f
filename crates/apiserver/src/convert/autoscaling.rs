//! Autoscalers of autoscaling/v1: one metric in the spec, everything newer in annotations, byte for byte as upstream writes it.

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

const CPU_TARGET: &str = "targetCPUUtilizationPercentage";
const CPU_CURRENT: &str = "currentCPUUtilizationPercentage";
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CARRIED: [&str; 4] = [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR];
/// What of it is part of the status, and what of the spec.
const OF_STATUS: [&str; 2] = [CURRENT_METRICS, CONDITIONS];
const OF_SPEC: [&str; 2] = [METRICS, BEHAVIOR];

/// A source of metrics: its type, its field, and its fields in both versions, in the order of the older one.
type Source = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const SPECS: [Source; 5] = [
    (
        "Object",
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("targetValue", "/target/value"),
            ("selector", "/metric/selector"),
            ("averageValue", "/target/averageValue"),
        ],
    ),
    (
        "Pods",
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("targetAverageValue", "/target/averageValue"),
            ("selector", "/metric/selector"),
        ],
    ),
    (
        "Resource",
        "resource",
        &[
            ("name", "/name"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "ContainerResource",
        "containerResource",
        &[
            ("name", "/name"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
            ("container", "/container"),
        ],
    ),
    (
        "External",
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
];

const STATUSES: [Source; 5] = [
    (
        "Object",
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("currentValue", "/current/value"),
            ("selector", "/metric/selector"),
            ("averageValue", "/current/averageValue"),
        ],
    ),
    (
        "Pods",
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("currentAverageValue", "/current/averageValue"),
            ("selector", "/metric/selector"),
        ],
    ),
    (
        "Resource",
        "resource",
        &[
            ("name", "/name"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "ContainerResource",
        "containerResource",
        &[
            ("name", "/name"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
            ("container", "/container"),
        ],
    ),
    (
        "External",
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("currentValue", "/current/value"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
];

/// Amounts that the older version writes even when there are none.
fn is_written(kind: &str, name: &str) -> bool {
    matches!(
        (kind, name),
        ("Object", "targetValue" | "currentValue")
            | ("Pods", "targetAverageValue" | "currentAverageValue")
            | ("Resource" | "ContainerResource", "currentAverageValue")
            | ("External", "currentValue")
    )
}

/// Upstream's behavior, which it writes as it keeps it in memory.
const RULES: [(&str, &str); 4] = [
    ("StabilizationWindowSeconds", "stabilizationWindowSeconds"),
    ("SelectPolicy", "selectPolicy"),
    ("Policies", "policies"),
    ("Tolerance", "tolerance"),
];
const POLICY: [(&str, &str); 3] = [("Type", "type"), ("Value", "value"), ("PeriodSeconds", "periodSeconds")];
const DIRECTIONS: [(&str, &str); 2] = [("ScaleUp", "scaleUp"), ("ScaleDown", "scaleDown")];
const CONDITION: [&str; 5] = ["type", "status", "lastTransitionTime", "reason", "message"];
const REFERENCE: [&str; 3] = ["kind", "name", "apiVersion"];

pub(super) fn to_v1(object: &mut Object) {
    let metrics = taken(object, &["spec", "metrics"]);
    let current = taken(object, &["status", "currentMetrics"]);
    let conditions = taken(object, &["status", "conditions"]);
    let behavior = object.at(&["spec", "behavior"]).cloned();
    object.remove_at(&["spec", "behavior"]);
    let (cpu, others): (Vec<Value>, Vec<Value>) = metrics.into_iter().partition(|metric| cpu_target(metric).is_some());
    if let Some(target) = cpu.first().and_then(cpu_target) {
        object.at_mut(&["spec"]).insert(CPU_TARGET.into(), target.clone());
    }
    let used = current.iter().find(|metric| metric.pointer("/resource/name").is_some_and(|name| name == "cpu"));
    if let Some(used) = used.and_then(|metric| metric.pointer("/resource/current/averageUtilization")) {
        object.at_mut(&["status"]).insert(CPU_CURRENT.into(), used.clone());
    }
    drop_carried(object);
    let mut carry = |name: &str, text: Option<String>| {
        if let Some(text) = text {
            object.at_mut(&["metadata", "annotations"]).insert(name.into(), text.into());
        }
    };
    carry(METRICS, some_list(others.iter().map(|metric| sources_to_v1(metric, &SPECS))));
    carry(CURRENT_METRICS, some_list(current.iter().map(|metric| sources_to_v1(metric, &STATUSES))));
    carry(BEHAVIOR, behavior.as_ref().map(behavior_to_v1));
    carry(
        CONDITIONS,
        some_list(
            conditions
                .iter()
                .map(|condition| ordered(CONDITION.map(|name| (name, condition.get(name).map(Value::to_string))))),
        ),
    );
}

pub(super) fn from_v1(object: &mut Object) {
    let carried = |name: &str| -> Value {
        let text = object.at(&["metadata", "annotations"]).and_then(|all| all.get(name)).and_then(Value::as_str);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    let list = |name: &str| carried(name).as_array().cloned().unwrap_or_default();
    let mut metrics: Vec<Value> = list(METRICS).iter().map(|metric| sources_from_v1(metric, &SPECS)).collect();
    let mut current: Vec<Value> =
        list(CURRENT_METRICS).iter().map(|metric| sources_from_v1(metric, &STATUSES)).collect();
    let (conditions, behavior) = (list(CONDITIONS), behavior_from_v1(&carried(BEHAVIOR)));
    let target = object.at_mut(&["spec"]).remove(CPU_TARGET);
    if target.is_some() || metrics.is_empty() {
        let target = target.unwrap_or_else(|| json!(80));
        let target = json!({"type": "Utilization", "averageUtilization": target});
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
    }
    object.at_mut(&["spec"]).insert("metrics".into(), metrics.into());
    if let Some(behavior) = behavior {
        object.at_mut(&["spec"]).insert("behavior".into(), behavior);
    }
    // What is carried along says more than the one number, which may be newer only where there is nothing else.
    let used = object.at(&["status", CPU_CURRENT]).cloned();
    object.remove_at(&["status", CPU_CURRENT]);
    if let (true, Some(used)) = (current.is_empty(), used) {
        let used = json!({"averageUtilization": used});
        current.push(json!({"type": "Resource", "resource": {"name": "cpu", "current": used}}));
    }
    for (name, list) in [("currentMetrics", current), ("conditions", conditions)] {
        if !list.is_empty() {
            object.at_mut(&["status"]).insert(name.into(), list.into());
        }
    }
    drop_carried(object);
}

/// Leaves the part that is not written as it was, where it is carried along; that of a new object is nothing.
pub(super) fn keep(new: &mut Object, old: Option<&Object>, is_status: bool) {
    for name in if is_status { OF_STATUS } else { OF_SPEC } {
        let place = ["metadata", "annotations", name];
        match old.and_then(|old| old.at(&place)).cloned() {
            Some(kept) => drop(new.at_mut(&["metadata", "annotations"]).insert(name.into(), kept)),
            None => new.remove_at(&place),
        }
    }
    if new.at(&["metadata", "annotations"]).and_then(Value::as_object).is_some_and(Object::is_empty) {
        new.remove_at(&["metadata", "annotations"]);
    }
}

fn taken(object: &mut Object, path: &[&str]) -> Vec<Value> {
    let list = object.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    object.remove_at(path);
    list
}

/// Only what conversion itself wrote may be read back.
fn drop_carried(object: &mut Object) {
    for name in CARRIED {
        object.remove_at(&["metadata", "annotations", name]);
    }
    if object.at(&["metadata", "annotations"]).and_then(Value::as_object).is_some_and(Object::is_empty) {
        object.remove_at(&["metadata", "annotations"]);
    }
}

fn cpu_target(metric: &Value) -> Option<&Value> {
    let is_cpu = metric.pointer("/resource/name").is_some_and(|name| name == "cpu");
    metric.pointer("/resource/target/averageUtilization").filter(|_| is_cpu)
}

/// JSON text with its fields in this order, without those that are missing.
fn ordered<'a>(fields: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let fields = fields.into_iter().filter_map(|(name, text)| Some(format!("\"{name}\":{}", text?)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

fn some_list(items: impl Iterator<Item = String>) -> Option<String> {
    let items: Vec<String> = items.collect();
    (!items.is_empty()).then(|| format!("[{}]", items.join(",")))
}

fn sources_to_v1(metric: &Value, sources: &[Source]) -> String {
    let kind = metric.get("type").map(Value::to_string);
    let sources = sources.iter().map(|(kind, field, names)| {
        let source = metric.get(field).map(|source| {
            ordered(names.iter().map(|(old, new)| {
                let value = source.pointer(new);
                let text = match *old {
                    "target" => value.map(|v| ordered(REFERENCE.map(|name| (name, v.get(name).map(Value::to_string))))),
                    _ => value.map(Value::to_string),
                };
                (*old, text.or_else(|| is_written(kind, old).then(|| "\"0\"".to_owned())))
            }))
        });
        (*field, source)
    });
    ordered(std::iter::once(("type", kind)).chain(sources))
}

fn sources_from_v1(metric: &Value, sources: &[Source]) -> Value {
    let mut result = Object::new();
    if let Some(kind) = metric.get("type") {
        result.insert("type".into(), kind.clone());
    }
    for (kind, field, names) in sources {
        let Some(old) = metric.get(field) else { continue };
        let mut new = Object::new();
        for (name, place) in *names {
            let value = old.get(name).filter(|value| !(is_written(kind, name) && **value == "0"));
            let path: Vec<&str> = place.split('/').skip(1).collect();
            if let (Some(value), Some((last, parents))) = (value, path.split_last()) {
                new.at_mut(parents).insert((*last).to_owned(), value.clone());
            }
        }
        // The older version tells by the amount that is there of which type the target is.
        if new.contains_key("target") {
            let target = new.at_mut(&["target"]);
            let kind = match (target.contains_key("averageUtilization"), target.contains_key("averageValue")) {
                (true, _) => "Utilization",
                (false, true) if *kind != "External" || !target.contains_key("value") => "AverageValue",
                _ => "Value",
            };
            target.insert("type".into(), kind.into());
        }
        result.insert((*field).to_owned(), new.into());
    }
    result.into()
}

fn behavior_to_v1(behavior: &Value) -> String {
    let null = || "null".to_owned();
    ordered(DIRECTIONS.map(|(old, new)| {
        let rules = behavior.get(new).map(|rules| {
            ordered(RULES.map(|(old, new)| {
                let value = rules.get(new);
                let text = match new {
                    "policies" => value.and_then(Value::as_array).map(|policies| {
                        let policy = |policy: &Value| {
                            ordered(POLICY.map(|(old, new)| (old, policy.get(new).map(Value::to_string))))
                        };
                        format!("[{}]", policies.iter().map(policy).collect::<Vec<_>>().join(","))
                    }),
                    _ => value.map(Value::to_string),
                };
                (old, Some(text.unwrap_or_else(null)))
            }))
        });
        (old, Some(rules.unwrap_or_else(null)))
    }))
}

fn behavior_from_v1(behavior: &Value) -> Option<Value> {
    let renamed = |value: &Value, names: &[(&str, &str)]| -> Object {
        let found = names.iter().filter_map(|(old, new)| {
            let value = value.get(old).filter(|value| !value.is_null())?;
            Some(((*new).to_owned(), value.clone()))
        });
        found.collect()
    };
    let mut directions = renamed(behavior, &DIRECTIONS);
    for rules in directions.values_mut() {
        let mut known = renamed(rules, &RULES);
        if let Some(Value::Array(policies)) = known.get_mut("policies") {
            policies.iter_mut().for_each(|policy| *policy = renamed(policy, &POLICY).into());
        }
        *rules = known.into();
    }
    (!directions.is_empty()).then(|| directions.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autoscaler_survives_the_older_version() {
        let metrics = json!([
            {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "3"}}},
            {"type": "External", "external": {"metric": {"name": "e"}, "target": {"type": "Value", "value": "5"}}},
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
        ]);
        let behavior = json!({"scaleDown": {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 50, "periodSeconds": 30}]}});
        let v2 = json!({"metadata": {"name": "h"}, "spec": {"metrics": metrics, "behavior": behavior}, "status": {}});
        let mut object = v2.as_object().cloned().unwrap();
        to_v1(&mut object);
        assert_eq!(object.at(&["spec"]), Some(&json!({CPU_TARGET: 50})));
        from_v1(&mut object);
        assert_eq!(Value::Object(object), v2);
    }
}
