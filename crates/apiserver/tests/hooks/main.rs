//! Admission webhooks: when they are asked and what, what becomes of their answers, and what of requests when they fail.

#![allow(clippy::indexing_slicing)] // Reviews are taken apart as they are.

mod asked;
mod failing;
#[path = "../support/https.rs"]
mod https;
mod shown;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use base64::Engine as _;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::https::{Asked, Https, Reply};
use crate::support::Api;

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
