//! Scenarios of the scheduling queue.

use serde_json::json;

use super::*;
use crate::plugins::priority_sort::PrioritySort;

fn queue() -> Queue {
    Queue::new(Box::new(PrioritySort), |plugin, event| plugin == "Fit" && event == Event::AssignedPodDeleted)
}

fn pod(name: &str, priority: i32, gated: bool) -> Arc<PodInfo> {
    let gates = if gated { json!([{ "name": "g" }]) } else { json!([]) };
    let pod = json!({ "metadata": { "name": name, "uid": name },
        "spec": { "containers": [], "priority": priority, "schedulingGates": gates } });
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

fn fit() -> Vec<Rejection> {
    vec![Rejection { plugin: "Fit", resolvable: true }]
}

async fn next(queue: &Queue) -> Option<String> {
    let popped = tokio::time::timeout(Duration::from_millis(1), queue.pop()).await.ok()?;
    Some(popped.pod.name().to_owned())
}

#[tokio::test(start_paused = true)]
async fn pods_come_by_priority_then_in_order_of_arrival() {
    let queue = queue();
    for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5)] {
        queue.set(pod(name, priority, false));
    }
    for want in ["b", "d", "a", "c"] {
        assert_eq!(next(&queue).await.as_deref(), Some(want));
    }
    assert_eq!(next(&queue).await, None);
}

#[tokio::test(start_paused = true)]
async fn only_events_that_can_help_bring_a_rejected_pod_back() {
    let queue = queue();
    queue.set(pod("a", 0, false));
    next(&queue).await;
    queue.unschedulable("a", fit());
    queue.on(Event::NodeLabels);
    assert_eq!(next(&queue).await, None);
    queue.on(Event::AssignedPodDeleted);
    assert_eq!(next(&queue).await.as_deref(), Some("a"), "back-off is cut short when nothing else waits");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_on_no_empty_node_is_not_tried_again_when_pods_leave() {
    let queue = queue();
    queue.set(pod("a", 0, false));
    next(&queue).await;
    queue.unschedulable("a", vec![Rejection { plugin: "Fit", resolvable: false }]);
    queue.on(Event::AssignedPodDeleted);
    assert_eq!(next(&queue).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_event_during_the_attempt_is_not_missed() {
    let queue = queue();
    queue.set(pod("a", 0, false));
    next(&queue).await;
    queue.on(Event::AssignedPodDeleted);
    queue.unschedulable("a", fit());
    assert_eq!(next(&queue).await.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn errors_wait_out_their_backoff_and_lost_events_are_caught_up() {
    let queue = queue();
    queue.set(pod("a", 0, false));
    next(&queue).await;
    queue.failed("a");
    assert_eq!(next(&queue).await, None);
    tokio::time::advance(INITIAL_BACKOFF).await;
    assert_eq!(next(&queue).await.as_deref(), Some("a"));
    queue.unschedulable("a", fit());
    tokio::time::advance(MAX_UNSCHEDULABLE).await;
    assert_eq!(next(&queue).await.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn gated_pods_wait_for_their_gates_and_changed_pods_are_tried_again() {
    let queue = queue();
    queue.set(pod("a", 0, true));
    assert_eq!(next(&queue).await, None);
    queue.set(pod("a", 0, false));
    assert_eq!(next(&queue).await.as_deref(), Some("a"));
    queue.unschedulable("a", fit());
    queue.set(pod("a", 0, false));
    assert_eq!(next(&queue).await, None, "nothing it asks for has changed");
    queue.set(pod("a", 1, false));
    assert_eq!(next(&queue).await.as_deref(), Some("a"));
    queue.remove("a");
    queue.failed("a");
    tokio::time::advance(MAX_BACKOFF).await;
    assert_eq!(next(&queue).await, None);
}

#[test]
fn backoff_doubles_up_to_its_limit() {
    let seconds: Vec<_> = (1..7).map(|attempts| backoff(attempts).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 10, 10]);
}
