//! A host port can be used once per node.

use crate::framework::{Cycle, Filter, Plugin, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

pub(crate) struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        matches!(event, Event::NodeAdded | Event::AssignedPodDeleted)
    }
}

impl Filter for NodePorts {
    fn filter(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        if node.has_port_conflict(pod) { Verdict::unschedulable(REASON) } else { Verdict::Fits }
    }
}
