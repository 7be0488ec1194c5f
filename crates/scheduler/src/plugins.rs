//! The built-in plugins, under upstream's names, and the default profile that they make.

pub(crate) mod default_binder;
pub(crate) mod default_preemption;
pub(crate) mod image_locality;
pub(crate) mod inter_pod_affinity;
pub(crate) mod node_affinity;
pub(crate) mod node_name;
pub(crate) mod node_ports;
pub(crate) mod node_resources;
pub(crate) mod node_unschedulable;
pub(crate) mod pod_topology_spread;
pub(crate) mod priority_sort;
pub(crate) mod taint_toleration;

use crate::framework::{Framework, Plugin};
use crate::queue::Event;

use default_binder::DefaultBinder;
use default_preemption::DefaultPreemption;
use image_locality::ImageLocality;
use inter_pod_affinity::InterPodAffinity;
use node_affinity::NodeAffinity;
use node_name::NodeName;
use node_ports::NodePorts;
use node_resources::{NodeResourcesBalancedAllocation, NodeResourcesFit};
use node_unschedulable::NodeUnschedulable;
use pod_topology_spread::PodTopologySpread;
use taint_toleration::TaintToleration;

/// Upstream's default profile, as far as its plugins are built in.
pub(crate) fn default_profile(client: kube::Client) -> Framework {
    Framework {
        pre_filter: vec![Box::new(PodTopologySpread), Box::new(InterPodAffinity)],
        filter: vec![
            Box::new(NodeUnschedulable),
            Box::new(NodeName),
            Box::new(TaintToleration),
            Box::new(NodeAffinity),
            Box::new(NodePorts),
            Box::new(NodeResourcesFit),
            Box::new(PodTopologySpread),
            Box::new(InterPodAffinity),
        ],
        post_filter: vec![Box::new(DefaultPreemption)],
        score: vec![
            Box::new(TaintToleration),
            Box::new(NodeAffinity),
            Box::new(NodeResourcesFit),
            Box::new(PodTopologySpread),
            Box::new(InterPodAffinity),
            Box::new(NodeResourcesBalancedAllocation),
            Box::new(ImageLocality),
        ],
        reserve: Vec::new(),
        permit: Vec::new(),
        bind: Box::new(DefaultBinder::new(client)),
    }
}

/// Whether `event` can help a pod that `plugin` rejected.
pub(crate) fn is_helped_by(plugin: &str, event: Event) -> bool {
    let all: [&dyn Plugin; 8] = [
        &NodeUnschedulable,
        &NodeName,
        &TaintToleration,
        &NodeAffinity,
        &NodePorts,
        &NodeResourcesFit,
        &PodTopologySpread,
        &InterPodAffinity,
    ];
    all.iter().find(|known| known.name() == plugin).is_none_or(|known| known.is_helped_by(event))
}
