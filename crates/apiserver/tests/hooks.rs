//! Admission webhooks: when they are asked and what, what becomes of their answers, and what of requests when they fail.

#![allow(clippy::indexing_slicing)] // Reviews are taken apart as they are.

#[path = "support/https.rs"]
mod https;
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use bytes::Bytes;
use https::{Asked, Https, Reply};
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::Api;

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PATCH: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Every review that came, with the path it came to.
type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// A webhook that notes what it is asked and answers by the path.
async fn webhook(answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> Result<(Https, Seen)> {
    let seen = Seen::default();
    let noted = seen.clone();
    let server = Https::answering(&["localhost", "hook.default.svc"], move |asked: Asked| {
        noted.lock().push((asked.path.clone(), asked.body.clone()));
        let path = asked.path.split('?').next().unwrap_or_default();
        let mut response = answer(path, &asked.body["request"]);
        if response["uid"].is_null() {
            response["uid"] = asked.body["request"]["uid"].clone();
        }
        let review = json!({"kind": "AdmissionReview", "apiVersion": asked.body["apiVersion"], "response": response});
        std::future::ready(Reply::Json(review))
    });
    Ok((server.await?, seen))
}

fn patch(operations: Value) -> Value {
    let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    json!({"allowed": true, "patch": patch, "patchType": "JSONPatch"})
}

/// A webhook about config maps, but for what `more` says.
fn hook(server: &Https, path: &str, more: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]});
    let mut hook = json!({
        "name": format!("{}.example.com", path.trim_start_matches('/')), "sideEffects": "None", "rules": [rule],
        "clientConfig": {"url": format!("{}{path}", server.url), "caBundle": server.bundle()},
        "admissionReviewVersions": ["v1"],
    });
    merge(&mut hook, more);
    hook
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// `kind` is `mutating` or `validating`.
async fn configure(api: &Api, kind: &str, name: &str, hooks: Value) -> Result<()> {
    let path = format!("{CONFIGURATIONS}/{kind}webhookconfigurations");
    created(api, &path, &json!({"metadata": {"name": name}, "webhooks": hooks})).await?;
    // A read waits for what was written, which is then what admission sees.
    api.json(&format!("GET {path}/{name}"), &[], None).await?;
    Ok(())
}

async fn forget(api: &Api, kind: &str, name: &str) -> Result<()> {
    let path = format!("{CONFIGURATIONS}/{kind}webhookconfigurations/{name}");
    let (code, answer) = api.json(&format!("DELETE {path}"), &[], None).await?;
    ensure!(code == 200, "{answer}");
    api.json(&format!("GET {path}"), &[], None).await?;
    Ok(())
}

async fn created(api: &Api, path: &str, object: &Value) -> Result<Value> {
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(object)).await?;
    ensure!(code == 201, "{code} {answer}");
    Ok(answer)
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": "v"}})
}

