//! What tokens are meant for, where the keys of their issuers come from, and what changes of the configuration do.

#[path = "support/https.rs"]
mod https;
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use apiserver::{AuthSettings, JwksFile, OidcSettings};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use https::Https;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use support::Api;

const ISSUER: &str = "https://issuer.example";
const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: ";

/// The user's name, or the code of the refusal.
async fn whoami(api: &Api, token: &str) -> Result<String> {
    let (authorization, review) = (format!("Bearer {token}"), json!({"kind": "SelfSubjectReview"}).to_string());
    let path = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (code, _, bytes) = api.stranger(path, &[("authorization", &authorization)], review).await?;
    let answer: Value = serde_json::from_slice(&bytes)?;
    let name = answer.pointer("/status/userInfo/username").and_then(Value::as_str);
    Ok(name.map_or_else(|| code.to_string(), ToOwned::to_owned))
}

/// Waits until the server has taken notice.
async fn until(api: &Api, token: &str, want: &str) -> Result<()> {
    let begun = Instant::now();
    while whoami(api, token).await? != want {
        ensure!(begun.elapsed() < Duration::from_secs(5), "never {want}");
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn metric(api: &Api, name: &str) -> Result<String> {
    let (_, _, bytes) = api.call("GET /metrics", &[], "").await?;
    let text = String::from_utf8(bytes.to_vec())?;
    let found = text.lines().find_map(|line| line.strip_prefix(name)).context("no such metric")?;
    Ok(found.trim().to_owned())
}

struct Signer {
    pair: EcdsaKeyPair,
    id: &'static str,
}

impl Signer {
    fn new(id: &'static str) -> Result<Self> {
        let rng = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &rng).ok().context("a key")?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &rng);
        Ok(Self { pair: pair.ok().context("a key")?, id })
    }

    fn key(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let coordinate = |at: usize| URL_SAFE_NO_PAD.encode(point.get(at..at + 32).unwrap_or_default());
        let (x, y) = (coordinate(1), coordinate(33));
        json!({"kty": "EC", "crv": "P-256", "kid": self.id, "use": "sig", "x": x, "y": y})
    }

    fn token(&self, issuer: &str, name: &str) -> Result<String> {
        let claims = json!({"iss": issuer, "aud": "me", "sub": name, "exp": 4_102_444_800_i64});
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&json!({"alg": "ES256", "kid": self.id})), encode(&claims));
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes()).ok().context("a signature")?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }
}

fn write_keys(path: &Path, keys: &[Value]) -> Result<()> {
    Ok(std::fs::write(path, json!({"keys": keys}).to_string())?)
}

#[tokio::test]
async fn a_token_is_good_for_whom_it_is_meant() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let tokens = dir.path().join("tokens.csv");
    std::fs::write(&tokens, "secret,bob,7\n")?;
    let api = Api::start_with(|config| {
        config.auth.api_audiences = vec!["api".into(), "web".into()];
        config.auth.token_auth_file = Some(tokens);
    })
    .await?;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    api.json(&format!("POST {accounts}"), &[], Some(&json!({"metadata": {"name": "sa"}}))).await?;
    let token = async |audiences: Value| -> Result<(Value, String)> {
        let request = json!({"spec": {"audiences": audiences}});
        let (code, answer) = api.json(&format!("POST {accounts}/sa/token"), &[], Some(&request)).await?;
        ensure!(code == 201, "{answer}");
        let token = answer["status"]["token"].as_str().context("a token")?.to_owned();
        Ok((answer["spec"]["audiences"].clone(), token))
    };
    let review = async |token: &str, audiences: Value| -> Result<Value> {
        let review = json!({"spec": {"token": token, "audiences": audiences}});
        let (_, answer) = api.json("POST /apis/authentication.k8s.io/v1/tokenreviews", &[], Some(&review)).await?;
        let status = &answer["status"];
        Ok(if status["authenticated"] == json!(true) { status["audiences"].clone() } else { status.clone() })
    };
    let refused = |why: &str| json!({"user": {}, "error": why});
    let (audiences, own) = token(Value::Null).await?;
    assert_eq!(audiences, json!(["api", "web"]), "who asks for none gets the server's");
    let (_, other) = token(json!(["other"])).await?;
    let (_, both) = token(json!(["web", "other"])).await?;
    let name = "system:serviceaccount:default:sa";
    assert_eq!((whoami(&api, &own).await?.as_str(), whoami(&api, &both).await?.as_str()), (name, name));
    assert_eq!(whoami(&api, &other).await?, "401");
    assert_eq!(review(&own, Value::Null).await?, json!(["api", "web"]));
    assert_eq!(review(&own, json!([])).await?, json!(["api", "web"]));
    assert_eq!(review(&own, json!(["web", "api"])).await?, json!(["web", "api"]));
    assert_eq!(review(&both, Value::Null).await?, json!(["web"]));
    assert_eq!(review(&other, json!(["other"])).await?, json!(["other"]));
    let why =
        "[invalid bearer token, token audiences [\"api\" \"web\"] is invalid for the target audiences [\"other\"]]";
    assert_eq!(review(&own, json!(["other"])).await?, refused(why));
    let why =
        "[invalid bearer token, token audiences [\"other\"] is invalid for the target audiences [\"api\" \"web\"]]";
    assert_eq!(review(&other, Value::Null).await?, refused(why));
    // Those that know nothing of audiences are for the API.
    assert_eq!(review("secret", json!(["other", "web"])).await?, json!(["web"]));
    assert_eq!(review("secret", json!(["other"])).await?, refused("invalid bearer token"));
    assert_eq!(review("abc", Value::Null).await?, refused("invalid bearer token"));
    let why = "[invalid bearer token, go-jose/go-jose: error in cryptographic primitive]";
    let (signed, _) = own.rsplit_once('.').context("three parts")?;
    assert_eq!(review(&format!("{signed}.AAAA"), Value::Null).await?, refused(why));
    api.json(&format!("DELETE {accounts}/sa"), &[], None).await?;
    until(&api, &own, "401").await?;
    let why = "[invalid bearer token, serviceaccounts \"sa\" not found]";
    assert_eq!(review(&own, Value::Null).await?, refused(why));
    Ok(())
}

