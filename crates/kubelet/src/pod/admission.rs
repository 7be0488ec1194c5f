//! Whether a pod that was bound to this node can run here: resources, node selector, affinity, host ports, taints.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};

use super::worker::Rejection;
use crate::{resources, spec};

/// What the node has when its object is not known.
pub(crate) struct Room {
    pub(crate) cpus: i64,
    pub(crate) memory: i64,
    pub(crate) pods: i64,
}

fn reject(reason: &str, message: String) -> Result<(), Rejection> {
    Err(Rejection { reason: reason.to_owned(), message, ..Rejection::default() })
}

pub(crate) fn admit(pod: &Pod, node: Option<&Node>, others: &[Arc<Pod>], room: &Room) -> Result<(), Rejection> {
    let pod_os = spec::spec(pod).os.as_ref().map(|os| os.name.as_str());
    if pod_os.is_some_and(|os| os != "linux") {
        return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS".to_owned());
    }
    fits(pod, node, others, room)?;
    let labels = node.and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
    if node.is_some() && !selected(pod, &labels, spec::spec(pod).node_name.as_deref().unwrap_or_default()) {
        return reject(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".to_owned(),
        );
    }
    if others.iter().any(|other| ports_clash(pod, other)) {
        return reject(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".to_owned(),
        );
    }
    let taints = node.and_then(|node| node.spec.as_ref()).and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tolerations = spec::spec(pod).tolerations.as_deref().unwrap_or_default();
    let repels = |taint: &&Taint| taint.effect == "NoExecute" && !tolerations.iter().any(|t| tolerates(t, taint));
    if !spec::is_static(pod) && taints.iter().find(repels).is_some() {
        let message = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate".to_owned();
        return reject("TaintToleration", message);
    }
    Ok(())
}

fn fits(pod: &Pod, node: Option<&Node>, others: &[Arc<Pod>], room: &Room) -> Result<(), Rejection> {
    let allocatable = node.and_then(|node| node.status.as_ref()).and_then(|status| status.allocatable.as_ref());
    let has = |name: &str, fallback: i64, milli: bool| {
        let found = resources::amount(allocatable, name);
        found.map_or(fallback, |quantity| if milli { quantity.milli_value() } else { quantity.value() })
    };
    let short = |name: &str, requested: i64, used: i64, capacity: i64| {
        let message = format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        reject(&format!("OutOf{name}"), message)
    };
    let pods = has("pods", room.pods, false);
    let count = i64::try_from(others.len()).unwrap_or(i64::MAX);
    if count + 1 > pods {
        return short("pods", 1, count, pods);
    }
    for (name, fallback, milli) in [("cpu", room.cpus * 1000, true), ("memory", room.memory, false)] {
        let value = |q: Quantity| if milli { q.milli_value() } else { q.value() };
        let of = |pod: &Pod| resources::pod_request(pod, name).map_or(0, value);
        let (requested, capacity) = (of(pod), has(name, fallback, milli));
        let used: i64 = others.iter().map(|other| of(other)).sum();
        if requested > 0 && requested > capacity - used {
            return short(name, requested, used, capacity);
        }
    }
    Ok(())
}

fn selected(pod: &Pod, labels: &BTreeMap<String, String>, node_name: &str) -> bool {
    let pod_spec = spec::spec(pod);
    let simple = pod_spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = pod_spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let by_affinity = required
        .is_none_or(|selector| selector.node_selector_terms.iter().any(|term| term_fits(term, labels, node_name)));
    simple && by_affinity
}

fn term_fits(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node_name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let by_name = |field: &NodeSelectorRequirement| field.key == "metadata.name" && requirement(field, Some(node_name));
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|expression| requirement(expression, labels.get(&expression.key).map(String::as_str)))
        && fields.iter().all(by_name)
}

fn requirement(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    let compare = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match wanted.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare().is_some_and(|(own, wanted)| own > wanted),
        "Lt" => compare().is_some_and(|(own, wanted)| own < wanted),
        _ => false,
    }
}

fn ports_clash(a: &Pod, b: &Pod) -> bool {
    let ports = |pod: &Pod| {
        let sidecars = spec::init_containers(pod).iter().filter(|container| spec::is_sidecar(container));
        let all =
            sidecars.chain(spec::containers(pod)).flat_map(|container| container.ports.clone().unwrap_or_default());
        all.filter(|port| port.host_port.unwrap_or(0) > 0).collect::<Vec<_>>()
    };
    let theirs = ports(b);
    let any = |ip: &Option<String>| matches!(ip.as_deref(), None | Some("" | "0.0.0.0"));
    ports(a).iter().any(|own| {
        theirs.iter().any(|other| {
            own.host_port == other.host_port
                && own.protocol.as_deref().unwrap_or("TCP") == other.protocol.as_deref().unwrap_or("TCP")
                && (any(&own.host_ip) || any(&other.host_ip) || own.host_ip == other.host_ip)
        })
    })
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Arc<Pod> {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{ "name": "c" }]);
        }
        Arc::new(serde_json::from_value(json!({ "metadata": {}, "spec": spec })).expect("a pod"))
    }

    fn asks(cpu: &str) -> Value {
        json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] })
    }

    fn port(port: i32) -> Value {
        json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": port }] }] })
    }

    #[track_caller]
    fn check(spec: Value, others: &[Value], want: Option<(&str, &str)>) {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "labels": { "disk": "ssd" } },
            "spec": { "taints": [{ "key": "k", "effect": "NoExecute" }] },
            "status": { "allocatable": { "cpu": "2", "memory": "1Gi", "pods": "3" } },
        }))
        .expect("a node");
        let mut spec = spec;
        if spec.get("tolerations").is_none() {
            spec["tolerations"] = json!([{ "operator": "Exists" }]);
        }
        let others: Vec<_> = others.iter().cloned().map(pod).collect();
        let room = Room { cpus: 1, memory: 1, pods: 1 };
        let got = admit(&pod(spec), Some(&node), &others, &room).err();
        let got = got.as_ref().map(|rejection| (rejection.reason.as_str(), rejection.message.as_str()));
        assert_eq!(got, want);
    }

    #[test]
    fn what_does_not_fit_is_rejected() {
        check(asks("2"), &[], None);
        check(
            asks("1"),
            &[asks("1500m")],
            Some(("OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000")),
        );
        check(
            json!({}),
            &[json!({}), json!({}), json!({})],
            Some(("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3")),
        );
        check(json!({ "nodeSelector": { "disk": "ssd" } }), &[], None);
        let affinity =
            Some(("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"));
        check(json!({ "nodeSelector": { "disk": "hdd" } }), &[], affinity);
        check(port(80), &[port(81)], None);
        let ports = Some((
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ));
        check(port(80), &[port(80)], ports);
        let taint = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
        check(json!({ "tolerations": [] }), &[], Some(("TaintToleration", taint)));
    }
}