fn reviews(seen: &Seen) -> Vec<(String, Value)> {
    std::mem::take(&mut *seen.lock())
}

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
async fn webhooks_are_asked_about_what_concerns_them() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|_, _| json!({"allowed": true})).await?;
    created(&api, "/api/v1/namespaces", &json!({"metadata": {"name": "other", "labels": {"team": "x"}}})).await?;
    let rules = |resource: &str, operations: Value, scope: &str| json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": operations, "resources": [resource], "scope": scope}]);
    let label = |key: &str| json!({"matchLabels": {key: "x"}});
    let hooks = json!([
        hook(&server, "/updates", json!({"rules": rules("configmaps", json!(["UPDATE"]), "*")})),
        hook(&server, "/cluster", json!({"rules": rules("*", json!(["*"]), "Cluster")})),
        hook(&server, "/team", json!({"namespaceSelector": label("team")})),
        hook(&server, "/labelled", json!({"objectSelector": label("app")})),
        hook(
            &server,
            "/condition",
            json!({"matchConditions": [
                {"name": "a", "expression": "has(object.data) && 'wanted' in object.data && request.userInfo.username == 'admin'"},
            ]})
        ),
        hook(&server, "/none", json!({"rules": []})),
        hook(&server, "/self", json!({"rules": rules("*/*", json!(["*"]), "*"), "namespaceSelector": label("no")})),
    ]);
    configure(&api, "validating", "v", hooks).await?;
    reviews(&seen);
    let asked = || {
        let mut paths: Vec<String> =
            reviews(&seen).into_iter().map(|(path, _)| path.trim_end_matches("?timeout=10s").to_owned()).collect();
        paths.sort();
        paths.join(" ")
    };
    created(&api, MAPS, &map("a")).await?;
    assert_eq!(asked(), "");
    let (code, _) = api.json(&format!("PATCH {MAPS}/a"), &PATCH, Some(&json!({"data": {"wanted": ""}}))).await?;
    assert_eq!((code, asked().as_str()), (200, "/condition /updates"));
    created(&api, "/api/v1/namespaces/other/configmaps", &map("a")).await?;
    assert_eq!(asked(), "/team");
    let labelled = json!({"metadata": {"name": "b", "labels": {"app": "x"}}, "data": {}});
    created(&api, MAPS, &labelled).await?;
    assert_eq!(asked(), "/labelled");
    // The old object counts as well.
    let (code, _) = api.json(&format!("PATCH {MAPS}/b"), &PATCH, Some(&json!({"metadata": {"labels": null}}))).await?;
    assert_eq!((code, asked().as_str()), (200, "/labelled /updates"));
    created(&api, "/api/v1/namespaces", &json!({"metadata": {"name": "third"}})).await?;
    assert_eq!(asked(), "/cluster");
    // What configures admission is never subject to it.
    configure(&api, "mutating", "m", json!([])).await?;
    assert_eq!(asked(), "");
    Ok(())
}

/// A rule about one version is about the others too; the webhook sees and changes its own.
#[tokio::test]
async fn an_equivalent_resource_is_shown_in_the_version_of_the_rule() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) =
        webhook(|_, _| patch(json!([{"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 70}])))
            .await?;
    let rule = |policy: &str| {
        let rules = json!([{
            "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["horizontalpodautoscalers"],
        }]);
        json!({"rules": rules, "matchPolicy": policy})
    };
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let scaler = |name: &str| {
        let target = json!({"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"});
        let resource = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}});
        json!({"metadata": {"name": name}, "spec": {
            "maxReplicas": 3, "scaleTargetRef": target, "metrics": [{"type": "Resource", "resource": resource}],
        }})
    };
    configure(&api, "mutating", "m", json!([hook(&server, "/exact", rule("Exact"))])).await?;
    created(&api, path, &scaler("a")).await?;
    assert_eq!(reviews(&seen).len(), 0);
    configure(&api, "mutating", "n", json!([hook(&server, "/same", rule("Equivalent"))])).await?;
    let made = created(&api, path, &scaler("b")).await?;
    assert_eq!(made["apiVersion"], "autoscaling/v2");
    assert_eq!(made["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
    let request = reviews(&seen).remove(0).1["request"].take();
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v1");
    Ok(())
}

/// Versions of a custom resource are the same resource; what a webhook adds and the schema does not know is pruned.
#[tokio::test]
async fn custom_resources_are_shown_in_any_version_and_pruned() -> Result<()> {
    let api = Api::start().await?;
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"data": {"type": "object", "properties": {
        "known": {"type": "string"}, "level": {"type": "integer", "default": 3},
    }}}}});
    let version =
        |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version("v1", true), version("v2", false)],
    }});
    created(&api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await?;
    let path = "/apis/example.com/v2/namespaces/default/things";
    let deadline = Instant::now() + PATIENCE;
    while api.call(&format!("GET {path}"), &[], "").await?.0 != 200 {
        ensure!(Instant::now() < deadline, "the resource is not served");
        tokio::task::yield_now().await;
    }
    let (server, seen) = webhook(|_, _| {
        patch(json!([
            {"op": "add", "path": "/data/known", "value": "yes"}, {"op": "add", "path": "/data/unknown", "value": "yes"},
        ]))
    })
    .await?;
    let rules = json!([{
        "apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"],
    }]);
    configure(&api, "mutating", "m", json!([hook(&server, "/m", json!({"rules": rules}))])).await?;
    let thing = json!({"kind": "Thing", "apiVersion": "example.com/v2", "metadata": {"name": "a"}, "data": {}});
    let made = created(&api, path, &thing).await?;
    assert_eq!((&made["apiVersion"], &made["data"]), (&json!("example.com/v2"), &json!({"known": "yes", "level": 3})));
    assert_eq!(reviews(&seen)[0].1["request"]["object"]["apiVersion"], "example.com/v1");
    Ok(())
}

