//! The status of a budget from its pods. No I/O, no clock.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::int_or_percent::{Round, scaled};
use crate::{meta, pod};

/// A pod that an eviction has named must be deleted within this time, or it counts as healthy again.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

#[derive(Debug)]
pub(super) struct Counted {
    pub(super) status: PodDisruptionBudgetStatus,
    /// When an evicted pod must be gone.
    pub(super) recheck: Option<Timestamp>,
    /// Pods whose eviction was admitted, but that nobody deleted in time.
    pub(super) not_deleted: Vec<Arc<Pod>>,
}

/// Whether the budget speaks of a share of what the pods' controllers want, rather than of a number of pods.
pub(super) fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    budget.spec.as_ref().is_some_and(|spec| {
        spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
    })
}

/// Whether two states of a pod count the same for every budget.
pub(super) fn is_same(old: &Pod, new: &Pod) -> bool {
    let facts = |pod: &Pod| {
        let owner = meta::controller_of(&pod.metadata).map(|owner| owner.uid.clone());
        (pod.metadata.uid.clone(), pod::is_ready(pod), meta::is_deleting(pod), owner)
    };
    meta::labels(old) == meta::labels(new) && facts(old) == facts(new)
}

/// Counts the `pods` that the budget selects; `scale` is the sum of their controllers' replicas.
pub(super) fn count(budget: &PodDisruptionBudget, pods: &[Arc<Pod>], scale: i32, now: Timestamp) -> Counted {
    let (expected, desired) = expected(budget, pods.len(), scale);
    let old = budget.status.clone().unwrap_or_default();
    let mut disrupted = old.disrupted_pods.unwrap_or_default();
    let mut not_deleted = Vec::new();
    disrupted.retain(|name, at| {
        let Some(pod) = pods.iter().find(|pod| meta::name(&***pod) == name && !meta::is_deleting(&***pod)) else {
            return false;
        };
        let in_time = at.0 + DELETION_TIMEOUT >= now;
        if !in_time {
            not_deleted.push(pod.clone());
        }
        in_time
    });
    let recheck = disrupted.values().map(|at| at.0 + DELETION_TIMEOUT).min();
    let is_disrupted = |pod: &Pod| disrupted.get(meta::name(pod)).is_some_and(|at| at.0 + DELETION_TIMEOUT > now);
    let healthy = pods.iter().filter(|pod| !meta::is_deleting(&***pod) && !is_disrupted(pod) && pod::is_ready(pod));
    let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
    // A budget that expects no pod is safe for the first one that appears.
    let allowed = if expected > 0 { healthy.saturating_sub(desired).max(0) } else { 0 };
    let mut conditions = old.conditions.unwrap_or_default();
    let (is_allowed, reason) = if allowed > 0 { (true, "SufficientPods") } else { (false, "InsufficientPods") };
    set_condition(&mut conditions, is_allowed, reason, "", budget.metadata.generation, now);
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
        observed_generation: budget.metadata.generation,
        conditions: Some(conditions),
    };
    Counted { status, recheck, not_deleted }
}

/// The status of a budget that cannot be counted: it allows nothing.
pub(super) fn failed(budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    let mut status = normalized(&budget.status.clone().unwrap_or_default());
    status.disruptions_allowed = Some(0);
    let mut conditions = status.conditions.take().unwrap_or_default();
    set_condition(&mut conditions, false, "SyncFailed", why, status.observed_generation, now);
    PodDisruptionBudgetStatus { conditions: Some(conditions), ..status }
}

/// A status without the difference between an empty map and none.
pub(super) fn normalized(status: &PodDisruptionBudgetStatus) -> PodDisruptionBudgetStatus {
    let disrupted_pods = status.disrupted_pods.clone().filter(|pods| !pods.is_empty());
    PodDisruptionBudgetStatus { disrupted_pods, ..status.clone() }
}

/// The pods that are expected, and those that must be healthy.
fn expected(budget: &PodDisruptionBudget, pods: usize, scale: i32) -> (i32, i32) {
    let Some(spec) = &budget.spec else { return (0, 0) };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => (scale, scale.saturating_sub(scaled(Some(most), scale, Round::Up)).max(0)),
        (None, Some(IntOrString::Int(least))) => (i32::try_from(pods).unwrap_or(i32::MAX), *least),
        (None, Some(percent)) => (scale, scaled(Some(percent), scale, Round::Up)),
        (None, None) => (0, 0),
    }
}

fn set_condition(
    conditions: &mut Vec<Condition>,
    is_true: bool,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let status = if is_true { "True" } else { "False" };
    let old = conditions.iter().position(|condition| condition.type_ == DISRUPTION_ALLOWED);
    let since = old.and_then(|at| conditions.get(at)).filter(|old| old.status == status);
    let condition = Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: Some(generation.unwrap_or_default()).filter(|generation| *generation != 0),
        last_transition_time: since.map_or(Time(now), |old| old.last_transition_time.clone()),
    };
    match old.and_then(|at| conditions.get_mut(at)) {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}

