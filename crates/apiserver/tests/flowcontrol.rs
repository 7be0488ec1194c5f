//! Priority and fairness through the API: who is matched, who waits, who is refused, and what is told of it.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::FlowSettings;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::Api;

const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const WATCH: &str = "GET /api/v1/namespaces/default/configmaps?watch=true&resourceVersion=1000000";
const LIST: &str = "GET /api/v1/namespaces/default/configmaps";

async fn create(api: &Api, path: &str, object: Value) -> Result<()> {
    let (code, answer) =
        api.json(&format!("POST {path}"), &[("content-type", "application/json")], Some(&object)).await?;
    anyhow::ensure!(code == 201, "{code} {answer}");
    Ok(())
}

fn schema(name: &str, level: &str, user: &str) -> Value {
    let rule =
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true});
    json!({
        "kind": "FlowSchema", "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": 10, "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [{"kind": "User", "user": {"name": user}}], "resourceRules": [rule]}],
        },
    })
}

fn level(name: &str, response: Value) -> Value {
    let limited = json!({"nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": response});
    json!({
        "kind": "PriorityLevelConfiguration", "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "metadata": {"name": name},
        "spec": {"type": "Limited", "limited": limited},
    })
}

/// Asks again until the answer is as wanted.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let asking = async {
        loop {
            if let Some(found) = ask().await? {
                return anyhow::Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), asking).await.with_context(|| what.to_owned())?
}

