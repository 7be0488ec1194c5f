//! A node with the pods on it (bound, or assumed to be soon), and the sums that filters need.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint};

use crate::resources::{Resources, nonzero_requests, pod_requests};

pub(crate) type Labels = BTreeMap<String, String>;
static NO_LABELS: Labels = BTreeMap::new();

/// A pod with what scheduling asks about it, worked out once.
#[derive(Debug)]
pub(crate) struct PodInfo {
    pub(crate) pod: Arc<Pod>,
    pub(crate) requests: Resources,
    pub(crate) nonzero: Resources,
    pub(crate) priority: i32,
    pub(crate) ports: Vec<HostPort>,
}

/// A port on the node's own address; an empty address means all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    pub(crate) protocol: String,
    pub(crate) ip: String,
    pub(crate) port: i32,
}

impl HostPort {
    fn collides(&self, other: &Self) -> bool {
        let any = |ip: &str| ip.is_empty() || ip == "0.0.0.0" || ip == "::";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || any(&self.ip) || any(&other.ip))
    }
}

impl PodInfo {
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        let ports = pod.spec.iter().flat_map(host_ports).collect();
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        Self { requests: pod_requests(&pod), nonzero: nonzero_requests(&pod), priority, ports, pod }
    }

    pub(crate) fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub(crate) fn labels(&self) -> &Labels {
        self.pod.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
    }

    pub(crate) fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    pub(crate) fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars =
        spec.init_containers.iter().flatten().filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let of_host = ports.filter_map(|port| {
        Some(HostPort {
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            ip: port.host_ip.clone().unwrap_or_default(),
            port: port.host_port.filter(|port| *port > 0)?,
        })
    });
    of_host.collect()
}

#[derive(Clone, Debug)]
pub(crate) struct NodeInfo {
    /// Absent while pods of the node are known but the node itself is not: such a node is never scheduled to.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) name: String,
    pub(crate) pods: BTreeMap<String, Arc<PodInfo>>,
    pub(crate) requested: Resources,
    pub(crate) nonzero: Resources,
    pub(crate) allocatable: Resources,
    pub(crate) allowed_pods: i64,
}

impl NodeInfo {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            node: None,
            name: name.to_owned(),
            pods: BTreeMap::new(),
            requested: Resources::default(),
            nonzero: Resources::default(),
            allocatable: Resources::default(),
            allowed_pods: 0,
        }
    }

    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        self.allocatable = Resources::of(allocatable);
        let pods = allocatable.and_then(|list| list.get("pods"));
        self.allowed_pods =
            pods.and_then(|pods| api::quantity::Quantity::parse(&pods.0).ok()).map_or(0, |pods| pods.value());
        self.node = Some(node);
    }

    pub(crate) fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.remove_pod(pod.uid());
        self.requested.add(&pod.requests);
        self.nonzero.add(&pod.nonzero);
        self.pods.insert(pod.uid().to_owned(), pod);
    }

    pub(crate) fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
        self.requested.subtract(&pod.requests);
        self.nonzero.subtract(&pod.nonzero);
        Some(pod)
    }

    pub(crate) fn labels(&self) -> &Labels {
        self.node.as_ref().and_then(|node| node.metadata.labels.as_ref()).unwrap_or(&NO_LABELS)
    }

    pub(crate) fn taints(&self) -> &[Taint] {
        let spec = self.node.as_ref().and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    pub(crate) fn is_unschedulable(&self) -> bool {
        self.node.as_ref().and_then(|node| node.spec.as_ref()?.unschedulable) == Some(true)
    }

    pub(crate) fn has_port_conflict(&self, pod: &PodInfo) -> bool {
        let used = || self.pods.values().flat_map(|known| &known.ports);
        pod.ports.iter().any(|port| used().any(|known| known.collides(port)))
    }
}