/// Clients that read their token but once keep working, where nobody forbids it.
#[tokio::test]
async fn a_pods_token_lasts_longer_than_its_kubelet_asked_for() -> Result<()> {
    const YEAR: i64 = 365 * 24 * 3600;
    let lasts = async |extend: bool, most: Option<u64>, spec: Value| -> Result<(i64, Option<i64>)> {
        let api = Api::start_with(|config| {
            config.auth.tokens.extend_expiration = extend;
            config.auth.tokens.max_expiration = most.map(Duration::from_secs);
        })
        .await?;
        let place = "/api/v1/namespaces/default";
        api.json(&format!("POST {place}/serviceaccounts"), &[], Some(&json!({"metadata": {"name": "sa"}}))).await?;
        let spec_of_pod = json!({"serviceAccountName": "sa", "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": "p"}, "spec": spec_of_pod});
        api.json(&format!("POST {place}/pods"), &[], Some(&pod)).await?;
        let request = json!({"spec": spec});
        let (code, answer) = api.json(&format!("POST {place}/serviceaccounts/sa/token"), &[], Some(&request)).await?;
        ensure!(code == 201, "{answer}");
        let token = answer["status"]["token"].as_str().context("a token")?;
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).context("three parts")?)?;
        let claims: Value = serde_json::from_slice(&claims)?;
        let begun = claims["iat"].as_i64().context("a time")?;
        let stale = claims.pointer("/kubernetes.io/warnafter").and_then(Value::as_i64);
        Ok((claims["exp"].as_i64().context("a time")? - begun, stale.map(|stale| stale - begun)))
    };
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p"});
    let kubelets = |seconds: i64| json!({"expirationSeconds": seconds, "boundObjectRef": bound});
    assert_eq!(lasts(true, None, kubelets(3607)).await?, (YEAR, Some(3607)));
    assert_eq!(lasts(true, None, kubelets(3600)).await?, (3600, None));
    assert_eq!(lasts(true, None, json!({"expirationSeconds": 3607})).await?, (3607, None));
    assert_eq!(lasts(false, None, kubelets(3607)).await?, (3607, None));
    assert_eq!(lasts(true, Some(7200), kubelets(3607)).await?, (7200, Some(3607)));
    assert_eq!(lasts(true, Some(7200), kubelets(9000)).await?, (7200, None));
    Ok(())
}

