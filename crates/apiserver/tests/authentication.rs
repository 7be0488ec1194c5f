//! Who is believed: every kind of token, and nobody in particular.

#[path = "support/https.rs"]
mod https;
mod support;

use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::{AuthSettings, OidcSettings, WebhookSettings};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use https::Https;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use support::Api;

const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

async fn start(change: impl FnOnce(&mut AuthSettings)) -> Result<Api> {
    Api::start_with(|config| change(&mut config.auth)).await
}

/// `name groups`, or the code of the refusal.
async fn whoami(api: &Api, token: &str) -> Result<String> {
    let authorization = format!("Bearer {token}");
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let (code, _, bytes) = api.stranger(&format!("POST {WHO}"), &[("authorization", &authorization)], review).await?;
    let answer: Value = serde_json::from_slice(&bytes)?;
    if code != 201 {
        return Ok(code.to_string());
    }
    let user = answer.pointer("/status/userInfo").context("a user")?;
    let groups: Vec<String> =
        user.get("groups").and_then(|list| serde_json::from_value(list.clone()).ok()).unwrap_or_default();
    Ok(format!("{} {}", user.get("username").and_then(Value::as_str).unwrap_or_default(), groups.join(",")))
}

#[tokio::test]
async fn tokens_from_a_file_are_users() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("tokens.csv");
    std::fs::write(&path, "secret,bob,7,\"dev,ops\"\n")?;
    let api = start(|auth| auth.token_auth_file = Some(path)).await?;
    assert_eq!(whoami(&api, "secret").await?, "bob dev,ops,system:authenticated");
    assert_eq!(whoami(&api, "wrong").await?, "401");
    let (_, _, body) = api.stranger("GET /api/v1/nodes", &[("authorization", "Bearer wrong")], "").await?;
    let want = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    assert_eq!(serde_json::from_slice::<Value>(&body)?, want);
    Ok(())
}

#[tokio::test]
async fn a_bootstrap_token_is_good_until_it_expires() -> Result<()> {
    let api = start(|auth| auth.enable_bootstrap_token_auth = true).await?;
    let secret = |id: &str, expiration: &str, groups: &str, usage: &str| {
        let data = [
            ("token-id", id),
            ("token-secret", "0123456789abcdef"),
            ("expiration", expiration),
            ("auth-extra-groups", groups),
            ("usage-bootstrap-authentication", usage),
        ];
        let data: serde_json::Map<String, Value> =
            data.into_iter().map(|(key, value)| (key.to_owned(), STANDARD.encode(value).into())).collect();
        json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token", "data": data})
    };
    for secret in [
        secret("aaaaaa", "", "system:bootstrappers:kubeadm:default-node-token", "true"),
        secret("bbbbbb", "2020-01-01T00:00:00Z", "", "true"),
        secret("cccccc", "", "", "false"),
        secret("dddddd", "", "system:masters", "true"),
    ] {
        let (code, answer) = api.json("POST /api/v1/namespaces/kube-system/secrets", &[], Some(&secret)).await?;
        assert_eq!(code, 201, "{answer}");
    }
    api.json("GET /api/v1/secrets", &[], None).await?;
    let good = "system:bootstrap:aaaaaa system:bootstrappers,system:bootstrappers:kubeadm:default-node-token,system:authenticated";
    assert_eq!(whoami(&api, "aaaaaa.0123456789abcdef").await?, good);
    for bad in ["aaaaaa.0123456789abcdee", "bbbbbb", "cccccc", "dddddd", "eeeeee"] {
        let token = if bad.contains('.') { bad.to_owned() } else { format!("{bad}.0123456789abcdef") };
        assert_eq!(whoami(&api, &token).await?, "401", "{token}");
    }
    Ok(())
}

#[tokio::test]
async fn the_anonymous_are_let_in_where_they_may() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("authn.yaml");
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
    std::fs::write(&path, format!("{head}anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}\n"))?;
    let code = async |api: &Api, path: &str| anyhow::Ok(api.stranger(&format!("GET {path}"), &[], "").await?.0);
    let api = start(|_| ()).await?;
    assert_eq!(
        (code(&api, "/livez").await?, code(&api, "/readyz").await?, code(&api, "/api/v1/pods").await?),
        (200, 200, 403)
    );
    let api = start(|auth| auth.anonymous_auth = Some(false)).await?;
    assert_eq!((code(&api, "/livez").await?, code(&api, "/api/v1/pods").await?), (401, 401));
    let api = start(|auth| auth.authentication_config = Some(path)).await?;
    assert_eq!((code(&api, "/livez").await?, code(&api, "/readyz").await?), (200, 401));
    Ok(())
}

