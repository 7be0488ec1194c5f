//! Published vulnerabilities of Kubernetes' API server, tried on this one. Each test names the CVEs that it repeats.

#![allow(clippy::indexing_slicing)] // Answers of the API are taken apart as they are.

#[path = "support/https.rs"]
mod https;
mod support;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use apiserver::AdmissionSettings;
use serde_json::{Value, json};
use support::Api;

const NODE: &[(&str, &str)] = &[("impersonate-user", "system:node:one"), ("impersonate-group", "system:nodes")];
const JSON_PATCH: (&str, &str) = ("content-type", "application/json-patch+json");
const MERGE_PATCH: (&str, &str) = ("content-type", "application/merge-patch+json");
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn created(api: &Api, path: &str, object: Value) -> Result<Value> {
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(&object)).await?;
    ensure!(code == 201, "{path}: {answer}");
    Ok(answer)
}

fn message(answer: &Value) -> &str {
    answer["message"].as_str().unwrap_or_default()
}

/// CVE-2019-1002100, CVE-2019-11253: a small JSON patch makes an object that takes all memory, or takes all time to apply.
#[tokio::test]
async fn a_small_json_patch_makes_no_large_object() -> Result<()> {
    let api = Api::start().await?;
    created(&api, CONFIG_MAPS, json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(1000)}})).await?;
    let patch = format!("PATCH {CONFIG_MAPS}/a");
    // Each copies all that is there: 30 of them would make a billion of the first.
    let doubling: Vec<Value> =
        (0..30).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/{n}")})).collect();
    let (code, answer) = api.json(&patch, &[JSON_PATCH], Some(&json!(doubling))).await?;
    assert_eq!(code, 400, "{answer}");
    assert!(message(&answer).contains("accumulated size increase of copy"), "{answer}");
    let many = vec![json!({"op": "test", "path": "/data/k", "value": "x"}); 10_001];
    let (code, answer) = api.json(&patch, &[JSON_PATCH], Some(&json!(many))).await?;
    assert_eq!(code, 413, "{answer}");
    assert!(message(&answer).contains("allowed maximum operations in a JSON patch is 10000"), "{answer}");
    let (_, kept) = api.json(&format!("GET {CONFIG_MAPS}/a"), &[], None).await?;
    assert_eq!(kept["data"].as_object().map(serde_json::Map::len), Some(1));
    Ok(())
}

/// CVE-2019-11253, CVE-2019-11254: aliases of aliases in YAML stand for more than any memory holds.
#[tokio::test]
async fn a_yaml_bomb_is_refused() -> Result<()> {
    let api = Api::start().await?;
    let mut text =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (before, name) in ('a'..='h').zip('b'..='i') {
        let aliases = vec![format!("*{before}"); 9].join(",");
        text.push_str(&format!("  {name}: &{name} [{aliases}]\n"));
    }
    let begun = std::time::Instant::now();
    let (code, _, _) = api.call(&format!("POST {CONFIG_MAPS}"), &[("content-type", "application/yaml")], text).await?;
    assert!((400..500).contains(&code), "{code}");
    assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
    Ok(())
}

fn definition(scope: &str, plural: &str) -> Value {
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    json!({
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": scope, "names": {"plural": plural, "kind": "Thing"}, "versions": [version]},
    })
}

/// CVE-2019-11247: who may write custom resources in one namespace wrote those of the whole cluster through it.
/// CVE-2022-3162: who may read custom resources of one kind read those of another by a name that leads there.
#[tokio::test]
async fn custom_resources_are_reached_by_their_own_path_only() -> Result<()> {
    let api = Api::start().await?;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    created(&api, definitions, definition("Cluster", "things")).await?;
    for plural in ["..", "../pods", "a/b"] {
        let (code, answer) =
            api.json(&format!("POST {definitions}"), &[], Some(&definition("Cluster", plural))).await?;
        assert_eq!(code, 422, "{plural}: {answer}");
    }
    let things = "/apis/example.com/v1/things";
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}});
    let served = async {
        while api.json(&format!("POST {things}"), &[], Some(&thing)).await.map_or(0, |(code, _)| code) != 201 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served).await.context("the kind is not served")?;
    let within = "/apis/example.com/v1/namespaces/default/things";
    for what in [format!("GET {within}/a"), format!("GET {within}"), format!("DELETE {within}/a")] {
        assert_eq!(api.call(&what, &[], "").await?.0, 404, "{what}");
    }
    assert_eq!(api.call(&format!("POST {within}"), &[], thing.to_string()).await?.0, 404);
    created(&api, CONFIG_MAPS, json!({"metadata": {"name": "secret"}})).await?;
    for name in ["..%2Fconfigmaps%2Fdefault%2Fsecret", "..", "%2E%2E", "a%2F..%2Fa", "..%2F..%2Fconfigmaps"] {
        let (code, _, body) = api.call(&format!("GET {things}/{name}"), &[], "").await?;
        let body = String::from_utf8_lossy(&body);
        assert!((400..500).contains(&code), "{name}: {code} {body}");
        assert!(!body.contains("\"kind\":\"ConfigMap\""), "{name}: {body}");
    }
    Ok(())
}

