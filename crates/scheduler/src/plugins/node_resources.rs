//! Pods go where what they ask for is free; emptier and more evenly used nodes are preferred.

use crate::framework::{Cycle, Filter, MAX_NODE_SCORE, Plugin, Score, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;
use crate::resources::Resources;

pub(crate) struct NodeResourcesFit;

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        matches!(event, Event::NodeAdded | Event::NodeAllocatable | Event::AssignedPodDeleted)
    }
}

impl Filter for NodeResourcesFit {
    fn filter(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        let mut reasons = Vec::new();
        let mut hopeless = false;
        if node.pods.len() as i64 + 1 > node.allowed_pods {
            reasons.push("Too many pods".to_owned());
        }
        for (name, asked, used, total) in amounts(&pod.requests, node) {
            if asked > 0 && asked > total - used {
                reasons.push(format!("Insufficient {name}"));
                // Even an empty node would be too small.
                hopeless |= asked > total;
            }
        }
        match (reasons.is_empty(), hopeless) {
            (true, _) => Verdict::Fits,
            (false, false) => Verdict::Unschedulable(reasons),
            (false, true) => Verdict::Unresolvable(reasons),
        }
    }
}

/// Name, asked, used and total of every resource the pod asks for.
fn amounts<'a>(asked: &'a Resources, node: &'a NodeInfo) -> impl Iterator<Item = (&'a str, i64, i64, i64)> {
    let (used, total) = (&node.requested, &node.allocatable);
    let known = [
        ("cpu", asked.milli_cpu, used.milli_cpu, total.milli_cpu),
        ("memory", asked.memory, used.memory, total.memory),
        ("ephemeral-storage", asked.ephemeral_storage, used.ephemeral_storage, total.ephemeral_storage),
    ];
    let of = |list: &std::collections::BTreeMap<String, i64>, name: &str| list.get(name).copied().unwrap_or(0);
    let scalar = asked
        .scalar
        .iter()
        .map(move |(name, asked)| (name.as_str(), *asked, of(&used.scalar, name), of(&total.scalar, name)));
    known.into_iter().chain(scalar)
}

impl Score for NodeResourcesFit {
    fn weight(&self) -> i64 {
        1
    }

    /// Least allocated: the mean share of CPU and memory that stays free.
    fn score(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let shares = fractions(&node.nonzero, Some(&pod.nonzero), &node.allocatable);
        let scores: Vec<i64> = shares.iter().map(|(used, total)| least_requested(*used, *total)).collect();
        if scores.is_empty() { 0 } else { scores.iter().sum::<i64>() / scores.len() as i64 }
    }
}

fn least_requested(used: i64, total: i64) -> i64 {
    if used > total { 0 } else { (total - used).saturating_mul(MAX_NODE_SCORE) / total }
}

/// Used and total of CPU and memory, where the node has any, with the pod counted if it is given.
fn fractions(used: &Resources, pod: Option<&Resources>, total: &Resources) -> Vec<(i64, i64)> {
    let with = |used: i64, of: fn(&Resources) -> i64| used + pod.map_or(0, of);
    let all = [
        (with(used.milli_cpu, |all| all.milli_cpu), total.milli_cpu),
        (with(used.memory, |all| all.memory), total.memory),
    ];
    all.into_iter().filter(|(_, total)| *total > 0).collect()
}

pub(crate) struct NodeResourcesBalancedAllocation;

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn is_helped_by(&self, _: Event) -> bool {
        false
    }
}

impl Score for NodeResourcesBalancedAllocation {
    fn weight(&self) -> i64 {
        1
    }

    /// How much more (above 75) or less (below) evenly CPU and memory are used with the pod than without.
    fn score(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> i64 {
        // A pod that asks for nothing says nothing about balance.
        if pod.requests == Resources::default() {
            return 0;
        }
        let balance = |pod| evenness(&fractions(&node.requested, pod, &node.allocatable));
        let gain = balance(Some(&pod.requests)) - balance(None);
        MAX_NODE_SCORE / 2 + (MAX_NODE_SCORE / 2 + gain) / 2
    }
}

fn evenness(shares: &[(i64, i64)]) -> i64 {
    let share = |(used, total): &(i64, i64)| (*used as f64 / *total as f64).min(1.0);
    let spread = match shares {
        [a, b] => (share(a) - share(b)).abs() / 2.0,
        _ => 0.0,
    };
    ((1.0 - spread) * MAX_NODE_SCORE as f64) as i64
}
