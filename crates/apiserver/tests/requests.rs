//! What single requests are answered: fields that come twice, forms that are not to be had, tokens and their nodes.

mod support;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use support::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn a_field_that_comes_twice_is_refused_or_warned_of() -> Result<()> {
    let api = Api::start().await?;
    let body = r#"{"metadata":{"name":"twice"},"odd":1,"data":{"a":"1","a":"2"}}"#;
    let (code, _, answer) = api.call(&format!("POST {MAPS}?fieldValidation=Strict"), &[], body).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let want = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \
                \"odd\", duplicate field \"data.a\"";
    assert_eq!((code, &answer["message"]), (400, &json!(want)));
    let (code, headers, answer) = api.call(&format!("POST {MAPS}"), &[], body).await?;
    let warnings: Vec<_> = headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect();
    assert_eq!(code, 201);
    assert_eq!(warnings, [r#"299 - "unknown field \"odd\"""#, r#"299 - "duplicate field \"data.a\"""#]);
    assert_eq!(serde_json::from_slice::<Value>(&answer)?["data"], json!({"a": "2"}));
    Ok(())
}

#[tokio::test]
async fn what_has_no_columns_is_not_shown_as_a_table() -> Result<()> {
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let api = Api::start().await?;
    let path = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let (code, answer) = api.json(path, &[("accept", TABLE)], Some(&review)).await?;
    assert_eq!((code, &answer["reason"]), (406, &json!("NotAcceptable")));
    let either = format!("{TABLE},application/json");
    let (code, answer) = api.json(path, &[("accept", &either)], Some(&review)).await?;
    assert_eq!((code, &answer["status"]["allowed"]), (201, &json!(true)));
    Ok(())
}

#[tokio::test]
async fn a_token_of_a_pod_tells_of_its_node_and_one_of_a_node_ends_with_it() -> Result<()> {
    let api = Api::start().await?;
    let node = json!({"metadata": {"name": "n"}});
    let account = json!({"metadata": {"name": "a"}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "serviceAccountName": "a", "nodeName": "n", "containers": [{"name": "c", "image": "i"}],
    }});
    let (_, node) = api.json("POST /api/v1/nodes", &[], Some(&node)).await?;
    api.json("POST /api/v1/namespaces/default/serviceaccounts", &[], Some(&account)).await?;
    let (code, pod) = api.json("POST /api/v1/namespaces/default/pods", &[], Some(&pod)).await?;
    assert_eq!(code, 201, "{pod}");
    let name = "authentication.kubernetes.io/node-name";
    let uid = "authentication.kubernetes.io/node-uid";
    for kind in ["Pod", "Node"] {
        let bound = if kind == "Pod" { "p" } else { "n" };
        let user = review(&api, &token(&api, kind, bound).await?).await?;
        assert_eq!(user["user"]["extra"][name], json!(["n"]), "{kind}");
        assert_eq!(user["user"]["extra"][uid], json!([node["metadata"]["uid"]]), "{kind}");
    }
    let (of_pod, of_node) = (token(&api, "Pod", "p").await?, token(&api, "Node", "n").await?);
    api.json("DELETE /api/v1/nodes/n", &[], None).await?;
    // Reviews look into the cache as it is; a read brings it up to date.
    assert_eq!(api.json("GET /api/v1/nodes/n", &[], None).await?.0, 404);
    assert_eq!(
        review(&api, &of_node).await?["error"],
        json!("[invalid bearer token, service account token has been invalidated]")
    );
    assert_eq!(review(&api, &of_pod).await?["authenticated"], json!(true));
    Ok(())
}

async fn token(api: &Api, kind: &str, name: &str) -> Result<String> {
    let request = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}}});
    let (_, answer) = api.json("POST /api/v1/namespaces/default/serviceaccounts/a/token", &[], Some(&request)).await?;
    Ok(answer.pointer("/status/token").and_then(Value::as_str).with_context(|| answer.to_string())?.to_owned())
}

async fn review(api: &Api, token: &str) -> Result<Value> {
    let request = json!({"spec": {"token": token}});
    let (_, answer) = api.json("POST /apis/authentication.k8s.io/v1/tokenreviews", &[], Some(&request)).await?;
    Ok(answer.get("status").cloned().unwrap_or_default())
}