/// No verb of the anonymous changes anything anywhere.
#[tokio::test]
async fn the_anonymous_write_nothing() -> Result<()> {
    let api = start(|_| ()).await?;
    let (_, listed) = api.json("GET /apis", &[], None).await?;
    let mut paths = vec!["/api/v1".to_owned()];
    for group in listed.get("groups").and_then(Value::as_array).into_iter().flatten() {
        let version = group.pointer("/preferredVersion/groupVersion").and_then(Value::as_str).unwrap_or_default();
        paths.push(format!("/apis/{version}"));
    }
    let mut tried = 0;
    for path in paths {
        let (_, resources) = api.json(&format!("GET {path}"), &[], None).await?;
        for resource in resources.get("resources").and_then(Value::as_array).into_iter().flatten() {
            let name = resource.get("name").and_then(Value::as_str).unwrap_or_default();
            let namespaced = resource.get("namespaced") == Some(&Value::Bool(true));
            let base = if namespaced { format!("{path}/namespaces/default") } else { path.clone() };
            let (plural, sub) = name.split_once('/').map_or((name, ""), |(plural, sub)| (plural, sub));
            let one = if sub.is_empty() { format!("{base}/{plural}/x") } else { format!("{base}/{plural}/x/{sub}") };
            for (method, path) in
                [("POST", format!("{base}/{plural}")), ("PUT", one.clone()), ("PATCH", one.clone()), ("DELETE", one)]
            {
                let (code, ..) = api.stranger(&format!("{method} {path}"), &[], "{}").await?;
                assert_eq!(code, 403, "{method} {path}");
                tried += 1;
            }
        }
    }
    assert!(tried > 400, "{tried}");
    Ok(())
}

/// A token ends with its pod, its account, or the secret that holds it; at once, not when it expires.
#[tokio::test]
async fn a_token_ends_with_what_it_is_bound_to() -> Result<()> {
    let api = start(|_| ()).await?;
    let post = async |path: &str, object: Value| -> Result<Value> {
        let (code, answer) = api.json(&format!("POST {path}"), &[], Some(&object)).await?;
        anyhow::ensure!(code == 201, "{path}: {answer}");
        Ok(answer)
    };
    let base = "/api/v1/namespaces/default";
    post(&format!("{base}/serviceaccounts"), json!({"metadata": {"name": "sa"}})).await?;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "sa", "containers": [{"name": "c", "image": "i"}]}});
    post(&format!("{base}/pods"), pod).await?;
    let bound = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}}});
    let token = |answer: Value| answer.pointer("/status/token").and_then(Value::as_str).unwrap_or_default().to_owned();
    let of_pod = token(post(&format!("{base}/serviceaccounts/sa/token"), bound).await?);
    let of_account = token(post(&format!("{base}/serviceaccounts/sa/token"), json!({"spec": {}})).await?);
    let name =
        "system:serviceaccount:default:sa system:serviceaccounts,system:serviceaccounts:default,system:authenticated";
    assert_eq!((whoami(&api, &of_pod).await?.as_str(), whoami(&api, &of_account).await?.as_str()), (name, name));
    api.json(&format!("DELETE {base}/pods/p?gracePeriodSeconds=0"), &[], None).await?;
    let gone = async |token: &str| -> Result<Duration> {
        let begun = std::time::Instant::now();
        while whoami(&api, token).await? != "401" {
            anyhow::ensure!(begun.elapsed() < Duration::from_secs(1), "still believed");
            tokio::task::yield_now().await;
        }
        Ok(begun.elapsed())
    };
    gone(&of_pod).await?;
    assert_eq!(whoami(&api, &of_account).await?, name);
    // Made anew under the same name it is another account.
    api.json(&format!("DELETE {base}/serviceaccounts/sa"), &[], None).await?;
    post(&format!("{base}/serviceaccounts"), json!({"metadata": {"name": "sa"}})).await?;
    gone(&of_account).await?;
    Ok(())
}

