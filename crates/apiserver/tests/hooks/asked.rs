//! How they are asked, what they are told, and what becomes of their answers.

use std::sync::Arc;

use anyhow::{Result, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::https::{Asked, Https, Reply};
use crate::support::Api;
use crate::{CONFIGURATIONS, MAPS, configure, created, forget, hook, map, patch, reviews, webhook};

/// As whom the server asks is what the kubeconfig says for the one who is asked.
#[tokio::test]
async fn webhooks_are_asked_as_a_kubeconfig_says() -> Result<()> {
    let shown = Arc::new(Mutex::new(Vec::new()));
    let noted = shown.clone();
    let server = Https::answering(&["localhost"], move |asked: Asked| {
        let authorization = asked.headers.get("authorization").and_then(|value| value.to_str().ok());
        noted.lock().push(authorization.unwrap_or_default().to_owned());
        let response = json!({"allowed": true, "uid": asked.body["request"]["uid"]});
        std::future::ready(Reply::Json(
            json!({"kind": "AdmissionReview", "apiVersion": asked.body["apiVersion"], "response": response}),
        ))
    })
    .await?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("kubeconfig");
    let named = format!("localhost:{}", server.port);
    std::fs::write(&path, json!({"users": [{"name": named, "user": {"token": "mine"}}]}).to_string())?;
    let configuration = json!({"plugins": [{"name": "ValidatingAdmissionWebhook", "configuration": {
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": path,
    }}]});
    let api = Api::start_with(|config| config.admission.configuration = Some(configuration)).await?;
    configure(&api, "mutating", "m", json!([hook(&server, "/m", json!({}))])).await?;
    configure(&api, "validating", "v", json!([hook(&server, "/v", json!({}))])).await?;
    created(&api, MAPS, &map("a")).await?;
    // Each plugin has a configuration of its own.
    assert_eq!(*shown.lock(), ["", "Bearer mine"]);
    Ok(())
}

/// The mutating one changes, the validating one sees the change; each is told all there is to know.
#[tokio::test]
async fn webhooks_are_told_of_requests_and_heard() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|path, _| match path {
        "/change" => patch(json!([{"op": "add", "path": "/data/added", "value": "yes"}])),
        _ => json!({"allowed": true, "warnings": ["mind the \"gap\""], "auditAnnotations": {"key": "value"}}),
    })
    .await?;
    configure(&api, "mutating", "m", json!([hook(&server, "/change", json!({}))])).await?;
    configure(&api, "validating", "v", json!([hook(&server, "/judge", json!({"timeoutSeconds": 7}))])).await?;
    let what = format!("POST {MAPS}?fieldManager=me");
    let (code, headers, body) = api.call(&what, &[], map("a").to_string()).await?;
    ensure!(code == 201, "{body:?}");
    assert_eq!(serde_json::from_slice::<Value>(&body)?["data"], json!({"k": "v", "added": "yes"}));
    assert_eq!(headers["warning"], "299 - \"mind the \\\"gap\\\"\"");
    let all = reviews(&seen);
    let paths: Vec<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/change?timeout=10s", "/judge?timeout=7s"]);
    let review = &all[1].1;
    assert_eq!((&review["kind"], &review["apiVersion"]), (&json!("AdmissionReview"), &json!("admission.k8s.io/v1")));
    let mut request = review["request"].clone();
    let object = request["object"].take();
    assert_eq!((&object["data"]["added"], &object["kind"]), (&json!("yes"), &json!("ConfigMap")));
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"});
    assert_eq!(
        request,
        json!({
            "uid": request["uid"], "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": "a", "namespace": "default", "operation": "CREATE", "object": null, "oldObject": null, "dryRun": false,
            "userInfo": {"username": "admin", "groups": ["system:masters", "system:authenticated"]}, "options": options,
        })
    );
    // What has no name yet is shown to the first without one.
    let named = created(&api, MAPS, &json!({"metadata": {"generateName": "b-"}, "data": {"k": "v"}})).await?;
    let all = reviews(&seen);
    let request = |index: usize| &all[index].1["request"];
    assert_eq!((request(0).get("name"), request(0)["object"]["metadata"].get("uid")), (None, None));
    assert_eq!(
        (&request(1)["name"], &request(1)["object"]["metadata"]["uid"]),
        (&named["metadata"]["name"], &named["metadata"]["uid"])
    );
    Ok(())
}