fn uid_of(response: &http::Response<apiserver::Body>, header: &str) -> String {
    response.headers().get(header).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

async fn bind_bob(api: &Api) -> Result<()> {
    let binding = json!({
        "kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "bob"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
    });
    create(api, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await
}

/// A server with one seat for `bob`, whom everything is allowed.
async fn start(response: Value) -> Result<Api> {
    let api = Api::start_with(|config| {
        config.flow =
            FlowSettings { max_requests_inflight: 1, max_mutating_requests_inflight: 0, ..FlowSettings::default() };
    })
    .await?;
    bind_bob(&api).await?;
    create(&api, LEVELS, level("narrow", response)).await?;
    create(&api, SCHEMAS, schema("bobs", "narrow", "bob")).await?;
    let (_, made) = api.json(&format!("GET {SCHEMAS}/bobs"), &[], None).await?;
    let wanted = made.pointer("/metadata/uid").and_then(Value::as_str).context("a uid")?.to_owned();
    until("the schema is in use", async || {
        let uid = uid_of(&api.send_as("bob", LIST).await?, "x-kubernetes-pf-flowschema-uid");
        Ok((uid == wanted).then_some(()))
    })
    .await?;
    Ok(api)
}

#[tokio::test]
async fn an_answer_names_its_schema_and_level_and_a_full_level_refuses() -> Result<()> {
    let api = start(json!({"type": "Reject"})).await?;
    let (_, narrow) = api.json(&format!("GET {LEVELS}/narrow"), &[], None).await?;
    // A watch that has not begun to tell keeps its seat.
    let watch = api.send_as("bob", WATCH).await?;
    assert_eq!(watch.status(), 200);
    let uid = uid_of(&watch, "x-kubernetes-pf-prioritylevel-uid");
    assert_eq!(narrow.pointer("/metadata/uid").and_then(Value::as_str), Some(uid.as_str()));
    let refused = api.send_as("bob", LIST).await?;
    assert_eq!((refused.status().as_u16(), uid_of(&refused, "retry-after").as_str()), (429, "1"));
    assert_eq!(uid_of(&refused, "x-kubernetes-pf-prioritylevel-uid"), uid);
    assert_eq!(uid_of(&refused, "content-type"), "text/plain; charset=utf-8");
    let text = refused.into_body().collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
    assert_eq!(text, "Too many requests, please try again later.\n");
    // Streams and the administrator are not held up; nor are others.
    assert_eq!(api.send_as("bob", "GET /api/v1/namespaces/default/pods/x/log").await?.status(), 404);
    assert_eq!(api.call(LIST, &[], "").await?.0, 200);
    assert_eq!(api.send_as("ann", LIST).await?.status(), 403);
    let (_, _, told) = api.call("GET /metrics", &[], "").await?;
    let told = String::from_utf8_lossy(&told).into_owned();
    for line in [
        "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"bobs\",priority_level=\"narrow\",reason=\"concurrency-limit\"} 1",
        "apiserver_flowcontrol_current_executing_requests{flow_schema=\"bobs\",priority_level=\"narrow\"} 1",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"narrow\"} 1",
        "apiserver_flowcontrol_work_estimated_seats_bucket{flow_schema=\"bobs\",priority_level=\"narrow\",le=\"1\"} ",
        "apiserver_flowcontrol_request_execution_seconds_count{type=\"regular\",flow_schema=\"bobs\",priority_level=\"narrow\"} ",
        "apiserver_flowcontrol_watch_count_samples_bucket{flow_schema=\"",
        "apiserver_flowcontrol_request_queue_length_after_enqueue_bucket{flow_schema=\"",
        "apiserver_flowcontrol_priority_level_seat_utilization_count{phase=\"executing\",priority_level=\"narrow\"} ",
        "apiserver_flowcontrol_priority_level_request_utilization_sum{phase=\"waiting\",priority_level=\"narrow\"} 0",
        "apiserver_flowcontrol_demand_seats_bucket{priority_level=\"narrow\",le=\"1\"} ",
        "apiserver_flowcontrol_target_seats{priority_level=\"narrow\"} 1",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    let (_, _, dumped) =
        api.call("GET /debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1", &[], "").await?;
    let dumped = String::from_utf8_lossy(&dumped).into_owned();
    assert!(dumped.contains("bob,") && dumped.contains("/api/v1/namespaces/default/configmaps"), "{dumped}");
    // Once it has told what there is, it has no seat any more.
    let mut body = watch.into_body();
    assert!(tokio::time::timeout(Duration::from_millis(1), body.frame()).await.is_err());
    assert_eq!(api.send_as("bob", LIST).await?.status(), 200);
    Ok(())
}

#[tokio::test]
async fn who_finds_no_seat_waits_for_one() -> Result<()> {
    let api = start(json!({"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1}})).await?;
    let watch = api.send_as("bob", WATCH).await?;
    let waiting = api.send_as("bob", LIST);
    tokio::pin!(waiting);
    assert!(futures::poll!(&mut waiting).is_pending());
    assert_eq!(api.send_as("bob", LIST).await?.status(), 429, "the queue is full");
    let (_, _, dumped) = api.call("GET /debug/api_priority_and_fairness/dump_priority_levels", &[], "").await?;
    let dumped = String::from_utf8_lossy(&dumped).into_owned();
    let row = dumped.lines().find(|line| line.starts_with("narrow,")).context("a row")?;
    let cells: Vec<&str> = row.split(", ").map(str::trim).collect();
    assert_eq!(cells.get(1..6), Some(["1", "false", "false", "1", "1"].as_slice()), "{dumped}");
    drop(watch);
    assert_eq!(waiting.await?.status(), 200);
    // One that goes away leaves nothing behind.
    let watch = api.send_as("bob", WATCH).await?;
    {
        let waiting = api.send_as("bob", LIST);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
    }
    drop(watch);
    let (_, _, dumped) = api.call("GET /debug/api_priority_and_fairness/dump_priority_levels", &[], "").await?;
    let dumped = String::from_utf8_lossy(&dumped).into_owned();
    let row = dumped.lines().find(|line| line.starts_with("narrow,")).context("a row")?;
    assert!(row.contains("true"), "it is idle: {row}");
    Ok(())
}

#[tokio::test]
async fn nobody_waits_longer_than_a_quarter_of_their_time() -> Result<()> {
    let api = start(json!({"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 9}})).await?;
    let _watch = api.send_as("bob", WATCH).await?;
    // Not before: the store writes on a thread of its own, which this clock does not wait for.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    assert_eq!(api.send_as("bob", LIST).await?.status(), 429);
    assert_eq!(begun.elapsed().as_secs(), 15);
    let begun = tokio::time::Instant::now();
    assert_eq!(api.send_as("bob", &format!("{LIST}?timeout=8s")).await?.status(), 429);
    assert_eq!(begun.elapsed().as_secs(), 2);
    Ok(())
}

#[tokio::test]
async fn a_schema_that_leads_nowhere_says_so_and_what_every_cluster_has_comes_back() -> Result<()> {
    let api = Api::start().await?;
    create(&api, SCHEMAS, schema("lost", "missing", "bob")).await?;
    let dangling = async |want: &str| {
        until(&format!("Dangling={want}"), async || {
            let (_, found) = api.json(&format!("GET {SCHEMAS}/lost"), &[], None).await?;
            let condition = found.pointer("/status/conditions/0").cloned().unwrap_or_default();
            Ok((condition.get("status") == Some(&json!(want))).then_some(condition))
        })
        .await
    };
    let condition = dangling("True").await?;
    let message = "This FlowSchema references the PriorityLevelConfiguration object named \"missing\" but there is no such object";
    assert_eq!((condition.get("reason"), condition.get("message")), (Some(&json!("NotFound")), Some(&json!(message))));
    create(&api, LEVELS, level("missing", json!({"type": "Reject"}))).await?;
    assert_eq!(dangling("False").await?.get("reason"), Some(&json!("Found")));
    let (_, before) = api.json(&format!("GET {LEVELS}/catch-all"), &[], None).await?;
    api.call(&format!("DELETE {LEVELS}/catch-all"), &[], "").await?;
    until("catch-all is back", async || {
        let (code, after) = api.json(&format!("GET {LEVELS}/catch-all"), &[], None).await?;
        Ok((code == 200 && after.pointer("/metadata/uid") != before.pointer("/metadata/uid")).then_some(()))
    })
    .await
}

#[tokio::test]
async fn without_fairness_only_numbers_count() -> Result<()> {
    let api = Api::start_with(|config| {
        config.flow = FlowSettings {
            enable_priority_and_fairness: false,
            max_requests_inflight: 1,
            max_mutating_requests_inflight: 1,
        };
    })
    .await?;
    bind_bob(&api).await?;
    let big = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"generateName": "big-"}, "data": {"a": "x".repeat(200_000)}});
    for _ in 0..8 {
        create(&api, "/api/v1/namespaces/default/configmaps", big.clone()).await?;
    }
    // A list that is not read to its end.
    let held = api.send_as("bob", LIST).await?;
    assert_eq!((held.status().as_u16(), uid_of(&held, "x-kubernetes-pf-flowschema-uid").as_str()), (200, ""));
    let refused = api.send_as("bob", LIST).await?;
    assert_eq!((refused.status().as_u16(), uid_of(&refused, "retry-after").as_str()), (429, "1"));
    assert_eq!(api.send_as("bob", WATCH).await?.status(), 200, "watches are not counted");
    assert_eq!(api.call(LIST, &[], "").await?.0, 200, "an administrator always gets an answer");
    drop(held);
    assert_eq!(api.send_as("bob", LIST).await?.status(), 200);
    Ok(())
}
