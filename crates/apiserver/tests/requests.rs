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
    assert_eq!(review(&api, &of_node).await?["error"], json!("the token's node no longer exists"));
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