/// CVE-2020-8555, CVE-2020-8562, CVE-2022-3294: the status of a pod or node leads the API server's proxy to its own machine.
#[tokio::test]
async fn nothing_is_proxied_to_the_servers_own_machine() -> Result<()> {
    let api = Api::start().await?;
    created(&api, "/api/v1/nodes", json!({"metadata": {"name": "one"}})).await?;
    let mut pod =
        json!({"metadata": {"name": "a"}, "spec": {"nodeName": "one", "containers": [{"name": "c", "image": "i"}]}});
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    created(&api, "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await?;
    created(&api, "/api/v1/namespaces/default/pods", pod).await?;
    for address in ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "0.0.0.0", "fe80::1"] {
        let of_node = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let of_pod = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        for (path, status, proxied) in [
            ("/api/v1/nodes/one", of_node, "/api/v1/nodes/one/proxy/x"),
            ("/api/v1/namespaces/default/pods/a", of_pod, "/api/v1/namespaces/default/pods/a:80/proxy/x"),
        ] {
            let (code, answer) = api.json(&format!("PATCH {path}/status"), &[MERGE_PATCH], Some(&status)).await?;
            if code == 422 {
                continue; // Not even an address.
            }
            assert_eq!(code, 200, "{answer}");
            let (code, answer) = api.json(&format!("GET {proxied}"), &[], None).await?;
            assert_eq!((code, message(&answer)), (400, "address not allowed"), "{address} {proxied}");
        }
    }
    Ok(())
}

/// CVE-2021-25737: endpoints at addresses of the machine itself lead clients of a service there.
#[tokio::test]
async fn slices_name_no_address_of_the_machine_itself() -> Result<()> {
    let api = Api::start().await?;
    for address in ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "127.00.0.1"] {
        let slice = json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": [address]}]});
        let path = "POST /apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        assert_eq!(api.json(path, &[], Some(&slice)).await?.0, 422, "{address}");
    }
    Ok(())
}

/// CVE-2021-25740: who may edit a namespace made a load balancer lead to the endpoints of another.
#[tokio::test]
async fn editors_write_no_endpoints() -> Result<()> {
    let api = Api::start().await?;
    for role in ["admin", "edit", "system:aggregate-to-admin", "system:aggregate-to-edit"] {
        let (_, answer) =
            api.json(&format!("GET /apis/rbac.authorization.k8s.io/v1/clusterroles/{role}"), &[], None).await?;
        for rule in answer["rules"].as_array().into_iter().flatten() {
            let names = |field: &str| rule[field].as_array().cloned().unwrap_or_default();
            let writes =
                names("verbs").iter().any(|verb| ["create", "update", "patch", "*"].iter().any(|word| verb == word));
            let endpoints =
                names("resources").iter().any(|of| ["endpoints", "endpointslices", "*"].iter().any(|word| of == word));
            assert!(!(writes && endpoints), "{role}: {rule}");
        }
    }
    Ok(())
}

