//! A Job's life in steps: each case is a spec, the pods there are, and what follows.

use serde_json::{Value, json};

use super::*;

fn job(spec: Value, status: Value) -> Job {
    let mut full = json!({ "template": { "spec": { "containers": [], "restartPolicy": "Never" } },
        "parallelism": 1, "completions": 1, "backoffLimit": 1 });
    for (key, value) in spec.as_object().unwrap() {
        full[key] = value.clone();
    }
    serde_json::from_value(
        json!({ "metadata": { "name": "j", "namespace": "default", "uid": "j" }, "spec": full, "status": status }),
    )
    .unwrap()
}

/// "name=phase", then `t` tracked, `d` deleting, `/index`.
fn pods(text: &str) -> Vec<Arc<Pod>> {
    let pod = |word: &str| {
        let (name, rest) = word.split_once('=').unwrap();
        let (rest, index) = rest.split_once('/').unwrap_or((rest, ""));
        let (phase, flags) = rest.split_once('!').unwrap_or((rest, ""));
        Arc::new(
            serde_json::from_value(json!({ "metadata": { "name": name, "uid": name,
                "finalizers": if flags.contains('t') { json!([super::super::pods::FINALIZER]) } else { json!([]) },
                "annotations": { "batch.kubernetes.io/job-completion-index": index },
                "deletionTimestamp": flags.contains('d').then_some("2026-01-01T00:00:00Z") },
                "status": { "phase": phase } }))
            .unwrap(),
        )
    };
    text.split_whitespace().map(pod).collect()
}

fn now() -> Timestamp {
    "2026-01-01T00:01:00Z".parse().unwrap()
}

#[track_caller]
fn check(job: &Job, text: &str, want: &str) -> Job {
    let plan = plan(job, &pods(text), now());
    let names = |pods: &[Arc<Pod>]| pods.iter().map(|pod| meta::name(&**pod).to_owned()).collect::<Vec<_>>().join(",");
    let conditions: Vec<_> =
        plan.status.conditions.iter().flatten().filter(|c| c.status == "True").map(|c| c.type_.as_str()).collect();
    let (succeeded, failed) = ended(&plan.status);
    let create: Vec<_> = plan.create.iter().map(|index| index.map_or("*".into(), |index| index.to_string())).collect();
    let text_of = format!(
        "+{} -{} ~{} s{succeeded} f{failed} {}",
        create.join(","),
        names(&plan.delete),
        names(&plan.release),
        conditions.join(",")
    );
    assert_eq!(text_of.trim_end(), want, "{text}");
    Job { status: Some(plan.status), ..job.clone() }
}

#[test]
fn a_pod_is_counted_once_and_then_the_job_is_complete() {
    let started = check(&job(json!({}), json!({})), "", "+* - ~ s0 f0");
    let running = check(&started, "a=Running!t", "+ - ~ s0 f0");
    let seen = check(&running, "a=Succeeded!t", "+ - ~a s1 f0 SuccessCriteriaMet");
    let again = check(&seen, "a=Succeeded!t", "+ - ~a s1 f0 SuccessCriteriaMet");
    let done = check(&again, "a=Succeeded", "+ - ~ s1 f0 SuccessCriteriaMet,Complete");
    assert!(is_finished(&done) && done.status.as_ref().unwrap().completion_time.is_some());
}

#[test]
fn failures_are_retried_up_to_the_limit() {
    let once = check(&job(json!({}), json!({})), "a=Failed!t", "+* - ~a s0 f1");
    let counted = check(&once, "a=Failed", "+* - ~ s0 f1");
    let twice = check(&counted, "a=Failed b=Failed!t", "+ - ~b s0 f2 FailureTarget");
    let done = check(&twice, "a=Failed b=Failed", "+ - ~ s0 f2 FailureTarget,Failed");
    assert!(is_finished(&done));
}

#[test]
fn a_pod_deleted_while_running_has_failed_and_its_end_is_awaited() {
    check(&job(json!({}), json!({})), "a=Running!td", "+* - ~a s0 f1");
    let over = job(json!({ "backoffLimit": 0 }), json!({}));
    check(&over, "a=Failed!t b=Running!t", "+ -b ~a s0 f1 FailureTarget");
}

#[test]
fn parallelism_and_completions_bound_the_number_of_pods() {
    check(&job(json!({ "parallelism": 3, "completions": 5 }), json!({})), "", "+*,*,* - ~ s0 f0");
    check(&job(json!({ "parallelism": 3, "completions": 5 }), json!({ "succeeded": 4 })), "", "+* - ~ s4 f0");
    check(&job(json!({ "parallelism": 1, "completions": 5 }), json!({})), "a=Running!t b=Running!t", "+ -a ~ s0 f0");
    check(
        &job(json!({ "parallelism": 2, "completions": null }), json!({ "succeeded": 1 })),
        "a=Running!t",
        "+ - ~ s1 f0",
    );
}

#[test]
fn indexes_are_each_completed_once() {
    let indexed = job(json!({ "parallelism": 2, "completions": 3, "completionMode": "Indexed" }), json!({}));
    let first = check(&indexed, "a=Succeeded!t/1", "+0,2 - ~a s1 f0");
    assert_eq!(first.status.as_ref().unwrap().completed_indexes.as_deref(), Some("1"));
    check(&first, "a=Succeeded/1 b=Running!t/0", "+2 - ~ s1 f0");
}

#[test]
fn suspension_removes_pods_and_a_deadline_ends_the_job() {
    check(&job(json!({ "suspend": true }), json!({})), "a=Running!t", "+ -a ~ s0 f0 Suspended");
    let late = job(json!({ "activeDeadlineSeconds": 30 }), json!({ "startTime": "2026-01-01T00:00:00Z" }));
    check(&late, "a=Running!t", "+ -a ~ s0 f0 FailureTarget");
}

#[test]
fn what_is_not_supported_is_named() {
    assert_eq!(unsupported(&job(json!({ "backoffLimitPerIndex": 1 }), json!({}))), Some("backoffLimitPerIndex"));
    assert_eq!(unsupported(&job(json!({}), json!({}))), None);
}