#[tokio::test]
async fn a_refusal_is_told_as_the_webhook_says_it() -> Result<()> {
    let api = Api::start().await?;
    let (server, _) = webhook(|_, request| match request["object"]["data"]["k"].as_str() {
        Some("plain") => json!({"allowed": false}),
        Some("odd") => json!({"allowed": false, "status": {"code": 418, "reason": "Teapot", "message": "no coffee"}}),
        Some("reason") => json!({"allowed": false, "status": {"code": 200, "reason": "Because"}}),
        _ => json!({"allowed": true}),
    })
    .await?;
    for kind in ["mutating", "validating"] {
        configure(&api, kind, "w", json!([hook(&server, "/w", json!({"failurePolicy": "Ignore"}))])).await?;
        for (data, code, reason, message) in [
            ("plain", 400, None, "admission webhook \"w.example.com\" denied the request without explanation"),
            ("odd", 418, Some("Teapot"), "admission webhook \"w.example.com\" denied the request: no coffee"),
            ("reason", 400, Some("Because"), "admission webhook \"w.example.com\" denied the request: Because"),
        ] {
            let object = json!({"metadata": {"name": "x"}, "data": {"k": data}});
            let (answered, status) = api.json(&format!("POST {MAPS}"), &[], Some(&object)).await?;
            assert_eq!((answered, status["message"].as_str()), (code, Some(message)), "{kind}");
            assert_eq!((status["reason"].as_str(), &status["code"]), (reason, &json!(code)));
        }
        forget(&api, kind, "w").await?;
    }
    Ok(())
}

/// In the order of their configurations' names; one that wants it is asked again if another changed something after it.
#[tokio::test]
async fn webhooks_follow_one_another_and_may_be_asked_again() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|path, request| {
        let count = request["object"]["data"].as_object().map_or(0, |data| data.len());
        match path {
            // It has nothing to add the second time.
            "/count" if count < 3 => patch(json!([{"op": "add", "path": "/data/count", "value": count.to_string()}])),
            "/late" => patch(json!([{"op": "add", "path": "/data/late", "value": ""}])),
            _ => json!({"allowed": true}),
        }
    })
    .await?;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    configure(&api, "mutating", "b", json!([hook(&server, "/late", json!({}))])).await?;
    let first = [hook(&server, "/count", again.clone()), hook(&server, "/idle", json!({}))];
    configure(&api, "mutating", "a", json!(first)).await?;
    configure(&api, "mutating", "c", json!([hook(&server, "/last", again)])).await?;
    let made = created(&api, MAPS, &map("a")).await?;
    assert_eq!(made["data"], json!({"k": "v", "count": "1", "late": ""}));
    let paths: Vec<String> = reviews(&seen).into_iter().map(|(path, _)| path.replace("?timeout=10s", "")).collect();
    assert_eq!(paths, ["/count", "/idle", "/late", "/last", "/count"]);
    Ok(())
}

#[tokio::test]
async fn a_rehearsal_asks_only_webhooks_without_side_effects() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|_, _| json!({"allowed": true})).await?;
    let what = format!("POST {MAPS}?dryRun=All");
    configure(&api, "validating", "v", json!([hook(&server, "/none", json!({"sideEffects": "NoneOnDryRun"}))])).await?;
    let (code, answer) = api.json(&what, &[], Some(&map("a"))).await?;
    ensure!(code == 201, "{answer}");
    let request = reviews(&seen).remove(0).1["request"].take();
    assert_eq!((&request["dryRun"], &request["options"]["dryRun"]), (&json!(true), &json!(["All"])));
    let beta = json!({"sideEffects": "Some", "admissionReviewVersions": ["v1beta1"], "failurePolicy": "Ignore"});
    let configuration = json!({"metadata": {"name": "w"}, "webhooks": [hook(&server, "/some", beta)]});
    let path = format!("{CONFIGURATIONS}/validatingwebhookconfigurations");
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(&configuration)).await?;
    // This version of the API takes none with side effects; an older server may have stored one.
    assert_eq!(code, 422, "{answer}");
    Ok(())
}

/// A service stands for its endpoints, by its own name.
#[tokio::test]
async fn a_service_is_asked_at_one_of_its_endpoints() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|_, _| json!({"allowed": true})).await?;
    let ports = json!([{"port": 443, "targetPort": 8443}]);
    created(
        &api,
        "/api/v1/namespaces/default/services",
        &json!({"metadata": {"name": "hook"}, "spec": {"ports": ports}}),
    )
    .await?;
    // An address of this machine itself cannot be written through the API.
    let slice = json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"name": "hook-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "hook"}},
        "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"name": "", "port": server.port}],
    });
    let key = "/registry/endpointslices/default/hook-1".into();
    let put = store::Op::Put { key, value: slice.to_string().into(), lease: 0 };
    api.store.txn(store::Txn { compares: Vec::new(), success: vec![put], failure: Vec::new() }).await?;
    let service =
        json!({"service": {"namespace": "default", "name": "hook", "path": "/x"}, "caBundle": server.bundle()});
    configure(&api, "validating", "v", json!([hook(&server, "/v", json!({"clientConfig": service}))])).await?;
    created(&api, MAPS, &map("a")).await?;
    assert_eq!(reviews(&seen)[0].0, "/x?timeout=10s");
    let (_, _, metrics) = api.call("GET /metrics", &[], "").await?;
    let metrics = String::from_utf8_lossy(&metrics);
    let line = "apiserver_admission_webhook_request_total{code=\"200\",name=\"v.example.com\",operation=\"CREATE\",rejected=\"false\",type=\"validating\"} 1";
    ensure!(metrics.contains(line), "{metrics}");
    Ok(())
}
