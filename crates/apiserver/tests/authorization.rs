//! Who may do what: the chain of authorizers, in the order the flags name them.

#[path = "support/https.rs"]
mod https;
mod support;

use std::time::Duration;

use anyhow::Result;
use apiserver::{AuthSettings, WebhookSettings};
use https::Https;
use serde_json::{Value, json};
use support::Api;

async fn start(change: impl FnOnce(&mut AuthSettings)) -> Result<Api> {
    Api::start_with(|config| change(&mut config.auth)).await
}

fn modes(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

async fn bob(api: &Api, what: &str) -> Result<(u16, String)> {
    let (code, answer) = api.json(what, &[("impersonate-user", "bob")], None).await?;
    Ok((code, answer.get("message").and_then(Value::as_str).unwrap_or_default().to_owned()))
}

#[tokio::test]
async fn each_mode_does_what_it_is_called() -> Result<()> {
    let api = start(|auth| auth.authorization_modes = modes(&["AlwaysAllow"])).await?;
    assert_eq!(bob(&api, "GET /api/v1/secrets").await?.0, 200);
    let api = start(|auth| auth.authorization_modes = modes(&["AlwaysDeny"])).await?;
    let why = "secrets is forbidden: User \"bob\" cannot list resource \"secrets\" in API group \"\" at the cluster scope: Everything is forbidden.";
    assert_eq!(bob(&api, "GET /api/v1/secrets").await?, (403, why.to_owned()));
    // Administrators are not locked out by any mode.
    assert_eq!(api.json("GET /api/v1/secrets", &[], None).await?.0, 200);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("abac.jsonl");
    let policy = json!({"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy",
        "spec": {"user": "bob", "namespace": "*", "resource": "pods", "apiGroup": "*", "readonly": true}});
    std::fs::write(&path, policy.to_string())?;
    let api = start(|auth| {
        auth.authorization_modes = modes(&["RBAC", "ABAC"]);
        auth.authorization_policy_file = Some(path);
    })
    .await?;
    assert_eq!(bob(&api, "GET /api/v1/pods").await?.0, 200);
    assert_eq!(bob(&api, "DELETE /api/v1/namespaces/default/pods/x").await?.0, 403);
    assert_eq!(bob(&api, "GET /api/v1/secrets").await?.0, 403);
    Ok(())
}

#[tokio::test]
async fn a_webhook_is_asked_once_and_its_denial_is_final() -> Result<()> {
    let server = Https::start(|_, _, review| {
        match review.pointer("/spec/resourceAttributes/resource").and_then(Value::as_str) {
            Some("pods") => json!({"status": {"allowed": true, "reason": "of course"}}),
            Some("secrets") => json!({"status": {"allowed": false, "denied": true, "reason": "never"}}),
            _ => json!({"status": {"allowed": false}}),
        }
    })
    .await?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("webhook.json");
    std::fs::write(&path, server.kubeconfig())?;
    let ttl = Duration::from_secs(60);
    let webhook =
        WebhookSettings { config_file: path, version: "v1".into(), authorized_ttl: ttl, unauthorized_ttl: ttl };
    let api = start(|auth| {
        auth.authorization_modes = modes(&["Webhook", "AlwaysAllow"]);
        auth.authorization_webhook = Some(webhook);
    })
    .await?;
    for _ in 0..3 {
        assert_eq!(bob(&api, "GET /api/v1/pods").await?.0, 200);
    }
    assert_eq!(server.count(), 1);
    let (code, why) = bob(&api, "GET /api/v1/secrets").await?;
    assert!(code == 403 && why.ends_with(": never"), "{why}");
    assert_eq!(bob(&api, "GET /api/v1/configmaps").await?.0, 200, "no opinion leaves it to the next");
    Ok(())
}

#[tokio::test]
async fn a_configuration_may_deny_when_the_webhook_fails() -> Result<()> {
    let server = Https::start(|_, _, _| json!({"status": {"allowed": true}})).await?;
    let dir = tempfile::tempdir()?;
    let (kubeconfig, path) = (dir.path().join("webhook.json"), dir.path().join("authz.yaml"));
    std::fs::write(&kubeconfig, server.kubeconfig())?;
    drop(server);
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
        "authorizers": [
            {"type": "Webhook", "name": "w", "webhook": {
                "subjectAccessReviewVersion": "v1", "failurePolicy": "Deny", "timeout": "2s",
                "authorizedTTL": "1m", "unauthorizedTTL": "1m",
                "matchConditions": [{"expression": "request.resourceAttributes.resource == 'pods'"}],
                "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig},
            }},
            {"type": "AlwaysAllow", "name": "all"},
        ],
    });
    std::fs::write(&path, configuration.to_string())?;
    let api = start(|auth| auth.authorization_config = Some(path)).await?;
    assert_eq!(bob(&api, "GET /api/v1/pods").await?.0, 403);
    assert_eq!(bob(&api, "GET /api/v1/secrets").await?.0, 200, "it is not even asked");
    Ok(())
}
