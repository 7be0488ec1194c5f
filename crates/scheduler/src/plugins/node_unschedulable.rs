//! Cordoned nodes take only pods that tolerate it.

use k8s_openapi::api::core::v1::Taint;

use super::taint_toleration::tolerates;
use crate::framework::{Cycle, Filter, Plugin, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const REASON: &str = "node(s) were unschedulable";

pub(crate) struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        matches!(event, Event::NodeAdded | Event::NodeTaints)
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        let cordon =
            Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Default::default() };
        if node.is_unschedulable() && !tolerates(pod, &cordon) { Verdict::unresolvable(REASON) } else { Verdict::Fits }
    }
}
