//! Decides on which nodes a DaemonSet's pod is missing, and which pods go.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};

use super::ByNode;
use crate::history::REVISION_HASH;
use crate::int_or_percent::{Round, scaled};
use crate::placement::{matches_affinity, tolerates_all};
use crate::{meta, pod, pod_control};

/// Daemon pods stay through the troubles of their node.
const TOLERATED: [(&str, &str); 6] = [
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
];

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Names of nodes.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Failed pods and their nodes: removed, too, but not without pause.
    pub(super) failed: Vec<(String, Arc<Pod>)>,
}

/// A pod not scheduled yet belongs to the node its affinity names.
pub(super) fn by_node(pods: &[Arc<Pod>]) -> ByNode {
    let mut all = ByNode::new();
    for pod in pods {
        if let Some(node) = target(pod) {
            all.entry(node.to_owned()).or_default().push(pod.clone());
        }
    }
    all
}

fn target(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        return Some(node);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let field =
        terms.iter().flat_map(|term| term.match_fields.iter().flatten()).find(|field| field.key == "metadata.name")?;
    field.values.as_ref()?.first().map(String::as_str)
}

/// Whether the pod belongs on the node, and whether one that is there may stay.
pub(super) fn should_run(set: &DaemonSet, node: &Node) -> (bool, bool) {
    let Some(spec) = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()) else { return (false, false) };
    let mut spec = spec.clone();
    add_tolerations(&mut spec);
    let named = spec.node_name.as_deref().is_none_or(|name| name.is_empty() || name == meta::name(node));
    if !named || !matches_affinity(&spec, node) {
        return (false, false);
    }
    (tolerates_all(&spec, node, &["NoSchedule", "NoExecute"]), tolerates_all(&spec, node, &["NoExecute"]))
}

fn add_tolerations(spec: &mut PodSpec) {
    let host_network = spec.host_network == Some(true);
    let network = host_network.then_some(("network-unavailable", "NoSchedule"));
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Default::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
}

/// The set's pod for one node.
pub(super) fn pod_for(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let Some(spec) = &set.spec else { return Pod::default() };
    let mut pod = pod_control::from_template(set, &spec.template);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(REVISION_HASH.into(), hash.to_owned());
    let generation = meta::annotation(set, "deprecated.daemonset.template.generation").map(str::to_owned);
    let generation = generation.or_else(|| set.metadata.generation.map(|generation| generation.to_string()));
    labels.extend(generation.map(|generation| ("pod-template-generation".to_owned(), generation)));
    let spec = pod.spec.get_or_insert_default();
    add_tolerations(spec);
    pin(spec, node);
    pod
}

/// Replaces the required node terms, which the node was checked against already; other affinities stay.
fn pin(spec: &mut PodSpec, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector =
        affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    required.node_selector_terms = vec![NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![field]) }];
}

pub(super) fn plan(set: &DaemonSet, nodes: &[Arc<Node>], by_node: &ByNode, hash: &str, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let surges = max_surge(set, 1) > 0;
    for node in nodes {
        let name = meta::name(&**node);
        let pods = by_node.get(name).map(Vec::as_slice).unwrap_or_default();
        let (should_run, may_stay) = should_run(set, node);
        let mut running: Vec<_> = pods.iter().filter(|pod| pod::is_active(pod)).cloned().collect();
        if !may_stay {
            plan.delete.append(&mut running);
            continue;
        }
        for pod in pods.iter().filter(|pod| !meta::is_deleting(&***pod)) {
            match pod::phase(pod) {
                "Failed" => plan.failed.push((name.to_owned(), pod.clone())),
                "Succeeded" => plan.delete.push(pod.clone()),
                _ => (),
            }
        }
        // Without surge a node's next pod waits until the last one is really gone.
        if should_run && (pods.is_empty() || (surges && running.is_empty())) {
            plan.create.push(name.to_owned());
        }
        running.sort_by_key(|pod| (pod::node_name(pod).is_empty(), meta::created(&**pod)));
        let keep = |of_new: bool| {
            running.iter().find(|pod| !surges || is_new(pod, hash) == of_new).map(|pod| meta::uid(&**pod).to_owned())
        };
        let kept = [keep(false), keep(true)];
        plan.delete.extend(running.iter().filter(|pod| !kept.contains(&Some(meta::uid(&***pod).to_owned()))).cloned());
    }
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref()?.type_.as_deref());
    if strategy != Some("OnDelete") && plan.create.is_empty() && plan.delete.is_empty() && plan.failed.is_empty() {
        roll(&mut plan, set, nodes, by_node, hash, now);
    }
    plan
}

fn is_new(pod: &Pod, hash: &str) -> bool {
    meta::labels(pod).get(REVISION_HASH).is_some_and(|of| of == hash)
}

fn rolling(set: &DaemonSet) -> Option<&k8s_openapi::api::apps::v1::RollingUpdateDaemonSet> {
    set.spec.as_ref()?.update_strategy.as_ref()?.rolling_update.as_ref()
}

fn max_surge(set: &DaemonSet, desired: i32) -> i32 {
    scaled(rolling(set).and_then(|rolling| rolling.max_surge.as_ref()), desired, Round::Up)
}

/// One step of a rolling update: with surge the new pod comes first, without it the old one goes first.
fn roll(plan: &mut Plan, set: &DaemonSet, nodes: &[Arc<Node>], by_node: &ByNode, hash: &str, now: Timestamp) {
    let wanted: Vec<&str> =
        nodes.iter().filter(|node| should_run(set, node).0).map(|node| meta::name(&**node)).collect();
    let desired = i32::try_from(wanted.len()).unwrap_or(i32::MAX);
    let surge = max_surge(set, desired);
    let unavailable = match rolling(set).and_then(|rolling| rolling.max_unavailable.as_ref()) {
        Some(given) => scaled(Some(given), desired, Round::Up),
        None => 1,
    };
    let (surge, unavailable) = if surge == 0 { (0, unavailable.max(1)) } else { (surge, unavailable) };
    let min_ready = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let available = |pod: &Pod| pod::is_available(pod, min_ready, now);
    let (mut missing, mut surging) = (0, 0);
    let mut candidates = Vec::new();
    for node in wanted {
        let pods = by_node.get(node).map(Vec::as_slice).unwrap_or_default();
        let find = |of_new: bool| pods.iter().find(|pod| pod::is_active(pod) && is_new(pod, hash) == of_new);
        match (find(false), find(true)) {
            (None, None) => missing += 1,
            (None, Some(new)) => missing += i32::from(!available(new)),
            (Some(old), Some(new)) if available(new) => plan.delete.push(old.clone()),
            (Some(_), Some(_)) => surging += 1,
            (Some(old), None) if !available(old) && surge == 0 => {
                // Replacing what does not work costs nothing.
                missing += 1;
                plan.delete.push(old.clone());
            }
            (Some(old), None) if !available(old) => plan.create.push(node.to_owned()),
            (Some(old), None) => candidates.push((node, old.clone())),
        }
    }
    if surge > 0 {
        let room = usize::try_from(surge - surging).unwrap_or(0);
        plan.create.extend(candidates.into_iter().take(room).map(|(node, _)| node.to_owned()));
    } else {
        let room = usize::try_from(unavailable - missing).unwrap_or(0);
        plan.delete.extend(candidates.into_iter().take(room).map(|(_, old)| old));
    }
}

#[cfg(test)]
mod tests;