/// CVE-2021-25735: a policy about nodes compared the new node with itself.
#[tokio::test]
async fn a_policy_sees_a_node_as_it_was() -> Result<()> {
    let api = Api::start().await?;
    let policies = "/apis/admissionregistration.k8s.io/v1";
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]});
    let same = json!({"expression": "object.metadata.labels['lock'] == oldObject.metadata.labels['lock']", "message": "locked"});
    let policy = json!({
        "metadata": {"name": "lock"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [same], "failurePolicy": "Fail"},
    });
    created(&api, "/api/v1/nodes", json!({"metadata": {"name": "one", "labels": {"lock": "a"}}})).await?;
    created(&api, &format!("{policies}/validatingadmissionpolicies"), policy).await?;
    let binding = json!({"metadata": {"name": "lock"}, "spec": {"policyName": "lock", "validationActions": ["Deny"]}});
    created(&api, &format!("{policies}/validatingadmissionpolicybindings"), binding).await?;
    let changed = json!({"metadata": {"labels": {"lock": "b"}}});
    let denied = async {
        loop {
            let (code, answer) = api.json("PATCH /api/v1/nodes/one?dryRun=All", &[MERGE_PATCH], Some(&changed)).await?;
            if code == 422 {
                return anyhow::Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(20), denied).await.context("the policy is not asked")??;
    assert!(message(&answer).contains("locked"), "{answer}");
    let (code, mut node) = api.json("GET /api/v1/nodes/one", &[], None).await?;
    assert_eq!(code, 200);
    node["metadata"]["labels"]["lock"] = json!("b");
    assert_eq!(api.json("PUT /api/v1/nodes/one", &[], Some(&node)).await?.0, 422);
    node["metadata"]["labels"]["lock"] = json!("a");
    node["metadata"]["labels"]["free"] = json!("c");
    assert_eq!(api.json("PUT /api/v1/nodes/one", &[], Some(&node)).await?.0, 200);
    Ok(())
}

/// CVE-2025-5187: a node that owned itself to something else was collected with it, and came back with other labels and taints.
/// CVE-2025-4563: a node made mirror pods that use devices which were not allocated to them.
#[tokio::test]
async fn a_node_takes_no_owner_and_claims_no_device() -> Result<()> {
    let api = Api::start().await?;
    let node = created(&api, "/api/v1/nodes", json!({"metadata": {"name": "one"}})).await?;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "1-2-3"});
    let patch = json!({"metadata": {"ownerReferences": [owner]}});
    for path in ["/api/v1/nodes/one", "/api/v1/nodes/one/status"] {
        let headers: Vec<_> = NODE.iter().copied().chain([MERGE_PATCH]).collect();
        let (code, answer) = api.json(&format!("PATCH {path}"), &headers, Some(&patch)).await?;
        let now = api.json("GET /api/v1/nodes/one", &[], None).await?.1;
        assert!(now["metadata"].get("ownerReferences").is_none(), "{path}: {code} {answer}");
        assert!(
            code == 200 || message(&answer).ends_with("is not allowed to modify ownerReferences"),
            "{path}: {answer}"
        );
    }
    let owned =
        json!({"apiVersion": "v1", "kind": "Node", "name": "one", "uid": node["metadata"]["uid"], "controller": true});
    let mut mirror = json!({
        "metadata": {"name": "a", "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [owned]},
        "spec": {"nodeName": "one", "containers": [{"name": "c", "image": "i"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]},
    });
    let pods = "POST /api/v1/namespaces/default/pods";
    let (code, answer) = api.json(pods, NODE, Some(&mirror)).await?;
    assert_eq!(code, 403, "{answer}");
    assert!(message(&answer).contains("resourceclaims"), "{answer}");
    mirror["spec"]["resourceClaims"] = json!([]);
    assert_eq!(api.json(pods, NODE, Some(&mirror)).await?.0, 201);
    Ok(())
}

/// A server that asks about images, and lets nothing run that is not answered.
async fn with_image_policy(server: &https::Https) -> Result<Api> {
    let dir = tempfile::tempdir()?;
    let webhook = dir.path().join("webhook.json");
    std::fs::write(&webhook, server.kubeconfig())?;
    let plugin = json!({"name": "ImagePolicyWebhook", "configuration": {"imagePolicy": {"kubeConfigFile": webhook}}});
    let settings = AdmissionSettings {
        enable: vec!["ImagePolicyWebhook".to_owned()],
        disable: Vec::new(),
        configuration: Some(json!({"plugins": [plugin]})),
    };
    let api = Api::start_with(|config| config.admission = settings).await?;
    created(&api, "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await?;
    Ok(api)
}

/// CVE-2020-8561: a webhook sends the API server to places that only that one reaches.
#[tokio::test]
async fn webhooks_are_not_followed_elsewhere() -> Result<()> {
    let elsewhere = https::Https::start(|_, _, _| json!({"status": {"allowed": true}})).await?;
    let to = elsewhere.url.clone();
    let answer = move |_| std::future::ready(https::Reply::Redirect(to.clone()));
    let server = https::Https::answering(&["localhost"], answer).await?;
    let api = with_image_policy(&server).await?;
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "good"}]}});
    let (code, answer) = api.json("POST /api/v1/namespaces/default/pods", &[], Some(&pod)).await?;
    assert!(code >= 400, "{answer}");
    assert!(server.count() > 0, "the webhook was not asked");
    assert_eq!(elsewhere.count(), 0, "the redirect was followed: {answer}");
    Ok(())
}

/// CVE-2023-2727: a policy about images was not asked about ephemeral containers.
#[tokio::test]
async fn the_image_policy_is_asked_about_ephemeral_containers() -> Result<()> {
    let server = https::Https::start(|_, _, review| {
        let bad = review.pointer("/spec/containers").is_some_and(|images| images.to_string().contains("bad"));
        json!({"status": {"allowed": !bad, "reason": "bad"}})
    })
    .await?;
    let api = with_image_policy(&server).await?;
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "good"}]}});
    created(&api, "/api/v1/namespaces/default/pods", pod).await?;
    for (image, want) in [("bad", 403), ("good", 200)] {
        let patch = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": image}]}});
        let path = "PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers";
        let strategic = ("content-type", "application/strategic-merge-patch+json");
        let (code, answer) = api.json(path, &[strategic], Some(&patch)).await?;
        assert_eq!(code, want, "{image}: {answer}");
    }
    Ok(())
}

/// CVE-2019-11248: profiles of the process were served to anybody. CVE-2019-11250, CVE-2020-8565: tokens were in the logs, which only
/// somebody authorized reads here.
#[tokio::test]
async fn strangers_see_no_profile_and_no_log() -> Result<()> {
    let api = Api::start().await?;
    for path in ["/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine", "/debug/flags/v", "/logs/", "/metrics"]
    {
        let (code, _, _) = api.stranger(&format!("GET {path}"), &[], "").await?;
        assert!(code == 401 || code == 403, "{path}: {code}");
    }
    Ok(())
}