#[tokio::test]
async fn nodes_are_selected_by_what_they_do_not_say() -> Result<()> {
    let api = Api::start().await?;
    for (name, held) in [("free", false), ("held", true)] {
        let node = json!({"metadata": {"name": name}, "spec": {"unschedulable": held}});
        api.json("POST /api/v1/nodes", &[], Some(&node)).await?;
    }
    let (_, list) = api.json("GET /api/v1/nodes?fieldSelector=spec.unschedulable%3Dfalse", &[], None).await?;
    let names: Vec<_> =
        list["items"].as_array().context("a list")?.iter().map(|node| &node["metadata"]["name"]).collect();
    assert_eq!(names, [&json!("free")]);
    Ok(())
}

/// Who may approve may annotate in the same request; the rest of the request stays as it is.
#[tokio::test]
async fn approval_takes_conditions_and_metadata() -> Result<()> {
    const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIcU1JR1JBZ0VBTUM4eEZUQVRCZ05WQkFvTURITjVjM1JsYlRw\
        dWIyUmxjekVXTUJRR0ExVUVBd3dOYzNsegpkR1Z0T201dlpHVTZZVEJaTUJNR0J5cUdTTTQ5QWdFR0NDcUdTTTQ5QXdFSEEwSUFC\
        RytnSlhHTWRKUUxEbE54CnNTQWJIY1lvV0RwbFhUWGw5TzUvenNCRkVVRW5zdFFTZWx5d0c1Y3QzYit5QmFvRVZIR2V1ME1hSlJ0\
        czhmSHYKT1VtRmFhQ2dBREFLQmdncWhrak9QUVFEQWdOSUFEQkZBaUFMZTMya0k0MVJvMFdrYTVqSmNGUzdDd3RqRTZKaQpFQkdQ\
        eENweEYxbXRuQUloQUlXTWhqS2ZIU1M0NUxRRjhoNis5V1ZGdDcwRDdjSCtZcWJRYWZrSm1mMDAKLS0tLS1FTkQgQ0VSVElGSUNB\
        VEUgUkVRVUVTVC0tLS0tCg==";
    const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let api = Api::start().await?;
    let request = json!({"metadata": {"name": "r"}, "spec": {
        "request": REQUEST, "signerName": "example.com/s", "usages": ["client auth"],
    }});
    let (code, created) = api.json(&format!("POST {REQUESTS}"), &[], Some(&request)).await?;
    assert_eq!(code, 201, "{created}");
    let patch = json!({"metadata": {"annotations": {"by": "me"}}, "spec": {"signerName": "example.com/t"},
        "status": {"certificate": "bm8=", "conditions": [{"type": "Odd", "status": "True"}]}});
    let merge = [("content-type", "application/merge-patch+json")];
    let (_, answer) = api.json(&format!("PATCH {REQUESTS}/r/approval"), &merge, Some(&patch)).await?;
    assert_eq!(answer["metadata"]["annotations"], json!({"by": "me"}));
    assert_eq!(answer["spec"]["signerName"], json!("example.com/s"));
    assert_eq!(
        (&answer["status"]["conditions"][0]["type"], answer["status"].get("certificate")),
        (&json!("Odd"), None)
    );
    Ok(())
}

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

async fn limit(api: &Api, name: &str, spec: Value, used: Value) -> Result<()> {
    let quota = json!({"metadata": {"name": name}, "spec": spec});
    let (code, mut quota) = api.json(&format!("POST {QUOTAS}"), &[], Some(&quota)).await?;
    anyhow::ensure!(code == 201, "{quota}");
    let hard = quota.pointer("/spec/hard").cloned();
    quota.as_object_mut().context("an object")?.insert("status".into(), json!({"hard": hard, "used": used}));
    let (code, answer) = api.json(&format!("PUT {QUOTAS}/{name}/status"), &[], Some(&quota)).await?;
    anyhow::ensure!(code == 200, "{answer}");
    Ok(())
}

