//! Nodes must match the pod's `nodeSelector` and required node affinity; preferred terms add to the score.

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorRequirement, NodeSelectorTerm};

use crate::framework::{Cycle, Filter, Plugin, Score, Verdict, default_normalize};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const REASON: &str = "node(s) didn't match Pod's node affinity/selector";

pub(crate) struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        matches!(event, Event::NodeAdded | Event::NodeLabels)
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        if matches(pod, node) { Verdict::Fits } else { Verdict::unresolvable(REASON) }
    }
}

impl Score for NodeAffinity {
    fn weight(&self) -> i64 {
        2
    }

    fn score(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let preferred = affinity(pod).and_then(|all| all.preferred_during_scheduling_ignored_during_execution.as_ref());
        let matching = preferred.into_iter().flatten().filter(|term| {
            // An empty preference is no preference: it holds everywhere.
            is_empty(&term.preference) || term_matches(&term.preference, node)
        });
        matching.map(|term| i64::from(term.weight)).sum()
    }

    fn normalize(&self, _: &Cycle, scores: &mut [i64]) {
        default_normalize(scores, false);
    }
}

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.spec()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// `nodeSelector` and required affinity must both hold.
pub(crate) fn matches(pod: &PodInfo, node: &NodeInfo) -> bool {
    let labels = node.labels();
    let wanted = pod.spec().and_then(|spec| spec.node_selector.as_ref());
    let selected = wanted.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = affinity(pod).and_then(|all| all.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

fn is_empty(term: &NodeSelectorTerm) -> bool {
    let none = |list: &Option<Vec<NodeSelectorRequirement>>| list.as_ref().is_none_or(Vec::is_empty);
    none(&term.match_expressions) && none(&term.match_fields)
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let label = |requirement: &NodeSelectorRequirement| {
        holds(requirement, node.labels().get(&requirement.key).map(String::as_str))
    };
    let field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && holds(requirement, Some(&node.name))
    };
    !is_empty(term)
        && term.match_expressions.iter().flatten().all(label)
        && term.match_fields.iter().flatten().all(field)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |value: &str| values.iter().any(|wanted| wanted == value);
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(own, bound)| own > bound),
        "Lt" => numbers().is_some_and(|(own, bound)| own < bound),
        _ => false,
    }
}
