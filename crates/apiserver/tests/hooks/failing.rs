//! What becomes of requests when they fail, or take long.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::https::{Asked, Https, Reply};
use crate::support::Api;
use crate::{MAPS, PATIENCE, configure, created, forget, hook, map, merge, patch};

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
