//! Keeps a pod's peers evenly spread over zones, hosts or whatever label the pod names.
//!
//! Hard constraints (`DoNotSchedule`) filter, soft ones score. Defaults for pods without constraints are not applied.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use api::selector::Selector;

use super::{node_affinity, taint_toleration};
use crate::framework::{Cycle, Filter, MAX_NODE_SCORE, Plugin, PreFilter, Score, Snapshot, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const REASON: &str = "node(s) didn't match pod topology spread constraints";
const REASON_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

pub(crate) struct PodTopologySpread;

struct Constraint {
    max_skew: i64,
    min_domains: i64,
    key: String,
    selector: Selector,
    match_label_keys: Vec<String>,
    honor_affinity: bool,
    honor_taints: bool,
}

impl Constraint {
    fn of(pod: &PodInfo, hard: bool) -> Vec<Self> {
        let all = pod.spec().and_then(|spec| spec.topology_spread_constraints.as_deref()).unwrap_or_default();
        let wanted = all.iter().filter(|constraint| (constraint.when_unsatisfiable == "DoNotSchedule") == hard);
        let parsed = wanted.map(|constraint| Self {
            max_skew: i64::from(constraint.max_skew),
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            key: constraint.topology_key.clone(),
            selector: Selector::from_label_selector(constraint.label_selector.as_ref()).unwrap_or_default(),
            match_label_keys: constraint.match_label_keys.clone().unwrap_or_default(),
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        });
        parsed.collect()
    }

    fn selects(&self, pod: &PodInfo, other: &PodInfo) -> bool {
        let same = |key: &String| pod.labels().get(key).is_none_or(|value| other.labels().get(key) == Some(value));
        self.selector.matches(other.labels()) && self.match_label_keys.iter().all(same)
    }

    fn counts_node(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        (!self.honor_affinity || node_affinity::matches(pod, node))
            && (!self.honor_taints || !taint_toleration::is_repelled(pod, node))
    }

    fn peers_on(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let mut peers = node.pods.values().filter(|other| {
            other.namespace() == pod.namespace() && !other.is_terminating() && other.uid() != pod.uid()
        });
        if self.selector.is_everything() {
            0
        } else {
            peers.by_ref().filter(|other| self.selects(pod, other)).count() as i64
        }
    }
}

/// A constraint with the number of peers in each domain.
struct Counted {
    constraint: Constraint,
    peers: BTreeMap<String, i64>,
}

struct Hard(Vec<Counted>);
struct Soft {
    counted: Vec<Counted>,
    ignored: HashSet<String>,
    order: Vec<String>,
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        matches!(
            event,
            Event::NodeAdded
                | Event::NodeLabels
                | Event::NodeTaints
                | Event::AssignedPodAdded
                | Event::AssignedPodDeleted
        )
    }
}

fn count(pod: &PodInfo, constraints: Vec<Constraint>, nodes: &[Arc<NodeInfo>]) -> Vec<Counted> {
    let keys: Vec<String> = constraints.iter().map(|constraint| constraint.key.clone()).collect();
    let complete: Vec<_> = nodes.iter().filter(|node| keys.iter().all(|key| node.labels().contains_key(key))).collect();
    let counted = constraints.into_iter().map(|constraint| {
        let mut peers = BTreeMap::new();
        for node in &complete {
            if let Some(domain) = node.labels().get(&constraint.key).filter(|_| constraint.counts_node(pod, node)) {
                *peers.entry(domain.clone()).or_insert(0) += constraint.peers_on(pod, node);
            }
        }
        Counted { constraint, peers }
    });
    counted.collect()
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PodInfo, snapshot: &Snapshot) -> Result<(), Verdict> {
        cycle.set(Hard(count(pod, Constraint::of(pod, true), &snapshot.nodes)));
        Ok(())
    }
}

impl Filter for PodTopologySpread {
    fn filter(&self, cycle: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        let Some(Hard(all)) = cycle.get::<Hard>() else { return Verdict::Fits };
        for Counted { constraint, peers } in all {
            let Some(domain) = node.labels().get(&constraint.key) else { return Verdict::unresolvable(REASON_LABEL) };
            // Too few domains: the missing ones count as empty.
            let fewest = if (peers.len() as i64) < constraint.min_domains {
                0
            } else {
                peers.values().copied().min().unwrap_or(0)
            };
            let itself = i64::from(constraint.selects(pod, pod));
            if peers.get(domain).copied().unwrap_or(0) + itself - fewest > constraint.max_skew {
                return Verdict::unschedulable(REASON);
            }
        }
        Verdict::Fits
    }
}

impl Score for PodTopologySpread {
    fn weight(&self) -> i64 {
        2
    }

    fn pre_score(&self, cycle: &mut Cycle, pod: &PodInfo, feasible: &[Arc<NodeInfo>], snapshot: &Snapshot) {
        let counted = count(pod, Constraint::of(pod, false), &snapshot.nodes);
        let complete = |node: &NodeInfo| counted.iter().all(|one| node.labels().contains_key(&one.constraint.key));
        let ignored = feasible.iter().filter(|node| !complete(node)).map(|node| node.name.clone()).collect();
        let order = feasible.iter().map(|node| node.name.clone()).collect();
        cycle.set(Soft { counted, ignored, order });
    }

    /// Peers in the node's domains, weighted so that constraints with few domains count as much as those with many.
    fn score(&self, cycle: &Cycle, _: &PodInfo, node: &NodeInfo) -> i64 {
        let Some(soft) = cycle.get::<Soft>().filter(|soft| !soft.ignored.contains(&node.name)) else { return 0 };
        let parts = soft.counted.iter().map(|Counted { constraint, peers }| {
            let here = node.labels().get(&constraint.key).and_then(|domain| peers.get(domain)).copied().unwrap_or(0);
            here as f64 * (peers.len() as f64 + 2.0).ln() + (constraint.max_skew - 1) as f64
        });
        parts.sum::<f64>().round() as i64
    }

    fn normalize(&self, cycle: &Cycle, scores: &mut [i64]) {
        let Some(soft) = cycle.get::<Soft>().filter(|soft| !soft.counted.is_empty()) else { return };
        let counts = |index: usize| soft.order.get(index).is_some_and(|name| !soft.ignored.contains(name));
        let known: Vec<i64> =
            scores.iter().enumerate().filter(|(index, _)| counts(*index)).map(|(_, score)| *score).collect();
        let (min, max) = (known.iter().copied().min().unwrap_or(0), known.iter().copied().max().unwrap_or(0));
        for (index, score) in scores.iter_mut().enumerate() {
            *score = match (counts(index), max) {
                (false, _) => 0,
                (true, 0) => MAX_NODE_SCORE,
                (true, max) => MAX_NODE_SCORE * (max + min - *score) / max,
            };
        }
    }
}
