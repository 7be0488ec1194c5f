//! The node's status, from what the machine and the runtime say. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::info::Machine;
use crate::clock::whole_seconds;
use crate::eviction::thresholds::{Pressure, Thresholds};

pub(crate) const VERSION: &str = "v1.36.4-ferry";
const MAX_IMAGES: usize = 50;
const MAX_NAMES: usize = 5;

pub(crate) struct Runtime {
    /// Why the runtime or its network is not ready; empty when they are.
    pub(crate) errors: Vec<String>,
    pub(crate) images: Vec<Image>,
}

pub(crate) struct Image {
    pub(crate) names: Vec<String>,
    pub(crate) size: i64,
}

pub(crate) struct Facts<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) node_name: &'a str,
    pub(crate) node_ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) max_pods: i64,
    pub(crate) runtime: &'a Runtime,
    pub(crate) pressures: &'a BTreeSet<Pressure>,
    pub(crate) thresholds: &'a Thresholds,
    /// What pods do not get of the capacity, beside the eviction thresholds.
    pub(crate) reserved: &'a BTreeMap<String, Quantity>,
}

/// Fields of others in `old` are kept.
pub(crate) fn status(facts: &Facts<'_>, old: &NodeStatus, now: Timestamp) -> NodeStatus {
    let machine = facts.machine;
    let capacity = capacity(facts);
    let mut allocatable = capacity.clone();
    let reserved = |name: &str| facts.reserved.get(name).copied().unwrap_or(Quantity::from_whole(0));
    let memory = machine.memory - reserved("memory").value() - facts.thresholds.memory(machine.memory);
    allocatable.insert("memory".to_owned(), Text(Quantity::from_bytes(memory.max(0)).to_string()));
    let storage = machine.storage - reserved("ephemeral-storage").value() - facts.thresholds.storage(machine.storage);
    allocatable.insert("ephemeral-storage".to_owned(), Text(storage.max(0).to_string()));
    let cpus = Quantity::from_milli((machine.cpus * 1000 - reserved("cpu").milli_value()).max(0));
    allocatable.insert("cpu".to_owned(), Text(cpus.to_string()));
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let image = |image: &Image| ContainerImage {
        names: Some(image.names.iter().take(MAX_NAMES).cloned().collect()),
        size_bytes: Some(image.size),
    };
    NodeStatus {
        addresses: Some(vec![
            address("InternalIP", facts.node_ip.to_string()),
            address("Hostname", facts.node_name.to_owned()),
        ]),
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions(facts, old, whole_seconds(now))),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(facts.port) }),
        }),
        images: Some(facts.runtime.images.iter().take(MAX_IMAGES).map(image).collect()),
        node_info: Some(NodeSystemInfo {
            architecture: machine.arch.clone(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: machine.runtime_version.clone(),
            kernel_version: machine.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: VERSION.to_owned(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: machine.os_image.clone(),
            system_uuid: machine.system_uuid.clone(),
            swap: None,
        }),
        ..old.clone()
    }
}

fn capacity(facts: &Facts<'_>) -> BTreeMap<String, Text> {
    let machine = facts.machine;
    let bytes = |bytes| Text(Quantity::from_bytes(bytes).to_string());
    let mut all = BTreeMap::from([
        ("cpu".to_owned(), Text(machine.cpus.to_string())),
        ("memory".to_owned(), bytes(machine.memory)),
        ("ephemeral-storage".to_owned(), bytes(machine.storage)),
        ("pods".to_owned(), Text(facts.max_pods.to_string())),
    ]);
    for (size, total) in &machine.hugepages {
        all.insert(format!("hugepages-{size}"), bytes(*total));
    }
    all
}

/// Ready comes last, as upstream has it.
fn conditions(facts: &Facts<'_>, old: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
    let pressure = [Pressure::Memory, Pressure::Disk, Pressure::Pid].map(|pressure| {
        let (reason, message) = match (pressure, facts.pressures.contains(&pressure)) {
            (Pressure::Memory, false) => ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            (Pressure::Memory, true) => ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
            (Pressure::Disk, false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            (Pressure::Disk, true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            (Pressure::Pid, false) => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            (Pressure::Pid, true) => ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        };
        let status = if facts.pressures.contains(&pressure) { "True" } else { "False" };
        (pressure.as_str(), status, reason, message.to_owned())
    });
    let ready = if facts.runtime.errors.is_empty() {
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status".to_owned())
    } else {
        let joined = facts.runtime.errors.join(", ");
        let message = if facts.runtime.errors.len() > 1 { format!("[{joined}]") } else { joined };
        ("Ready", "False", "KubeletNotReady", message)
    };
    let foreign = |condition: &&NodeCondition| {
        !["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].contains(&condition.type_.as_str())
    };
    let mut list: Vec<_> = old.conditions.iter().flatten().filter(foreign).cloned().collect();
    for (type_, status, reason, message) in pressure.into_iter().chain([ready]) {
        let known = old.conditions.iter().flatten().find(|condition| condition.type_ == type_);
        let since = known.filter(|known| known.status == status).and_then(|known| known.last_transition_time.clone());
        list.push(NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        });
    }
    list
}

pub(crate) fn is_ready(status: &NodeStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Two statuses that differ only in when they were written say the same.
pub(crate) fn without_heartbeats(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    status
}

/// Our conditions' statuses and reasons, which others (the node controller) may have overwritten.
pub(crate) fn ours(status: &NodeStatus) -> Vec<(String, String, Option<String>)> {
    let mut all: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .filter(|c| ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].contains(&c.type_.as_str()))
        .map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone()))
        .collect();
    all.sort();
    all
}

