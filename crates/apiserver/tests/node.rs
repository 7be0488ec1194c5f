//! A stolen kubelet identity reaches its own node and what that node's pods need, and nothing else.

mod support;

use anyhow::Result;
use serde_json::{Value, json};
use support::Api;

const ONE: &[(&str, &str)] = &[("impersonate-user", "system:node:one"), ("impersonate-group", "system:nodes")];

async fn created(api: &Api, path: &str, object: Value) -> Result<Value> {
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(&object)).await?;
    anyhow::ensure!(code == 201, "{path}: {answer}");
    Ok(answer)
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name}, "spec": {
            "nodeName": node, "serviceAccountName": name, "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "s", "secret": {"secretName": name}}],
        },
    })
}

/// Two nodes, each with a pod that has a secret and an account of its own name.
async fn two_nodes() -> Result<Api> {
    let api = Api::start().await?;
    for name in ["one", "two"] {
        created(&api, "/api/v1/nodes", json!({"metadata": {"name": name}})).await?;
        created(&api, "/api/v1/namespaces/default/secrets", json!({"metadata": {"name": name}})).await?;
        created(&api, "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": name}})).await?;
        created(&api, "/api/v1/namespaces/default/pods", pod(name, name)).await?;
    }
    api.json("GET /api/v1/pods", &[], None).await?;
    Ok(api)
}

async fn asks(api: &Api, what: &str, body: Option<&Value>) -> Result<(u16, String)> {
    let patch = ("content-type", "application/merge-patch+json");
    let headers: Vec<_> = ONE.iter().copied().chain(what.starts_with("PATCH").then_some(patch)).collect();
    let (code, answer) = api.json(what, &headers, body).await?;
    Ok((code, answer.get("message").and_then(Value::as_str).unwrap_or_default().to_owned()))
}

#[track_caller]
fn refused((code, why): (u16, String), want: &str) {
    assert_eq!(code, 403, "{why}");
    assert!(why.ends_with(want), "{why}");
}

#[tokio::test]
async fn a_node_reads_only_what_its_pods_need() -> Result<()> {
    let api = two_nodes().await?;
    let unrelated = "no relationship found between node 'one' and this object";
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(asks(&api, &format!("GET {secrets}/one"), None).await?.0, 200);
    assert_eq!(asks(&api, &format!("GET {secrets}?fieldSelector=metadata.name%3Done"), None).await?.0, 200);
    refused(asks(&api, &format!("GET {secrets}/two"), None).await?, unrelated);
    refused(asks(&api, &format!("GET {secrets}"), None).await?, "No Object name found");
    refused(asks(&api, "GET /api/v1/secrets", None).await?, "can only read namespaced object of this type");
    refused(asks(&api, &format!("DELETE {secrets}/one"), None).await?, "can only read resources of this type");
    assert_eq!(asks(&api, "GET /api/v1/namespaces/default/pods/one", None).await?.0, 200);
    refused(asks(&api, "GET /api/v1/namespaces/default/pods/two", None).await?, unrelated);
    assert_eq!(asks(&api, "GET /api/v1/pods?fieldSelector=spec.nodeName%3Done", None).await?.0, 200);
    let pods = "can only list/watch pods with spec.nodeName field selector";
    refused(asks(&api, "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dtwo", None).await?, pods);
    assert_eq!(asks(&api, "GET /api/v1/nodes/one", None).await?.0, 200);
    refused(asks(&api, "GET /api/v1/nodes/two", None).await?, "node 'one' cannot read 'two', only its own Node object");
    // Once the pod is gone, so is its node's right.
    let gone = api.json("DELETE /api/v1/namespaces/default/pods/one?gracePeriodSeconds=0", &[], None).await?;
    assert_eq!(gone.0, 200, "{}", gone.1);
    api.json("GET /api/v1/pods", &[], None).await?;
    refused(asks(&api, &format!("GET {secrets}/one"), None).await?, unrelated);
    Ok(())
}

