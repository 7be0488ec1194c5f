//! Makes room for a pod by removing less important ones, where that helps.
//!
//! On each node that could help, all pods of lower priority are taken away in thought; if the pod then fits, as many as possible are
//! put back, the most important first. Of the nodes left, the one whose victims matter least is chosen.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::fit::explain;
use crate::framework::{Plugin, PostFilter, PostFilterInput, PostFilterResult, Snapshot, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

pub(crate) struct DefaultPreemption;

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        "DefaultPreemption"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        event == Event::AssignedPodDeleted
    }
}

impl PostFilter for DefaultPreemption {
    fn post_filter(&self, input: &PostFilterInput<'_>) -> PostFilterResult {
        let message = |text: &str| PostFilterResult { message: format!("preemption: {text}"), ..Default::default() };
        if input.pod.spec().and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never") {
            return message("not eligible due to preemptionPolicy=Never.");
        }
        if is_waiting_for_victims(input) {
            return message("not eligible due to a terminating pod on the nominated node.");
        }
        let mut reasons = Vec::new();
        let mut best: Option<(Arc<NodeInfo>, Vec<Arc<PodInfo>>)> = None;
        for (node, verdict) in input.snapshot.nodes.iter().zip(input.verdicts) {
            if !matches!(verdict, Verdict::Unschedulable(_)) {
                reasons.push(Verdict::unresolvable(NOT_HELPFUL));
                continue;
            }
            match victims_on(input, node) {
                Err(reason) => reasons.push(reason),
                Ok(victims) => {
                    if best.as_ref().is_none_or(|(_, others)| cost(&victims) < cost(others)) {
                        best = Some((node.clone(), victims));
                    }
                }
            }
        }
        match best {
            None => message(&explain(input.snapshot.nodes.len(), &reasons)),
            Some((node, victims)) => PostFilterResult {
                nominated_node: Some(node.name.clone()),
                victims: victims.iter().map(|victim| victim.pod.clone()).collect(),
                message: String::new(),
            },
        }
    }
}

/// Room is being made already: another round would remove more than needed.
fn is_waiting_for_victims(input: &PostFilterInput<'_>) -> bool {
    let nominated = input.pod.pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    let Some(node) = input.snapshot.nodes.iter().find(|node| Some(node.name.as_str()) == nominated) else {
        return false;
    };
    node.pods.values().any(|other| other.is_terminating() && other.priority < input.pod.priority)
}

fn victims_on(input: &PostFilterInput<'_>, node: &Arc<NodeInfo>) -> Result<Vec<Arc<PodInfo>>, Verdict> {
    let mut lower: Vec<_> = node.pods.values().filter(|other| other.priority < input.pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err(Verdict::unresolvable(NO_VICTIMS));
    }
    let mut changed = (**node).clone();
    for pod in &lower {
        changed.remove_pod(pod.uid());
    }
    let fits = |changed: &NodeInfo| (input.fits)(&with_node(input.snapshot, changed), changed);
    if !fits(&changed) {
        return Err(Verdict::unresolvable(NO_VICTIMS));
    }
    // The important and the long-running are spared first.
    lower.sort_by_key(|pod| (Reverse(pod.priority), started(pod)));
    let mut victims = Vec::new();
    for pod in lower {
        changed.add_pod(pod.clone());
        if !fits(&changed) {
            changed.remove_pod(pod.uid());
            victims.push(pod);
        }
    }
    Ok(victims)
}

fn with_node(snapshot: &Snapshot, changed: &NodeInfo) -> Snapshot {
    let changed = Arc::new(changed.clone());
    let replace = |node: &Arc<NodeInfo>| if node.name == changed.name { changed.clone() } else { node.clone() };
    Snapshot { nodes: snapshot.nodes.iter().map(replace).collect(), namespaces: snapshot.namespaces.clone() }
}

fn started(pod: &PodInfo) -> Option<jiff::Timestamp> {
    pod.pod.status.as_ref()?.start_time.as_ref().map(|time| time.0)
}

/// Highest victim priority, sum of priorities, number of victims, and how recently the most important one started.
fn cost(victims: &[Arc<PodInfo>]) -> (i32, i64, usize, Reverse<Option<jiff::Timestamp>>) {
    let highest = victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
    // Shifted, so that many negative priorities do not look cheaper than few.
    let sum = victims.iter().map(|victim| i64::from(victim.priority) - i64::from(i32::MIN)).sum();
    let earliest =
        victims.iter().filter(|victim| victim.priority == highest).filter_map(|victim| started(victim)).min();
    (highest, sum, victims.len(), Reverse(earliest))
}
