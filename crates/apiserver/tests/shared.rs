//! A cluster is shared: many ask at once for what there is only so much of, and some ask for what is not theirs.

#![allow(clippy::indexing_slicing)] // Answers of the API are taken apart as they are.

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use apiserver::{Audit, AuditLog};
use serde_json::{Value, json};
use support::Api;
use tokio::task::JoinSet;

const CLIENTS: usize = 64;
const DEFAULT: &str = "/api/v1/namespaces/default";

/// What `CLIENTS` clients are answered who all send at the same moment.
async fn together(api: &Arc<Api>, request: impl Fn(usize) -> (String, Value)) -> Result<Vec<(u16, Value)>> {
    let start = Arc::new(tokio::sync::Barrier::new(CLIENTS));
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        let (api, start, (what, body)) = (api.clone(), start.clone(), request(index));
        clients.spawn(async move {
            start.wait().await;
            api.json(&what, &[], Some(&body)).await
        });
    }
    clients.join_all().await.into_iter().collect()
}

fn successes(answers: &[(u16, Value)]) -> usize {
    answers.iter().filter(|(code, _)| *code == 201).count()
}

async fn created(api: &Api, path: &str, object: Value) -> Result<Value> {
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(&object)).await?;
    ensure!(code == 201, "{path}: {answer}");
    Ok(answer)
}

