//! A pod that names its node fits no other.

use crate::framework::{Cycle, Filter, Plugin, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const REASON: &str = "node(s) didn't match the requested node name";

pub(crate) struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        event == Event::NodeAdded
    }
}

impl Filter for NodeName {
    fn filter(&self, _: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        match pod.spec().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty()) {
            Some(name) if name != node.name => Verdict::unresolvable(REASON),
            _ => Verdict::Fits,
        }
    }
}
