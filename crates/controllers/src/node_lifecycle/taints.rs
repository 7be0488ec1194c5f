//! The taints a node's conditions call for.

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::health;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Condition, the status that calls for the taint, the taint.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// The node's taints as they should be, if they are not. Users' taints stay where they are.
pub(super) fn changed(node: &Node, now: Time) -> Option<Vec<Taint>> {
    let known = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let wanted = wanted(node);
    let is_ours = |taint: &Taint| {
        let key = taint.key.as_str();
        match taint.effect.as_str() {
            NO_SCHEDULE => key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, ours)| *ours == key),
            NO_EXECUTE => key == NOT_READY || key == UNREACHABLE,
            _ => false,
        }
    };
    let has = |taint: &Taint| wanted.iter().any(|(key, effect)| *key == taint.key && *effect == taint.effect);
    let mut taints: Vec<Taint> = known.iter().filter(|taint| !is_ours(taint) || has(taint)).cloned().collect();
    for (key, effect) in wanted {
        if !taints.iter().any(|taint| taint.key == key && taint.effect == effect) {
            let time_added = Some(now.clone());
            taints.push(Taint { key: key.into(), effect: effect.into(), time_added, value: None });
        }
    }
    (taints != known).then_some(taints)
}

fn wanted(node: &Node) -> Vec<(&'static str, &'static str)> {
    let conditions = || node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let called_for = BY_CONDITION.iter().filter(|(kind, status, _)| {
        conditions().any(|condition| condition.type_ == *kind && condition.status == *status)
    });
    let mut wanted: Vec<_> = called_for.map(|(_, _, key)| (*key, NO_SCHEDULE)).collect();
    if health::ready(node).is_none() {
        // Nothing is known yet: the taint the node was born with stays.
        wanted.push((NOT_READY, NO_SCHEDULE));
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    match health::ready(node).map(|ready| ready.status.as_str()) {
        Some("False") => wanted.push((NOT_READY, NO_EXECUTE)),
        Some("Unknown") => wanted.push((UNREACHABLE, NO_EXECUTE)),
        _ => (),
    }
    wanted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Conditions as "Ready=True", taints as "key:effect" without the common prefix.
    #[track_caller]
    fn check(conditions: &str, taints: &str, want: &str) {
        let split = |text: &str, by: char| -> Vec<(String, String)> {
            text.split_whitespace().filter_map(|word| word.split_once(by)).map(|(a, b)| (a.into(), b.into())).collect()
        };
        let prefixed = |key: &str| if key == "mine" { key.to_owned() } else { format!("node.kubernetes.io/{key}") };
        let node: Node = serde_json::from_value(json!({
            "spec": { "unschedulable": conditions.contains("cordoned"),
                "taints": split(taints, ':').iter().map(|(k, e)| json!({ "key": prefixed(k), "effect": e })).collect::<Vec<_>>() },
            "status": { "conditions": split(conditions, '=').iter().map(|(k, s)| json!({ "type": k, "status": s })).collect::<Vec<_>>() },
        }))
        .unwrap();
        let now = Time(jiff::Timestamp::UNIX_EPOCH);
        let got = changed(&node, now).map(|taints| {
            let text =
                |taint: &Taint| format!("{}:{}", taint.key.trim_start_matches("node.kubernetes.io/"), taint.effect);
            taints.iter().map(text).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(got.as_deref().unwrap_or("unchanged"), want, "{conditions} | {taints}");
    }

    #[test]
    fn a_new_node_loses_its_taint_when_it_is_ready_and_not_before() {
        check("", "not-ready:NoSchedule", "unchanged");
        check("Ready=True", "not-ready:NoSchedule", "");
        check("Ready=True", "not-ready:NoSchedule mine:NoSchedule", "mine:NoSchedule");
    }

    #[test]
    fn conditions_become_taints() {
        check("Ready=False", "not-ready:NoSchedule", "not-ready:NoSchedule not-ready:NoExecute");
        check(
            "Ready=Unknown",
            "not-ready:NoSchedule not-ready:NoExecute",
            "unreachable:NoSchedule unreachable:NoExecute",
        );
        check("Ready=True MemoryPressure=True", "", "memory-pressure:NoSchedule");
        check("Ready=True cordoned", "", "unschedulable:NoSchedule");
        check("Ready=True", "unschedulable:NoSchedule", "");
        check("Ready=True", "", "unchanged");
    }
}