/// The events a change of conditions is worth.
pub(crate) fn events(old: &NodeStatus, new: &NodeStatus) -> Vec<&'static str> {
    let of = |status: &NodeStatus, type_: &str| {
        status.conditions.iter().flatten().find(|condition| condition.type_ == type_).map(|c| c.status.clone())
    };
    let mut all = Vec::new();
    for (type_, sufficient, insufficient) in [
        ("MemoryPressure", "NodeHasSufficientMemory", "NodeHasInsufficientMemory"),
        ("DiskPressure", "NodeHasNoDiskPressure", "NodeHasDiskPressure"),
        ("PIDPressure", "NodeHasSufficientPID", "NodeHasInsufficientPID"),
    ] {
        let now = of(new, type_);
        if of(old, type_) != now {
            all.push(if now.as_deref() == Some("True") { insufficient } else { sufficient });
        }
    }
    if of(old, "Ready").is_some_and(|before| Some(before) != of(new, "Ready")) {
        all.push(if is_ready(new) { "NodeReady" } else { "NodeNotReady" });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(errors: &[&str], old: &NodeStatus, second: i64) -> NodeStatus {
        make_under(&[], errors, old, second)
    }

    fn make_under(pressures: &[Pressure], errors: &[&str], old: &NodeStatus, second: i64) -> NodeStatus {
        let machine = Machine {
            cpus: 4,
            memory: 8 << 30,
            storage: 1000,
            hugepages: vec![("2Mi".into(), 0)],
            ..Default::default()
        };
        let runtime = Runtime { errors: errors.iter().map(|e| (*e).to_owned()).collect(), images: vec![] };
        let facts = Facts {
            machine: &machine,
            node_name: "n",
            node_ip: "10.0.0.1".parse().expect("an address"),
            port: 10250,
            max_pods: 110,
            runtime: &runtime,
            pressures: &pressures.iter().copied().collect(),
            thresholds: &Thresholds::default(),
            reserved: &BTreeMap::from([("cpu".to_owned(), Quantity::from_milli(500))]),
        };
        status(&facts, old, Timestamp::from_second(second).expect("a time"))
    }

    #[test]
    fn a_node_becomes_ready_and_says_so_once() {
        let first = make(&["container runtime network not ready"], &NodeStatus::default(), 1);
        assert!(!is_ready(&first));
        let second = make(&[], &first, 2);
        assert!(is_ready(&second));
        assert_eq!(events(&first, &second), ["NodeReady"]);
        let third = make(&[], &second, 300);
        assert_eq!(without_heartbeats(&second), without_heartbeats(&third), "a heartbeat alone is no change");
        assert_eq!(events(&second, &third), [""; 0]);
    }

    #[test]
    fn a_starved_resource_is_a_condition_and_an_event() {
        let calm = make(&[], &NodeStatus::default(), 1);
        let starved = make_under(&[Pressure::Disk], &[], &calm, 2);
        let disk = starved.conditions.iter().flatten().find(|condition| condition.type_ == "DiskPressure");
        let disk = disk.map(|disk| (disk.status.as_str(), disk.reason.as_deref(), disk.message.as_deref()));
        assert_eq!(disk, Some(("True", Some("KubeletHasDiskPressure"), Some("kubelet has disk pressure"))));
        assert_eq!(events(&calm, &starved), ["NodeHasDiskPressure"]);
        assert_eq!(events(&starved, &make(&[], &starved, 3)), ["NodeHasNoDiskPressure"]);
    }

    #[test]
    fn capacity_and_what_is_left_for_pods() {
        let made = make(&[], &NodeStatus::default(), 1);
        let text = |list: &Option<BTreeMap<String, Text>>, name: &str| {
            list.as_ref().and_then(|l| l.get(name)).map(|q| q.0.clone())
        };
        assert_eq!(text(&made.capacity, "memory").as_deref(), Some("8Gi"));
        assert_eq!(text(&made.allocatable, "memory").as_deref(), Some("8092Mi"));
        assert_eq!(text(&made.allocatable, "cpu").as_deref(), Some("3500m"));
        assert_eq!(text(&made.allocatable, "ephemeral-storage").as_deref(), Some("900"));
        assert_eq!(text(&made.allocatable, "pods").as_deref(), Some("110"));
        assert_eq!(text(&made.capacity, "hugepages-2Mi").as_deref(), Some("0"));
    }
}