/// What becomes of a request when the webhook behind it fails: it ends, or goes on where failures are ignored.
#[tokio::test]
async fn a_webhook_that_fails_ends_the_request_unless_failures_are_ignored() -> Result<()> {
    let api = Api::start().await?;
    let server = Https::answering(&["localhost"], |asked: Asked| {
        let uid = asked.body["request"]["uid"].clone();
        let review = |response: Value| {
            Reply::Json(json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}))
        };
        let mut patched = patch(json!([{"op": "remove", "path": "/data/none"}]));
        patched["uid"] = uid.clone();
        std::future::ready(match asked.path.split('?').next().unwrap_or_default() {
            "/slow" => Reply::Never,
            "/absent" => Reply::Json(json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"})),
            "/kind" => {
                Reply::Json(json!({"kind": "Pod", "apiVersion": "v1", "response": {"uid": uid, "allowed": true}}))
            }
            "/uid" => review(json!({"uid": "other", "allowed": true})),
            "/type" => review(json!({"uid": uid, "allowed": "yes"})),
            "/base64" => review(json!({"uid": uid, "allowed": true, "patch": "!", "patchType": "JSONPatch"})),
            "/patch" => review(json!({"uid": uid, "allowed": true, "patch": "e30=", "patchType": "JSONPatch"})),
            "/unfit" => review(patched),
            "/huge" => Reply::Raw(200, Bytes::from(vec![b' '; 9 << 20])),
            "/text" => Reply::Raw(200, "hello".into()),
            "/broken" => Reply::Raw(500, "oh no".into()),
            "/gone" => Reply::Raw(404, "".into()),
            _ => review(json!({"uid": uid, "allowed": true})),
        })
    })
    .await?;
    let nobody = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?.port();
    let down = json!({"url": format!("https://localhost:{nobody}/x"), "caBundle": server.bundle()});
    let missing =
        json!({"service": {"namespace": "default", "name": "hook", "path": "/p"}, "caBundle": server.bundle()});
    let stranger = json!({"url": format!("{}/x", server.url)});
    // The path, what is different in the configuration, the error, and whether it can be ignored.
    let cases: Vec<(&str, Value, &str, bool)> = vec![
        ("/down", json!({"clientConfig": down}), "connect: connection refused", true),
        ("/missing", json!({"clientConfig": missing}), "no endpoints available for service \"hook\"", true),
        ("/stranger", json!({"clientConfig": stranger}), "x509: certificate signed by unknown authority", true),
        ("/slow", json!({"timeoutSeconds": 1}), "/slow?timeout=1s\": context deadline exceeded", true),
        ("/absent", json!({}), "received invalid webhook response: webhook response was absent", true),
        ("/kind", json!({}), "Kind=AdmissionReview, got /v1, Kind=Pod", true),
        ("/uid", json!({}), "got \"other\"", true),
        ("/type", json!({}), "cannot unmarshal string into AdmissionReview field allowed", true),
        ("/base64", json!({}), "failed to call webhook: ", true),
        ("/patch", json!({}), "received undecodable patch in webhook response: ", true),
        ("/unfit", json!({}), "none", false),
        ("/huge", json!({}), "length limit exceeded", true),
        ("/text", json!({}), "cannot be read", true),
        ("/broken", json!({}), "an error on the server (\"oh no\") has prevented the request from succeeding", true),
        ("/gone", json!({}), "the server could not find the requested resource", true),
    ];
    for (index, (path, more, why, can_be_ignored)) in cases.into_iter().enumerate() {
        let name = format!("{}.example.com", path.trim_start_matches('/'));
        for policy in ["Fail", "Ignore"] {
            let mut more = more.clone();
            merge(&mut more, json!({"failurePolicy": policy}));
            configure(&api, "mutating", "m", json!([hook(&server, path, more)])).await?;
            let object = map(&format!("{}-{index}", policy.to_lowercase()));
            let (code, answer) = api.json(&format!("POST {MAPS}"), &[], Some(&object)).await?;
            let passes = policy == "Ignore" && can_be_ignored;
            assert_eq!(code, if passes { 201 } else { 500 }, "{path} {policy}: {answer}");
            if !passes {
                let message = answer["message"].as_str().context("a message")?;
                ensure!(message.starts_with("Internal error occurred: "), "{message}");
                let calling = format!("Internal error occurred: failed calling webhook \"{name}\": ");
                assert_eq!(message.starts_with(&calling), can_be_ignored, "{message}");
                ensure!(message.contains(why), "{path}: {message}");
            }
            forget(&api, "mutating", "m").await?;
        }
    }
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

