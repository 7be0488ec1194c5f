//! Which pod goes first when a resource is starved, and the message it gets. Pure; upstream's `pkg/kubelet/eviction/helpers.go`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use api::quantity::Quantity;
use disk_usage::Usage;
use k8s_openapi::api::core::v1::Pod;

use super::thresholds::{Met, Pressure, Signal};
use crate::{resources, spec};

/// What one container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ContainerUsage {
    pub(crate) memory: u64,
    pub(crate) root: Usage,
    pub(crate) logs: Usage,
}

/// What one pod uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodUsage {
    pub(crate) containers: BTreeMap<String, ContainerUsage>,
    /// Its emptyDirs on disk, by name.
    pub(crate) volumes: BTreeMap<String, Usage>,
    /// The files that the kubelet made for it, which containers may write to.
    pub(crate) files: Usage,
    pub(crate) pids: u64,
}

impl PodUsage {
    pub(crate) fn memory(&self) -> u64 {
        self.containers.values().map(|container| container.memory).sum()
    }

    /// On the disk of volumes and logs, on that of images, or on both where they are one.
    pub(crate) fn disk(&self, on_node: bool, on_image: bool) -> Usage {
        let mut sum = Usage::default();
        for container in self.containers.values() {
            if on_image {
                sum += container.root;
            }
            if on_node {
                sum += container.logs;
            }
        }
        if on_node {
            self.volumes.values().for_each(|volume| sum += *volume);
            sum += self.files;
        }
        sum
    }

    fn of(&self, signal: Signal, has_image_fs: bool) -> u64 {
        let is_image = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        let disk = || self.disk(!has_image_fs || !is_image, !has_image_fs || is_image);
        match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => self.memory(),
            Signal::PidAvailable => self.pids,
            // Hidden bytes are the more suspicious ones.
            Signal::NodeFsAvailable | Signal::ImageFsAvailable if disk().is_hidden => u64::MAX,
            Signal::NodeFsAvailable | Signal::ImageFsAvailable => disk().bytes,
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree => disk().inodes,
        }
    }
}

/// A pod and what it uses.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<P> {
    pub(crate) pod: P,
    pub(crate) usage: PodUsage,
}

/// Sorts pods so that the first is evicted first: those over their request, those of low priority, those that use most beyond it.
pub(crate) fn rank<P: std::ops::Deref<Target = Pod>>(
    candidates: &mut [Candidate<P>],
    signal: Signal,
    has_image_fs: bool,
) {
    candidates.sort_by_cached_key(|candidate| {
        let used = i64::try_from(candidate.usage.of(signal, has_image_fs)).unwrap_or(i64::MAX);
        let request = resources::pod_request(&candidate.pod, signal.resource()).map_or(0, |request| request.value());
        let is_over = signal.pressure() != Pressure::Pid && used > request;
        (Reverse(is_over), priority(&candidate.pod), Reverse(used.saturating_sub(request)))
    });
}

pub(crate) fn priority(pod: &Pod) -> i32 {
    spec::spec(pod).priority.unwrap_or(0)
}

/// The first priority of `system-node-critical` and `system-cluster-critical`.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Static pods, mirrors and pods of a system priority: the node does not evict them.
pub(crate) fn is_critical(pod: &Pod) -> bool {
    spec::is_static(pod) || spec::is_mirror(pod) || priority(pod) >= SYSTEM_CRITICAL
}

/// Upstream's message for a pod that goes because of `met`.
pub(crate) fn message(met: &Met, pod: &Pod, usage: &PodUsage) -> String {
    let resource = met.signal.resource();
    let mut text = format!("The node was low on resource: {resource}. {met}");
    let all = spec::containers(pod).iter().chain(spec::init_containers(pod));
    for (container, used) in all.filter_map(|container| Some((container, usage.containers.get(&container.name)?))) {
        let used = match resource {
            "memory" => used.memory,
            "ephemeral-storage" => used.root.bytes.saturating_add(used.logs.bytes),
            _ => continue,
        };
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        let request = resources::request(container, resource).unwrap_or(Quantity::from_whole(0));
        if used > request.value() {
            let used = Quantity::from_bytes(used);
            let name = &container.name;
            text.push_str(&format!(
                "Container {name} was using {used}, request is {request}, has larger consumption of {resource}. "
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn candidate(name: &str, priority: i32, request: &str, used: u64) -> Candidate<Box<Pod>> {
        let requests = json!({ "memory": request, "ephemeral-storage": request });
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "priority": priority, "containers": [{ "name": "c", "resources": { "requests": requests } }] },
        });
        let disk = Usage { bytes: used, inodes: used, ..Usage::default() };
        let container = ContainerUsage { memory: used, root: disk, logs: Usage::default() };
        let usage = PodUsage { containers: [("c".to_owned(), container)].into(), pids: used, ..PodUsage::default() };
        Candidate { pod: Box::new(serde_json::from_value(pod).expect("a pod")), usage }
    }

    #[track_caller]
    fn check(signal: Signal, want: &[&str]) {
        let mut all = [
            candidate("within", 0, "500", 400),
            candidate("important", 9, "0", 900),
            candidate("some", 0, "100", 300),
            candidate("most", 0, "300", 700),
        ];
        rank(&mut all, signal, false);
        let names: Vec<_> = all.iter().map(|candidate| spec::name(&candidate.pod)).collect();
        assert_eq!(names, want);
    }

    #[test]
    fn pods_over_their_request_go_first_then_the_least_important_then_the_largest() {
        check(Signal::MemoryAvailable, &["most", "some", "important", "within"]);
        check(Signal::NodeFsAvailable, &["most", "some", "important", "within"]);
        check(Signal::PidAvailable, &["most", "within", "some", "important"]);
    }

    #[test]
    fn the_message_names_what_was_used() {
        let used = candidate("p", 0, "1Ki", 2048);
        let met = Met { signal: Signal::NodeFsAvailable, threshold: 1 << 30, available: 1 << 20 };
        assert_eq!(
            message(&met, &used.pod, &used.usage),
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 1Mi. \
             Container c was using 2Ki, request is 1Ki, has larger consumption of ephemeral-storage. "
        );
        let met = Met { signal: Signal::NodeFsInodesFree, threshold: 10, available: 1 };
        assert_eq!(
            message(&met, &used.pod, &used.usage),
            "The node was low on resource: inodes. Threshold quantity: 10, available: 1. "
        );
    }

    #[test]
    fn an_image_disk_of_its_own_holds_root_file_systems_only() {
        let disk = |bytes| Usage { bytes, ..Usage::default() };
        let container = ContainerUsage { root: disk(1), logs: disk(10), ..ContainerUsage::default() };
        let usage = PodUsage {
            containers: [("c".to_owned(), container)].into(),
            volumes: [("v".to_owned(), disk(100))].into(),
            ..PodUsage::default()
        };
        assert_eq!(usage.of(Signal::ImageFsAvailable, true), 1);
        assert_eq!(usage.of(Signal::NodeFsAvailable, true), 110);
        assert_eq!(usage.of(Signal::NodeFsAvailable, false), 111);
    }
}
