//! The status of a DaemonSet from its nodes and pods.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::Node;

use super::ByNode;
use super::plan::should_run;
use crate::history::REVISION_HASH;
use crate::{meta, pod};

pub(super) fn status_of(
    set: &DaemonSet,
    nodes: &[Arc<Node>],
    by_node: &ByNode,
    hash: &str,
    now: Timestamp,
) -> DaemonSetStatus {
    let min_ready = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let old = set.status.clone().unwrap_or_default();
    let (mut desired, mut current, mut misscheduled, mut ready, mut available, mut updated) = (0, 0, 0, 0, 0, 0);
    for node in nodes {
        let mut pods: Vec<_> = by_node.get(meta::name(&**node)).into_iter().flatten().collect();
        pods.sort_by_key(|pod| meta::created(&***pod));
        if !should_run(set, node).0 {
            misscheduled += i32::from(!pods.is_empty());
            continue;
        }
        desired += 1;
        let Some(first) = pods.first() else { continue };
        current += 1;
        ready += i32::from(pods.iter().any(|pod| pod::is_ready(pod)));
        available += i32::from(pods.iter().any(|pod| pod::is_available(pod, min_ready, now)));
        updated += i32::from(meta::labels(&***first).get(REVISION_HASH).is_some_and(|of| of == hash));
    }
    DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: current,
        number_misscheduled: misscheduled,
        number_ready: ready,
        number_available: Some(available).filter(|count| *count > 0),
        number_unavailable: Some(desired - available).filter(|count| *count > 0),
        updated_number_scheduled: Some(updated).filter(|count| *count > 0),
        observed_generation: set.metadata.generation,
        ..old
    }
}