/// A deletion has an old object and options, and nothing that could be changed.
#[tokio::test]
async fn deletions_are_shown_with_what_goes() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|path, request| match (path, request["oldObject"]["data"]["k"].as_str()) {
        ("/change", _) => patch(json!([{"op": "add", "path": "/data", "value": {}}])),
        (_, Some("keep")) => json!({"allowed": false, "status": {"message": "kept"}}),
        _ => json!({"allowed": true}),
    })
    .await?;
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]}]);
    configure(&api, "validating", "v", json!([hook(&server, "/v", json!({"rules": rules}))])).await?;
    created(&api, MAPS, &map("a")).await?;
    created(&api, MAPS, &json!({"metadata": {"name": "b"}, "data": {"k": "keep"}})).await?;
    let options = json!({"propagationPolicy": "Orphan", "gracePeriodSeconds": 5});
    let (code, answer) = api.json(&format!("DELETE {MAPS}/b"), &[], Some(&options)).await?;
    assert_eq!(
        (code, answer["message"].as_str()),
        (400, Some("admission webhook \"v.example.com\" denied the request: kept"))
    );
    let request = reviews(&seen).remove(0).1["request"].take();
    assert_eq!((&request["object"], &request["oldObject"]["data"]["k"]), (&json!(null), &json!("keep")));
    let told = json!({
        "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Orphan", "gracePeriodSeconds": 5,
    });
    assert_eq!(request["options"], told);
    configure(&api, "mutating", "m", json!([hook(&server, "/change", json!({"rules": rules}))])).await?;
    let (code, answer) = api.json(&format!("DELETE {MAPS}/a"), &[], None).await?;
    assert_eq!(code, 500);
    let why = "attempted to modify the object, which is not supported for this operation";
    ensure!(answer["message"].as_str().is_some_and(|message| message.ends_with(why)), "{answer}");
    Ok(())
}