/// Without a network; and a key that is new in the file is found when a token names it.
#[tokio::test]
async fn the_keys_of_an_issuer_may_be_in_a_file() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("keys.json");
    let (first, second) = (Signer::new("1")?, Signer::new("2")?);
    write_keys(&path, &[first.key()])?;
    let oidc = |algorithm: &str| OidcSettings {
        issuer_url: ISSUER.into(),
        client_id: "me".into(),
        username_claim: "sub".into(),
        username_prefix: "-".into(),
        signing_algs: vec![algorithm.into()],
        ..OidcSettings::default()
    };
    let file = JwksFile { issuer_url: None, path: path.clone() };
    let settings = |oidc: OidcSettings, file: JwksFile| {
        move |auth: &mut AuthSettings| (auth.oidc, auth.oidc_jwks_files) = (Some(oidc), vec![file])
    };
    let start = async |change: &dyn Fn(&mut AuthSettings)| Api::start_with(|config| change(&mut config.auth)).await;
    let api = Api::start_with(|config| settings(oidc("ES256"), file.clone())(&mut config.auth)).await?;
    assert_eq!(whoami(&api, &first.token(ISSUER, "bob")?).await?, "bob");
    write_keys(&path, &[second.key()])?;
    assert_eq!(whoami(&api, &second.token(ISSUER, "eve")?).await?, "eve");
    assert_eq!(whoami(&api, &first.token(ISSUER, "bob")?).await?, "401");
    let refusal = async |change: &dyn Fn(&mut AuthSettings)| match start(change).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let why = refusal(&|auth| auth.oidc_jwks_files = vec![file.clone()]).await;
    assert!(why.ends_with("keys.json is of no issuer that is configured"), "{why}");
    let why = refusal(&|auth| auth.oidc = Some(oidc("HS256"))).await;
    assert!(why.ends_with("--oidc: oidc: unsupported signing alg: \"HS256\""), "{why}");
    write_keys(&path, &[json!({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"})])?;
    let why = refusal(&|auth| (auth.oidc, auth.oidc_jwks_files) = (Some(oidc("ES256")), vec![file.clone()])).await;
    assert!(why.ends_with("holds no keys that can be used: none is of RSA, P-256, P-384 or P-521"), "{why}");
    Ok(())
}

fn issuers(urls: &[(&str, &str)], rest: &str) -> String {
    let jwt = urls.iter().map(|(url, authority)| {
        let mappings = "claimMappings: {username: {claim: sub, prefix: ''}}";
        format!("- issuer: {{url: {url:?}, audiences: [me], certificateAuthority: {authority:?}}}\n  {mappings}\n")
    });
    format!("{HEAD}AuthenticationConfiguration\njwt:\n{}{rest}\n", jwt.collect::<String>())
}

/// What changes for the better is taken over, what is wrong is not; nobody is locked out meanwhile.
#[tokio::test]
async fn changed_issuers_are_taken_over() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (path, keys) = (dir.path().join("authn.yaml"), dir.path().join("keys.json"));
    let signer = Signer::new("k")?;
    write_keys(&keys, &[signer.key()])?;
    let key = signer.key();
    let server = Https::start(move |url, path, _| match path {
        "/.well-known/openid-configuration" => json!({"issuer": url, "jwks_uri": format!("{url}/keys")}),
        _ => json!({"keys": [key]}),
    })
    .await?;
    let local = (ISSUER, "");
    std::fs::write(&path, issuers(&[local], ""))?;
    let file = JwksFile { issuer_url: Some(ISSUER.into()), path: keys };
    let api = Api::start_with(|config| {
        config.auth.authentication_config = Some(path.clone());
        config.auth.oidc_jwks_files = vec![file];
    })
    .await?;
    let (first, second) = (signer.token(ISSUER, "first")?, signer.token(&server.url, "second")?);
    assert_eq!((whoami(&api, &first).await?.as_str(), whoami(&api, &second).await?.as_str()), ("first", "401"));
    let both = issuers(&[local, (&server.url, &server.authority)], "");
    std::fs::write(&path, &both)?;
    until(&api, &second, "second").await?;
    assert_eq!(whoami(&api, &first).await?, "first");
    let total = "apiserver_authentication_config_controller_automatic_reloads_total";
    assert_eq!(metric(&api, &format!("{total}{{status=\"success\"}}")).await?, "1");
    for (index, wrong) in
        ["kind: Other\n".to_owned(), issuers(&[local], "anonymous: {enabled: false}")].iter().enumerate()
    {
        std::fs::write(&path, wrong)?;
        let begun = Instant::now();
        while metric(&api, &format!("{total}{{status=\"failure\"}}")).await? != (index + 1).to_string() {
            ensure!(begun.elapsed() < Duration::from_secs(5), "not refused: {wrong}");
            tokio::task::yield_now().await;
        }
        assert_eq!(whoami(&api, &second).await?, "second");
    }
    // A file that is put in the place of another.
    std::fs::write(dir.path().join("new"), issuers(&[(&server.url, &server.authority)], ""))?;
    std::fs::rename(dir.path().join("new"), &path)?;
    until(&api, &first, "401").await?;
    assert_eq!(whoami(&api, &second).await?, "second");
    Ok(())
}

#[tokio::test]
async fn changed_authorizers_are_taken_over() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("authz.yaml");
    let modes = |names: &[&str]| {
        let list = names.iter().map(|name| format!("- {{type: {name}, name: {}}}\n", name.to_lowercase()));
        format!("{HEAD}AuthorizationConfiguration\nauthorizers:\n{}", list.collect::<String>())
    };
    std::fs::write(&path, modes(&["RBAC"]))?;
    let api = Api::start_with(|config| config.auth.authorization_config = Some(path.clone())).await?;
    let code = async || anyhow::Ok(api.send_as("bob", "GET /api/v1/nodes").await?.status().as_u16());
    let until = async |want: u16| {
        let begun = Instant::now();
        while code().await? != want {
            ensure!(begun.elapsed() < Duration::from_secs(5), "never {want}");
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    assert_eq!(code().await?, 403);
    std::fs::write(&path, modes(&["RBAC", "AlwaysAllow"]))?;
    until(200).await?;
    std::fs::write(&path, modes(&["Sometimes"]))?;
    let failures = "apiserver_authorization_config_controller_automatic_reloads_total{status=\"failure\"}";
    while metric(&api, failures).await? != "1" {
        tokio::task::yield_now().await;
    }
    assert_eq!(code().await?, 200, "what is in use stays in use");
    std::fs::write(&path, modes(&["RBAC"]))?;
    until(403).await?;
    let hash = "apiserver_authorization_config_controller_last_config_info";
    assert!(metric(&api, hash).await?.starts_with("{hash=\"sha256:"));
    Ok(())
}
