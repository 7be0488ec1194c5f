//! One scheduling decision: which node is the best for a pod, or why none is.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::framework::{Cycle, Framework, PostFilterInput, PostFilterResult, Snapshot, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Rejection;

/// No node was right.
#[derive(Debug)]
pub(crate) struct FitError {
    pub(crate) message: String,
    pub(crate) rejected_by: Vec<Rejection>,
    pub(crate) preemption: PostFilterResult,
}

/// Pods for which room is being made elsewhere, with their nodes.
pub(crate) type Nominated = [(String, Arc<PodInfo>)];

/// `tie` decides between nodes of the same score, so that they take turns.
pub(crate) fn select_node(
    framework: &Framework,
    pod: &PodInfo,
    snapshot: &Snapshot,
    nominated: &Nominated,
    tie: u64,
) -> Result<String, FitError> {
    if snapshot.nodes.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        return Err(FitError { message, rejected_by: Vec::new(), preemption: PostFilterResult::default() });
    }
    let mut cycle = Cycle::default();
    let mut rejected_by = Vec::new();
    let verdicts = match pre_filter(framework, &mut cycle, pod, snapshot) {
        Ok(()) => filter_all(framework, &cycle, pod, snapshot, nominated, &mut rejected_by),
        Err((plugin, verdict)) => {
            note(&mut rejected_by, plugin, &verdict);
            vec![verdict; snapshot.nodes.len()]
        }
    };
    let fits = snapshot.nodes.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Fits);
    let feasible: Vec<Arc<NodeInfo>> = fits.map(|(node, _)| node.clone()).collect();
    match feasible.as_slice() {
        [] => Err(fit_error(framework, pod, snapshot, nominated, &verdicts, rejected_by)),
        [only] => Ok(only.name.clone()),
        _ => Ok(best(framework, &mut cycle, pod, snapshot, &feasible, tie)),
    }
}

fn pre_filter(
    framework: &Framework,
    cycle: &mut Cycle,
    pod: &PodInfo,
    snapshot: &Snapshot,
) -> Result<(), (&'static str, Verdict)> {
    for plugin in &framework.pre_filter {
        plugin.pre_filter(cycle, pod, snapshot).map_err(|verdict| (plugin.name(), verdict))?;
    }
    Ok(())
}

fn filter_all(
    framework: &Framework,
    cycle: &Cycle,
    pod: &PodInfo,
    snapshot: &Snapshot,
    nominated: &Nominated,
    rejected_by: &mut Vec<Rejection>,
) -> Vec<Verdict> {
    let mut verdicts = Vec::with_capacity(snapshot.nodes.len());
    for node in &snapshot.nodes {
        let (plugin, verdict) = filter_with_nominated(framework, cycle, pod, node, nominated);
        if let Some(plugin) = plugin {
            note(rejected_by, plugin, &verdict);
        }
        verdicts.push(verdict);
    }
    verdicts
}

fn note(rejected_by: &mut Vec<Rejection>, plugin: &'static str, verdict: &Verdict) {
    let resolvable = matches!(verdict, Verdict::Unschedulable(_));
    match rejected_by.iter_mut().find(|known| known.plugin == plugin) {
        Some(known) => known.resolvable |= resolvable,
        None => rejected_by.push(Rejection { plugin, resolvable }),
    }
}

/// A node must have room for the pod beside those nominated to it, and also if they do not come.
fn filter_with_nominated(
    framework: &Framework,
    cycle: &Cycle,
    pod: &PodInfo,
    node: &NodeInfo,
    nominated: &Nominated,
) -> (Option<&'static str>, Verdict) {
    let mut here = nominated.iter().filter(|(name, _)| *name == node.name).peekable();
    if here.peek().is_some() {
        let mut crowded = node.clone();
        here.for_each(|(_, other)| crowded.add_pod(other.clone()));
        let (plugin, verdict) = filter(framework, cycle, pod, &crowded);
        if verdict != Verdict::Fits {
            return (plugin, verdict);
        }
    }
    filter(framework, cycle, pod, node)
}

fn filter(framework: &Framework, cycle: &Cycle, pod: &PodInfo, node: &NodeInfo) -> (Option<&'static str>, Verdict) {
    for plugin in &framework.filter {
        match plugin.filter(cycle, pod, node) {
            Verdict::Fits => (),
            verdict => return (Some(plugin.name()), verdict),
        }
    }
    (None, Verdict::Fits)
}

fn fit_error(
    framework: &Framework,
    pod: &PodInfo,
    snapshot: &Snapshot,
    nominated: &Nominated,
    verdicts: &[Verdict],
    rejected_by: Vec<Rejection>,
) -> FitError {
    let fits = |snapshot: &Snapshot, node: &NodeInfo| {
        let mut cycle = Cycle::default();
        pre_filter(framework, &mut cycle, pod, snapshot).is_ok()
            && filter_with_nominated(framework, &cycle, pod, node, nominated).1 == Verdict::Fits
    };
    let input = PostFilterInput { pod, snapshot, verdicts, fits: &fits };
    let preemption = framework.post_filter.first().map(|plugin| plugin.post_filter(&input)).unwrap_or_default();
    let mut message = explain(snapshot.nodes.len(), verdicts);
    if !preemption.message.is_empty() {
        message = format!("{message} {}", preemption.message);
    }
    FitError { message, rejected_by, preemption }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).`
pub(crate) fn explain(nodes: usize, verdicts: &[Verdict]) -> String {
    let mut histogram: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in verdicts.iter().flat_map(Verdict::reasons) {
        *histogram.entry(reason).or_default() += 1;
    }
    let mut reasons: Vec<String> = histogram.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort_unstable();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" {}.", reasons.join(", ")) };
    format!("0/{nodes} nodes are available:{reasons}")
}

fn best(
    framework: &Framework,
    cycle: &mut Cycle,
    pod: &PodInfo,
    snapshot: &Snapshot,
    feasible: &[Arc<NodeInfo>],
    tie: u64,
) -> String {
    let mut totals = vec![0_i64; feasible.len()];
    for plugin in &framework.score {
        plugin.pre_score(cycle, pod, feasible, snapshot);
        let mut scores: Vec<i64> = feasible.iter().map(|node| plugin.score(cycle, pod, node)).collect();
        plugin.normalize(cycle, &mut scores);
        for (total, score) in totals.iter_mut().zip(scores) {
            *total += score * plugin.weight();
        }
    }
    let highest = totals.iter().copied().max().unwrap_or(0);
    let winners: Vec<&Arc<NodeInfo>> =
        feasible.iter().zip(&totals).filter(|(_, total)| **total == highest).map(|(node, _)| node).collect();
    let turn = usize::try_from(tie % winners.len().max(1) as u64).unwrap_or(0);
    winners.get(turn).map(|node| node.name.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