#[tokio::test]
async fn a_webhook_says_whose_a_token_is() -> Result<()> {
    let server = Https::start(|_, _, review| match review.pointer("/spec/token").and_then(Value::as_str) {
        Some("good") => json!({"status": {"authenticated": true, "user": {"username": "hook", "groups": ["g"]}}}),
        _ => json!({"status": {"authenticated": false}}),
    })
    .await?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("webhook.json");
    std::fs::write(&path, server.kubeconfig())?;
    let ttl = Duration::from_secs(60);
    let webhook =
        WebhookSettings { config_file: path, version: "v1".into(), authorized_ttl: ttl, unauthorized_ttl: ttl };
    let api = start(|auth| auth.token_webhook = Some(webhook)).await?;
    for _ in 0..3 {
        assert_eq!(whoami(&api, "good").await?, "hook g,system:authenticated");
    }
    assert_eq!(server.count(), 1, "an answer is kept");
    assert_eq!(whoami(&api, "bad").await?, "401");
    drop(server);
    assert_eq!(whoami(&api, "good").await?, "hook g,system:authenticated", "and outlives who gave it");
    assert_eq!(whoami(&api, "other").await?, "401", "who cannot be asked vouches for nobody");
    Ok(())
}

#[tokio::test]
async fn id_tokens_are_checked_with_the_keys_the_issuer_publishes() -> Result<()> {
    let rng = SystemRandom::new();
    let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &rng).ok().context("a key")?;
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &rng).ok().context("a key")?;
    let point = pair.public_key().as_ref().get(1..).and_then(|point| point.split_at_checked(32)).context("a point")?;
    let (x, y) = (URL_SAFE_NO_PAD.encode(point.0), URL_SAFE_NO_PAD.encode(point.1));
    let server = Https::start(move |url, path, _| match path {
        "/.well-known/openid-configuration" => json!({"issuer": url, "jwks_uri": format!("{url}/keys")}),
        _ => json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "x": x, "y": y}]}),
    })
    .await?;
    let dir = tempfile::tempdir()?;
    let ca_file = dir.path().join("ca.pem");
    std::fs::write(&ca_file, &server.authority)?;
    let oidc = OidcSettings {
        issuer_url: server.url.clone(),
        client_id: "me".into(),
        ca_file: Some(ca_file),
        username_claim: "sub".into(),
        username_prefix: "oidc:".into(),
        groups_claim: "groups".into(),
        signing_algs: vec!["ES256".into()],
        ..OidcSettings::default()
    };
    let api = start(|auth| auth.oidc = Some(oidc)).await?;
    let token = |change: Value| -> Result<String> {
        let mut claims =
            json!({"iss": server.url, "aud": "me", "sub": "bob", "groups": ["a"], "exp": 4_102_444_800_i64});
        if let (Some(claims), Some(change)) = (claims.as_object_mut(), change.as_object()) {
            claims.extend(change.clone());
        }
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&json!({"alg": "ES256", "kid": "k"})), encode(&claims));
        let signature = pair.sign(&rng, text.as_bytes()).ok().context("a signature")?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    };
    let good = token(json!({}))?;
    assert_eq!(whoami(&api, &good).await?, "oidc:bob a,system:authenticated");
    for change in [
        json!({"aud": "other"}),
        json!({"exp": 1}),
        json!({"nbf": 4_000_000_000_i64}),
        json!({"iss": "https://other.example"}),
        json!({"sub": 7}),
        json!({"groups": {"a": 1}}),
    ] {
        assert_eq!(whoami(&api, &token(change.clone())?).await?, "401", "{change}");
    }
    // One bit of the signature.
    let (text, signature) = good.rsplit_once('.').context("three parts")?;
    let mut bytes = URL_SAFE_NO_PAD.decode(signature)?;
    if let Some(byte) = bytes.last_mut() {
        *byte ^= 1;
    }
    assert_eq!(whoami(&api, &format!("{text}.{}", URL_SAFE_NO_PAD.encode(bytes))).await?, "401");
    // A token says no more than its issuer may: it is none of a service account.
    let posing = token(json!({"sub": "system:serviceaccount:default:default"}))?;
    assert_eq!(whoami(&api, &posing).await?, "oidc:system:serviceaccount:default:default a,system:authenticated");
    Ok(())
}
