//! Brings what informers tell into the cache and the queue.

use std::sync::Arc;

use client::{Change, Informer};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};

use crate::cache::Cache;
use crate::node_info::PodInfo;
use crate::queue::{Event, Queue};

pub(crate) fn subscribe(
    nodes: &Informer<Node>,
    pods: &Informer<Pod>,
    namespaces: &Informer<Namespace>,
    cache: &Arc<Cache>,
    queue: &Arc<Queue>,
    scheduler_name: &str,
) {
    nodes.subscribe({
        let (cache, queue) = (cache.clone(), queue.clone());
        move |change| on_node(change, &cache, &queue)
    });
    namespaces.subscribe({
        let cache = cache.clone();
        move |change| {
            let meta = &change.object().metadata;
            let name = meta.name.as_deref().unwrap_or_default();
            let labels = meta.labels.clone().unwrap_or_default();
            cache.set_namespace(name, (!matches!(change, Change::Deleted(_))).then_some(labels));
        }
    });
    let (cache, queue, scheduler_name) = (cache.clone(), queue.clone(), scheduler_name.to_owned());
    pods.subscribe(move |change| on_pod(change, &cache, &queue, &scheduler_name));
}

fn on_node(change: &Change<Node>, cache: &Cache, queue: &Queue) {
    match change {
        Change::Added(node) => {
            cache.set_node(node);
            queue.on(Event::NodeAdded);
        }
        Change::Updated { old, new } => {
            cache.set_node(new);
            node_events(old, new).into_iter().for_each(|event| queue.on(event));
        }
        Change::Deleted(node) => cache.remove_node(node.metadata.name.as_deref().unwrap_or_default()),
    }
}

/// A heartbeat changes nothing that scheduling looks at.
fn node_events(old: &Node, new: &Node) -> Vec<Event> {
    let allocatable = |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
    let barriers = |node: &Node| node.spec.as_ref().map(|spec| (spec.taints.clone(), spec.unschedulable));
    let mut events = Vec::new();
    if allocatable(old) != allocatable(new) {
        events.push(Event::NodeAllocatable);
    }
    if old.metadata.labels != new.metadata.labels {
        events.push(Event::NodeLabels);
    }
    if barriers(old) != barriers(new) {
        events.push(Event::NodeTaints);
    }
    events
}

fn on_pod(change: &Change<Pod>, cache: &Cache, queue: &Queue, scheduler_name: &str) {
    let pod = change.object();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
    let gone = matches!(change, Change::Deleted(_)) || is_finished(pod);
    match node {
        _ if gone => {
            queue.remove(uid);
            cache.remove_pod(uid);
            // Also for one that was only assumed: its room is free again.
            queue.on(Event::AssignedPodDeleted);
        }
        Some(node) => {
            queue.remove(uid);
            let was_assigned = matches!(change, Change::Updated { old, .. } if is_assigned(old));
            cache.set_pod(pod, node);
            if !was_assigned {
                queue.on(Event::AssignedPodAdded);
            }
        }
        None if is_ours(pod, scheduler_name) && !cache.is_assumed(uid) => {
            queue.set(Arc::new(PodInfo::new(pod.clone())))
        }
        None => (),
    }
}

fn is_assigned(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty())
}

pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"))
}

fn is_ours(pod: &Pod, scheduler_name: &str) -> bool {
    let named = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or(crate::DEFAULT_SCHEDULER);
    named == scheduler_name && pod.metadata.deletion_timestamp.is_none()
}
