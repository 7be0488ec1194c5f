//! Ranks pods by how little is lost when they are deleted.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{meta, pod};

const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub(super) fn cheapest_first(pods: &mut [Arc<Pod>], related: &[Arc<Pod>], now: Timestamp) {
    let mut crowd: HashMap<&str, usize> = HashMap::new();
    for other in related.iter().filter(|other| pod::is_active(other)) {
        *crowd.entry(pod::node_name(other)).or_default() += 1;
    }
    pods.sort_by(|a, b| {
        let crowded = |pod: &Pod| crowd.get(pod::node_name(pod)).copied().unwrap_or(0);
        standing(a)
            .cmp(&standing(b))
            .then(Reverse(crowded(a)).cmp(&Reverse(crowded(b))))
            .then_with(|| by_history(a, b, now))
    });
}

/// Unassigned before assigned, pending before unknown before running, unready before ready, cheap before dear.
fn standing(pod: &Pod) -> (bool, u8, bool, i64) {
    let phase = match pod::phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let cost = meta::annotation(pod, POD_DELETION_COST).and_then(|cost| cost.parse::<i32>().ok()).unwrap_or(0);
    (!pod::node_name(pod).is_empty(), phase, pod::is_ready(pod), i64::from(cost))
}

/// Ready for a short time before long, often restarted before seldom, young before old. Ages count by orders of magnitude, so
/// that among pods of about the same age not always the youngest is taken.
fn by_history(a: &Pod, b: &Pod, now: Timestamp) -> Ordering {
    let ready = match (pod::ready_since(a), pod::ready_since(b)) {
        (Some(a), Some(b)) => magnitude(a, now).cmp(&magnitude(b, now)),
        _ => Ordering::Equal,
    };
    let restarts = pod::restarts(b).cmp(&pod::restarts(a));
    let age = magnitude(meta::created(a), now).cmp(&magnitude(meta::created(b), now));
    ready.then(restarts).then(age).then_with(|| meta::uid(a).cmp(meta::uid(b)))
}

fn magnitude(since: Timestamp, now: Timestamp) -> i64 {
    let nanos = now.duration_since(since).as_nanos();
    if nanos <= 0 { -1 } else { i64::from(nanos.ilog2()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// "name node phase ready|unready age_s restarts [cost]"
    fn pods(text: &[&str], now: Timestamp) -> Vec<Arc<Pod>> {
        let pod = |line: &&str| {
            let words: Vec<_> = line.split(' ').collect();
            let since = now - jiff::SignedDuration::from_secs(words[4].parse().unwrap());
            let ready = if words[3] == "ready" { "True" } else { "False" };
            let node = if words[1] == "-" { "" } else { words[1] };
            let cost = words.get(6).copied().unwrap_or("0");
            let pod = json!({
                "metadata": { "name": words[0], "uid": words[0], "creationTimestamp": since.to_string(),
                    "annotations": { POD_DELETION_COST: cost } },
                "spec": { "nodeName": node, "containers": [] },
                "status": { "phase": words[2],
                    "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": since.to_string() }],
                    "containerStatuses": [{ "name": "c", "image": "i", "imageID": "i", "ready": true,
                        "restartCount": words[5].parse::<i32>().unwrap() }] },
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        text.iter().map(pod).collect()
    }

    #[track_caller]
    fn check(text: &[&str], want: &str) {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let mut ranked = pods(text, now);
        let related = ranked.clone();
        cheapest_first(&mut ranked, &related, now);
        let names: Vec<_> = ranked.iter().map(|pod| meta::name(&**pod)).collect();
        assert_eq!(names.join(" "), want);
    }

    #[test]
    fn what_serves_least_goes_first() {
        check(&["a n Running ready 99 0", "b - Pending unready 99 0"], "b a");
        check(&["a n Running ready 99 0", "b m Pending unready 99 0"], "b a");
        check(&["a n Running ready 99 0", "b m Running unready 99 0"], "b a");
        check(&["a n Running ready 99 0 5", "b m Running ready 99 0 -5"], "b a");
    }

    #[test]
    fn crowded_nodes_young_and_failing_pods_go_first() {
        check(&["a n Running ready 99 0", "b m Running ready 99 0", "c m Running ready 99 0"], "b c a");
        check(&["a n Running ready 9999 0", "b m Running ready 9 0"], "b a");
        check(&["a n Running ready 99 0", "b m Running ready 99 7"], "b a");
    }
}
