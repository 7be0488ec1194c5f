//! Rejects nodes that carry a `NoSchedule` or `NoExecute` taint the pod does not tolerate, and prefers those without soft ones.

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::framework::{Cycle, Filter, Plugin, Score, Verdict, default_normalize};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const REASON: &str = "node(s) had untolerated taint(s)";

pub(crate) struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        matches!(event, Event::NodeAdded | Event::NodeTaints)
    }
}

impl Filter for TaintToleration {
    fn filter(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        // Evicting pods cannot remove a taint, so preemption must not be tried.
        if is_repelled(pod, node) { Verdict::unresolvable(REASON) } else { Verdict::Fits }
    }
}

/// A taint keeps the pod from being scheduled to the node.
pub(crate) fn is_repelled(pod: &PodInfo, node: &NodeInfo) -> bool {
    let hard = node.taints().iter().filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.into_iter().any(|taint| !tolerates(pod, taint))
}

impl Score for TaintToleration {
    fn weight(&self) -> i64 {
        3
    }

    fn score(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let soft = node.taints().iter().filter(|taint| taint.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerates(pod, taint)).count() as i64
    }

    fn normalize(&self, _: &Cycle, scores: &mut [i64]) {
        default_normalize(scores, true);
    }
}

pub(crate) fn tolerates(pod: &PodInfo, taint: &Taint) -> bool {
    let tolerations = pod.spec().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    tolerations.iter().any(|toleration| covers(toleration, taint))
}

/// An absent key with `Exists` covers every taint, an absent effect every effect.
fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    let values = (toleration.value.as_deref().unwrap_or_default(), taint.value.as_deref().unwrap_or_default());
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && values.0 == values.1,
        "Lt" | "Gt" => match (values.0.parse::<i64>(), values.1.parse::<i64>()) {
            (Ok(bound), Ok(value)) if toleration.operator.as_deref() == Some("Lt") => value < bound,
            (Ok(bound), Ok(value)) => value > bound,
            _ => false,
        },
        _ => false,
    }
}