fn service(name: String, more: &Value) -> Value {
    let mut spec = json!({"ports": [{"port": 80}]});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_never_exceeded() -> Result<()> {
    let api = Arc::new(Api::start().await?);
    let quota = json!({
        "metadata": {"name": "q"},
        "spec": {"hard": {"count/configmaps": "10", "requests.cpu": "1", "pods": "100"}},
    });
    let quota = created(&api, &format!("{DEFAULT}/resourcequotas"), quota).await?;
    // As its controller would: a quota counts from when it is first calculated.
    let mut counted = quota;
    counted["status"] = json!({
        "hard": counted["spec"]["hard"],
        "used": {"count/configmaps": "0", "requests.cpu": "0", "pods": "0"},
    });
    let (code, answer) = api.json(&format!("PUT {DEFAULT}/resourcequotas/q/status"), &[], Some(&counted)).await?;
    assert_eq!(code, 200, "{answer}");
    let map = |index| (format!("POST {DEFAULT}/configmaps"), json!({"metadata": {"name": format!("m{index}")}}));
    let answers = together(&api, map).await?;
    assert_eq!(successes(&answers), 10);
    let refused =
        answers.iter().find(|(code, _)| *code != 201).map(|(code, answer)| (*code, answer["message"].clone()));
    let (code, why) = refused.unwrap_or_default();
    assert_eq!(code, 403, "{why}");
    assert!(why.as_str().is_some_and(|why| why.contains("exceeded quota: q, requested: count/configmaps=1")), "{why}");
    created(&api, &format!("{DEFAULT}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await?;
    let pod = |index| {
        let resources = json!({"requests": {"cpu": "150m"}});
        let spec = json!({"containers": [{"name": "c", "image": "i", "resources": resources}]});
        (format!("POST {DEFAULT}/pods"), json!({"metadata": {"name": format!("p{index}")}, "spec": spec}))
    };
    assert_eq!(successes(&together(&api, pod).await?), 6, "of 150m each, 1 holds six");
    let (_, quota) = api.json(&format!("GET {DEFAULT}/resourcequotas/q"), &[], None).await?;
    assert_eq!(quota["status"]["used"], json!({"count/configmaps": "10", "requests.cpu": "900m", "pods": "6"}));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_or_a_port_is_never_given_twice() -> Result<()> {
    let api = Arc::new(Api::start().await?);
    let services = format!("{DEFAULT}/services");
    let answers = together(&api, |index| {
        (format!("POST {services}"), service(format!("s{index}"), &json!({"type": "NodePort"})))
    });
    let answers = answers.await?;
    assert_eq!(successes(&answers), CLIENTS);
    let distinct =
        |read: &dyn Fn(&Value) -> Value| answers.iter().map(|(_, s)| read(s).to_string()).collect::<HashSet<_>>().len();
    assert_eq!(distinct(&|s| s["spec"]["clusterIP"].clone()), CLIENTS);
    assert_eq!(distinct(&|s| s["spec"]["ports"][0]["nodePort"].clone()), CLIENTS);

    let fixed = json!({"clusterIP": "10.96.0.77"});
    let answers = together(&api, |index| (format!("POST {services}"), service(format!("ip{index}"), &fixed))).await?;
    assert_eq!(successes(&answers), 1, "one address, asked for by all");
    let fixed = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30042}]});
    let answers = together(&api, |index| (format!("POST {services}"), service(format!("port{index}"), &fixed))).await?;
    assert_eq!(successes(&answers), 1, "one port, asked for by all");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_never_break_a_budget() -> Result<()> {
    let api = Arc::new(Api::start().await?);
    created(&api, &format!("{DEFAULT}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await?;
    for index in 0..CLIENTS {
        let pod = json!({
            "metadata": {"name": format!("p{index}"), "labels": {"app": "a"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        });
        let mut pod = created(&api, &format!("{DEFAULT}/pods"), pod).await?;
        pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        api.json(&format!("PUT {DEFAULT}/pods/p{index}/status"), &[], Some(&pod)).await?;
    }
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 59, "selector": {"matchLabels": {"app": "a"}}}});
    let mut budget = created(&api, budgets, budget).await?;
    // As its controller would.
    budget["status"] = json!({
        "observedGeneration": 1, "disruptionsAllowed": 5, "currentHealthy": 64, "desiredHealthy": 59, "expectedPods": 64,
    });
    let (code, answer) = api.json(&format!("PUT {budgets}/b/status"), &[], Some(&budget)).await?;
    assert_eq!(code, 200, "{answer}");
    let answers = together(&api, |index| {
        (format!("POST {DEFAULT}/pods/p{index}/eviction"), json!({"metadata": {"name": format!("p{index}")}}))
    });
    let answers = answers.await?;
    assert!(successes(&answers) <= 5, "{} of 5 that may go", successes(&answers));
    assert!(answers.iter().all(|(code, _)| matches!(code, 201 | 429)), "{answers:?}");
    let (_, budget) = api.json(&format!("GET {budgets}/b"), &[], None).await?;
    assert_eq!(budget["status"]["disruptionsAllowed"], 5 - successes(&answers));
    Ok(())
}

/// Every path that discovery names, as its verbs write to it.
async fn writes(api: &Api) -> Result<Vec<String>> {
    let (_, groups) = api.json("GET /apis", &[], None).await?;
    let groups = groups["groups"].as_array().cloned().unwrap_or_default();
    let versions = groups.iter().flat_map(|group| group["versions"].as_array().into_iter().flatten());
    let mut places = vec!["/api/v1".to_owned()];
    places.extend(versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap_or_default())));
    let mut found = Vec::new();
    for place in places {
        let (_, list) = api.json(&format!("GET {place}"), &[], None).await?;
        for resource in list["resources"].as_array().into_iter().flatten() {
            let (name, subresource) = match resource["name"].as_str().unwrap_or_default().split_once('/') {
                Some((name, subresource)) => (name, format!("/{subresource}")),
                None => (resource["name"].as_str().unwrap_or_default(), String::new()),
            };
            let namespace = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let collection = format!("{place}{namespace}/{name}");
            for verb in resource["verbs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                found.extend(match verb {
                    "create" if subresource.is_empty() => Some(format!("POST {collection}")),
                    "create" => Some(format!("POST {collection}/x{subresource}")),
                    "update" => Some(format!("PUT {collection}/x{subresource}")),
                    "patch" => Some(format!("PATCH {collection}/x{subresource}")),
                    "delete" => Some(format!("DELETE {collection}/x{subresource}")),
                    "deletecollection" => Some(format!("DELETE {collection}")),
                    _ => None,
                });
            }
        }
    }
    Ok(found)
}