/// The selector as Go prints it, for the message that upstream sends.
pub(super) fn selector_text(budget: &PodDisruptionBudget) -> String {
    let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { return "nil".to_owned() };
    let labels: String =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let values = expression.values.as_deref().unwrap_or_default().join(" ");
        let (key, operator) = (&expression.key, &expression.operator);
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    });
    let expressions: String = expressions.collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    fn budget(spec: Value, disrupted: Value) -> PodDisruptionBudget {
        let status = json!({
            "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0, "disruptedPods": disrupted,
        });
        let metadata = json!({ "name": "b", "namespace": "n", "generation": 3 });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap()
    }

    /// `a` is ready, `a!` is not, `a-` is ready and on its way out.
    fn pods(text: &str) -> Vec<Arc<Pod>> {
        let one = |word: &str| {
            let name = word.trim_end_matches(['!', '-']);
            let ready = if word.ends_with('!') { "False" } else { "True" };
            let deleting = word.ends_with('-').then_some("2026-01-01T00:00:00Z");
            let pod = json!({
                "metadata": { "name": name, "namespace": "n", "deletionTimestamp": deleting },
                "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] },
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        text.split_whitespace().map(one).collect()
    }

    /// `want`: healthy/desired/expected, and how many may go.
    #[track_caller]
    fn check(spec: Value, text: &str, scale: i32, want: &str) {
        let status = count(&budget(spec.clone(), json!({})), &pods(text), scale, now()).status;
        let number = |number: Option<i32>| number.unwrap();
        let counts = [status.current_healthy, status.desired_healthy, status.expected_pods].map(number);
        let allowed = number(status.disruptions_allowed);
        let got = format!("{}/{}/{} {allowed}", counts[0], counts[1], counts[2]);
        assert_eq!(got, want, "{spec} {text}");
        let condition = &status.conditions.unwrap()[0];
        let want = if allowed > 0 { "True SufficientPods" } else { "False InsufficientPods" };
        assert_eq!(format!("{} {}", condition.status, condition.reason), want);
        assert_eq!((condition.observed_generation, status.observed_generation), (Some(3), Some(3)));
    }

    #[test]
    fn a_number_of_pods_must_stay() {
        check(json!({ "minAvailable": 2 }), "a b c", 0, "3/2/3 1");
        check(json!({ "minAvailable": 2 }), "a b c!", 0, "2/2/3 0");
        check(json!({ "minAvailable": 2 }), "a b c-", 0, "2/2/3 0");
        check(json!({ "minAvailable": 0 }), "a b", 0, "2/0/2 2");
        check(json!({ "minAvailable": 5 }), "a b", 0, "2/5/2 0");
    }

    #[test]
    fn a_share_is_of_what_the_controllers_want() {
        check(json!({ "minAvailable": "50%" }), "a b c", 5, "3/3/5 0");
        check(json!({ "minAvailable": "50%" }), "a b c d", 5, "4/3/5 1");
        check(json!({ "maxUnavailable": 1 }), "a b c", 3, "3/2/3 1");
        check(json!({ "maxUnavailable": 1 }), "a b c!", 3, "2/2/3 0");
        check(json!({ "maxUnavailable": "34%" }), "a b c", 3, "3/1/3 2");
        check(json!({ "maxUnavailable": 10 }), "a b", 2, "2/0/2 2");
    }

    #[test]
    fn a_budget_without_pods_allows_nothing() {
        check(json!({ "minAvailable": 0 }), "", 0, "0/0/0 0");
        check(json!({ "maxUnavailable": 1 }), "", 0, "0/0/0 0");
        check(json!({}), "a", 1, "1/0/0 0");
    }

    #[test]
    fn an_evicted_pod_is_not_healthy_until_its_deletion_is_overdue() {
        let counted = |at: &str| {
            let budget =
                budget(json!({ "minAvailable": 1 }), json!({ "a": at, "gone": at, "b": "2026-01-01T00:09:59Z" }));
            count(&budget, &pods("a b- c"), 0, now())
        };
        let fresh = counted("2026-01-01T00:09:00Z");
        assert_eq!((fresh.status.current_healthy, fresh.not_deleted.len()), (Some(1), 0));
        assert_eq!(fresh.status.disrupted_pods.unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(fresh.recheck, Some("2026-01-01T00:11:00Z".parse().unwrap()));
        let overdue = counted("2026-01-01T00:07:00Z");
        assert_eq!((overdue.status.current_healthy, overdue.status.disrupted_pods), (Some(2), None));
        assert_eq!(meta::name(&*overdue.not_deleted[0]), "a");
        assert_eq!(overdue.recheck, None);
    }

    #[test]
    fn a_second_count_changes_nothing_and_a_failure_allows_nothing() {
        let mut budget = budget(json!({ "minAvailable": 1 }), json!({}));
        let first = count(&budget, &pods("a b"), 0, now()).status;
        budget.status = Some(first.clone());
        let later = now() + SignedDuration::from_secs(60);
        assert_eq!(count(&budget, &pods("a b"), 0, later).status, first);
        let failed = failed(&budget, "why", later);
        assert_eq!((failed.disruptions_allowed, failed.current_healthy), (Some(0), Some(2)));
        let condition = &failed.conditions.as_ref().unwrap()[0];
        assert_eq!(
            (&*condition.reason, &*condition.message, &condition.last_transition_time.0),
            ("SyncFailed", "why", &later)
        );
        budget.status = Some(failed.clone());
        assert_eq!(super::failed(&budget, "why", now()), failed);
    }

    #[test]
    fn the_selector_is_written_as_go_does() {
        let selector = json!({ "matchLabels": { "a": "1", "b": "2" }, "matchExpressions": [{ "key": "k", "operator": "In", "values": ["x", "y"] }] });
        let budget = budget(json!({ "selector": selector }), json!({}));
        let want = "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},MatchExpressions:[]LabelSelectorRequirement{\
                    LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}";
        assert_eq!(selector_text(&budget), want);
    }
}