#[tokio::test]
async fn a_node_writes_only_itself_and_its_pods() -> Result<()> {
    let api = two_nodes().await?;
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    assert_eq!(asks(&api, "PATCH /api/v1/nodes/one", Some(&label("example.com/a"))).await?.0, 200);
    let restricted = asks(&api, "PATCH /api/v1/nodes/one", Some(&label("node-restriction.kubernetes.io/a"))).await?;
    refused(restricted, "is not allowed to modify labels: node-restriction.kubernetes.io/a");
    let other = asks(&api, "PATCH /api/v1/nodes/two", Some(&label("example.com/a"))).await?;
    refused(other, "node \"one\" is not allowed to modify node \"two\"");
    let taint = json!({"spec": {"taints": []}});
    refused(asks(&api, "PATCH /api/v1/nodes/one", Some(&taint)).await?, "node \"one\" is not allowed to modify taints");
    assert_eq!(asks(&api, "DELETE /api/v1/nodes/one", None).await?.0, 403);
    let status = json!({"status": {"message": "x"}});
    assert_eq!(asks(&api, "PATCH /api/v1/namespaces/default/pods/one/status", Some(&status)).await?.0, 200);
    let other = asks(&api, "PATCH /api/v1/namespaces/default/pods/two/status", Some(&status)).await?;
    refused(other, "node \"one\" can only update pod status for pods with spec.nodeName set to itself");
    let other = asks(&api, "DELETE /api/v1/namespaces/default/pods/two", None).await?;
    refused(other, "node \"one\" can only delete pods with spec.nodeName set to itself");
    let eviction = json!({"metadata": {"name": "two"}});
    let other = asks(&api, "POST /api/v1/namespaces/default/pods/two/eviction", Some(&eviction)).await?;
    refused(other, "node one can only evict pods with spec.nodeName set to itself");
    let mut new = pod("one", "one");
    if let Some(name) = new.pointer_mut("/metadata/name") {
        *name = "new".into();
    }
    let plain = asks(&api, "POST /api/v1/namespaces/default/pods", Some(&new)).await?;
    refused(
        plain,
        "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"one\" can only create mirror pods",
    );
    let lease = json!({"metadata": {"name": "two"}});
    let other = asks(&api, "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", Some(&lease)).await?;
    refused(other, "can only access node lease with the same name as the requesting node");
    let elsewhere = asks(&api, "POST /apis/coordination.k8s.io/v1/namespaces/default/leases", Some(&lease)).await?;
    refused(elsewhere, "can only access leases in the \"kube-node-lease\" system namespace");
    Ok(())
}

#[tokio::test]
async fn a_node_gets_tokens_only_for_its_pods() -> Result<()> {
    let api = two_nodes().await?;
    let (_, own) = api.json("GET /api/v1/namespaces/default/pods/one", &[], None).await?;
    let uid = own.pointer("/metadata/uid").cloned().unwrap_or_default();
    let bound =
        |reference: Value, audiences: Value| json!({"spec": {"boundObjectRef": reference, "audiences": audiences}});
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": uid});
    let path = |name: &str| format!("POST /api/v1/namespaces/default/serviceaccounts/{name}/token");
    assert_eq!(asks(&api, &path("one"), Some(&bound(reference.clone(), json!([])))).await?.0, 201);
    let other = asks(&api, &path("two"), Some(&bound(reference.clone(), json!([])))).await?;
    refused(other, "no relationship found between node 'one' and this object");
    let unbound = asks(&api, &path("one"), Some(&json!({"spec": {}}))).await?;
    refused(unbound, "node requested token not bound to a pod");
    let foreign = asks(&api, &path("one"), Some(&bound(reference, json!(["vault"])))).await?;
    refused(
        foreign,
        "audience \"vault\" not found in pod spec volume, system:node:one is not authorized to request tokens for this audience",
    );
    Ok(())
}