async fn used(api: &Api, name: &str) -> Result<Value> {
    let (_, quota) = api.json(&format!("GET {QUOTAS}/{name}"), &[], None).await?;
    Ok(quota.pointer("/status/used").cloned().unwrap_or_default())
}

/// What is written is charged, what exceeds the quota is refused as upstream refuses it, what goes is given back.
#[tokio::test]
async fn a_quota_is_charged_with_what_it_counts() -> Result<()> {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let api = Api::start().await?;
    let account = json!({"metadata": {"name": "default"}});
    api.json("POST /api/v1/namespaces/default/serviceaccounts", &[], Some(&account)).await?;
    let hard = json!({"hard": {"pods": "2", "cpu": "1", "count/pods": "9", "secrets": "0"}});
    limit(&api, "q", hard, json!({"pods": "0", "cpu": "0", "count/pods": "0", "secrets": "0"})).await?;
    let pod = |name: &str, cpu: &str| {
        json!({"metadata": {"name": name}, "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}},
        ]}})
    };
    let create = async |pod: Value| api.json(&format!("POST {PODS}"), &[], Some(&pod)).await;
    assert_eq!(create(pod("a", "600m")).await?.0, 201);
    assert_eq!(used(&api, "q").await?, json!({"pods": "1", "cpu": "600m", "count/pods": "1", "secrets": "0"}));
    let (code, answer) = create(pod("b", "500m")).await?;
    let why = "pods \"b\" is forbidden: exceeded quota: q, requested: cpu=500m, used: cpu=600m, limited: cpu=1";
    assert_eq!((code, &answer["message"]), (403, &json!(why)));
    let silent = json!({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (code, answer) = create(silent).await?;
    let why = "pods \"b\" is forbidden: failed quota: q: must specify cpu for: c";
    assert_eq!((code, &answer["message"]), (403, &json!(why)));
    let (code, _) = api.json(&format!("POST {PODS}?dryRun=All"), &[], Some(&pod("b", "100m"))).await?;
    assert_eq!(code, 201);
    assert_eq!(create(pod("b", "100m")).await?.0, 201);
    assert_eq!(used(&api, "q").await?, json!({"pods": "2", "cpu": "700m", "count/pods": "2", "secrets": "0"}));
    // What has ended is counted as an object only, and one that is gone not at all.
    let ended = json!({"status": {"phase": "Succeeded"}});
    let merge = [("content-type", "application/merge-patch+json")];
    api.json(&format!("PATCH {PODS}/b/status"), &merge, Some(&ended)).await?;
    assert_eq!(used(&api, "q").await?, json!({"pods": "1", "cpu": "600m", "count/pods": "2", "secrets": "0"}));
    api.json(&format!("DELETE {PODS}/a?gracePeriodSeconds=0"), &[], None).await?;
    assert_eq!(used(&api, "q").await?, json!({"pods": "0", "cpu": "0", "count/pods": "1", "secrets": "0"}));
    let secret = json!({"metadata": {"name": "s"}});
    let (_, answer) = api.json("POST /api/v1/namespaces/default/secrets", &[], Some(&secret)).await?;
    let why =
        "secrets \"s\" is forbidden: exceeded quota: q, requested: secrets=1, used: secrets=0, limited: secrets=0";
    assert_eq!(answer["message"], json!(why));
    Ok(())
}

/// However many write at once, a quota is never overdrawn and never charged for what was refused.
#[tokio::test]
async fn writers_at_once_do_not_overdraw_a_quota() -> Result<()> {
    let api = Api::start().await?;
    limit(&api, "q", json!({"hard": {"configmaps": "10"}}), json!({"configmaps": "0"})).await?;
    let writes = (0..30).map(|number| {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        let api = &api;
        async move { api.json(&format!("POST {MAPS}"), &[], Some(&map)).await.map(|(code, _)| code) }
    });
    let codes = futures::future::try_join_all(writes).await?;
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 10, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 403).count(), 20, "{codes:?}");
    assert_eq!(used(&api, "q").await?, json!({"configmaps": "10"}));
    api.json(&format!("DELETE {MAPS}"), &[], None).await?;
    assert_eq!(used(&api, "q").await?, json!({"configmaps": "0"}));
    Ok(())
}