/// Through the scale subresource a Scale is written; to run something in a pod, options are.
#[tokio::test]
async fn scales_and_connections_are_objects_of_their_own() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|path, _| match path {
        "/scale" => patch(json!([{"op": "replace", "path": "/spec/replicas", "value": 2}])),
        _ => json!({"allowed": false, "status": {"message": "not here"}}),
    })
    .await?;
    let pods = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": pods});
    created(&api, deployments, &json!({"metadata": {"name": "d"}, "spec": spec})).await?;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "serviceAccountName": "s"}});
    created(&api, "/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "s"}})).await?;
    created(&api, "/api/v1/namespaces/default/pods", &pod).await?;
    let rule = |group: &str, resource: &str, operation: &str| json!({"rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]}]});
    configure(&api, "mutating", "m", json!([hook(&server, "/scale", rule("apps", "deployments/scale", "UPDATE"))]))
        .await?;
    for (headers, change) in [
        (&PATCH, json!({"spec": {"replicas": 7}})),
        (
            &[("content-type", "application/apply-patch+yaml")],
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "d"}, "spec": {"replicas": 9}}),
        ),
    ] {
        let what = format!("PATCH {deployments}/d/scale?fieldManager=me&force=true");
        let what = if headers[0].1 == PATCH[0].1 { what.replace("&force=true", "") } else { what };
        let (code, scale) = api.json(&what, headers, Some(&change)).await?;
        assert_eq!((code, &scale["spec"]["replicas"]), (200, &json!(2)), "{scale}");
        let request = reviews(&seen).remove(0).1["request"].take();
        assert_eq!(request["kind"], json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}));
        assert_eq!((&request["subResource"], &request["object"]["spec"]), (&json!("scale"), &change["spec"]));
        assert_eq!(request["oldObject"]["kind"], "Scale");
        assert_eq!(request["resource"]["resource"], "deployments");
    }
    let (_, deployment) = api.json(&format!("GET {deployments}/d"), &[], None).await?;
    assert_eq!(deployment["spec"]["replicas"], 2);

    configure(&api, "validating", "v", json!([hook(&server, "/connect", rule("", "pods/*", "CONNECT"))])).await?;
    let place = "/api/v1/namespaces/default/pods/p";
    for (path, kind, object) in [
        (
            "exec?command=ls&command=-l&stdout=true&container=c",
            "PodExecOptions",
            json!({"stdout": true, "container": "c", "command": ["ls", "-l"]}),
        ),
        ("attach?stdin=1", "PodAttachOptions", json!({"stdin": true})),
        ("portforward?ports=80", "PodPortForwardOptions", json!({"ports": [80]})),
        ("proxy/a/b?x=y", "PodProxyOptions", json!({"path": "a/b"})),
    ] {
        let (code, answer) = api.json(&format!("POST {place}/{path}"), &[], None).await?;
        let message = "admission webhook \"connect.example.com\" denied the request: not here";
        assert_eq!((code, answer["message"].as_str()), (400, Some(message)), "{path}");
        let request = reviews(&seen).remove(0).1["request"].take();
        let mut want = json!({"kind": kind, "apiVersion": "v1"});
        merge(&mut want, object);
        assert_eq!(request["object"], want);
        assert_eq!((&request["operation"], &request["options"]), (&json!("CONNECT"), &json!(null)));
        assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": kind}));
        assert_eq!((&request["name"], &request["namespace"]), (&json!("p"), &json!("default")));
    }
    Ok(())
}

/// Validating webhooks are asked at once, and a request that waits for them leaves its turn to others, however large it is:
/// each answer here waits until all four requests have come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_those_who_wait() -> Result<()> {
    let api = Api::start().await?;
    let all = Arc::new(tokio::sync::Barrier::new(4));
    let server = Https::answering(&["localhost"], move |asked: Asked| {
        let all = all.clone();
        async move {
            all.wait().await;
            let response = json!({"uid": asked.body["request"]["uid"], "allowed": true});
            Reply::Json(json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}))
        }
    })
    .await?;
    configure(&api, "validating", "a", json!([hook(&server, "/a", json!({}))])).await?;
    configure(&api, "validating", "b", json!([hook(&server, "/b", json!({}))])).await?;
    let large = |name: &str| json!({"metadata": {"name": name}, "data": {"k": "v".repeat(300_000)}});
    let (first, second) = (large("first"), large("second"));
    let both = async { tokio::try_join!(created(&api, MAPS, &first), created(&api, MAPS, &second)) };
    tokio::time::timeout(PATIENCE, both).await.context("they wait for one another")??;
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