/// Nobody and anybody may write nothing; each refusal is in the audit log.
#[tokio::test]
async fn who_proves_nothing_writes_nothing_and_it_is_written_down() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let log = AuditLog { path: dir.path().join("audit.log"), max_age_days: 0, max_backups: 0, max_size_mib: 0 };
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]";
    let audit: Arc<Audit> = Audit::new(policy, log)?.into();
    let runtime_config = apiserver::RuntimeConfig::new(&["api/all=true".to_owned()])?;
    let api = Api::start_with(|config| (config.audit, config.runtime_config) = (Some(audit), runtime_config)).await?;
    let writes = writes(&api).await?;
    assert!(writes.len() > 400, "{} writes", writes.len());
    let mut refused = 0;
    for what in &writes {
        let (code, ..) = api.stranger(what, &[], "{}").await?;
        assert_eq!(code, 403, "{what} by nobody");
        // Reviews of oneself are everybody's.
        let is_own = what.contains("/selfsubject");
        let (code, answer) = api.json(what, &[("impersonate-user", "bob")], Some(&json!({}))).await?;
        assert_eq!(code != 403, is_own, "{what} by anybody: {answer}");
        let (code, ..) = api.stranger(what, &[("authorization", "Bearer nonsense")], "{}").await?;
        assert_eq!(code, 401, "{what} with a made-up token");
        refused += if is_own { 2 } else { 3 };
    }
    let text = std::fs::read_to_string(dir.path().join("audit.log"))?;
    let events = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let denied = events.iter().filter(|event| matches!(event["responseStatus"]["code"].as_u64(), Some(401 | 403)));
    // One that goes on after its answer has begun is written down twice.
    assert_eq!(denied.map(|event| event["auditID"].as_str()).collect::<HashSet<_>>().len(), refused);
    Ok(())
}

/// A token ends with what it is bound to, at the next request.
#[tokio::test]
async fn tokens_end_with_their_pods_and_accounts() -> Result<()> {
    let api = Api::start().await?;
    for name in ["default", "other"] {
        created(&api, &format!("{DEFAULT}/serviceaccounts"), json!({"metadata": {"name": name}})).await?;
    }
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let pod = created(&api, &format!("{DEFAULT}/pods"), pod).await?;
    let token = async |account: &str, bound: Value| -> Result<String> {
        let request = json!({"spec": {"boundObjectRef": bound, "audiences": []}});
        let answer = created(&api, &format!("{DEFAULT}/serviceaccounts/{account}/token"), request).await?;
        Ok(answer["status"]["token"].as_str().unwrap_or_default().to_owned())
    };
    let uid = &pod["metadata"]["uid"];
    let of_pod = token("default", json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid})).await?;
    let of_account = token("other", Value::Null).await?;
    let asked = async |token: &str| -> Result<u16> {
        // What was written before is known by the time a list is answered.
        api.json(&format!("GET {DEFAULT}/pods"), &[], None).await?;
        Ok(api.stranger("GET /version", &[("authorization", &format!("Bearer {token}"))], "").await?.0)
    };
    assert_eq!((asked(&of_pod).await?, asked(&of_account).await?), (200, 200));
    api.json(&format!("DELETE {DEFAULT}/pods/p?gracePeriodSeconds=0"), &[], None).await?;
    assert_eq!((asked(&of_pod).await?, asked(&of_account).await?), (401, 200));
    api.json(&format!("DELETE {DEFAULT}/serviceaccounts/other"), &[], None).await?;
    assert_eq!(asked(&of_account).await?, 401);
    // One of the same name is another one.
    created(&api, &format!("{DEFAULT}/serviceaccounts"), json!({"metadata": {"name": "other"}})).await?;
    assert_eq!(asked(&of_account).await?, 401);
    Ok(())
}
