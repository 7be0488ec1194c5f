//! A request of somebody who may do next to nothing, or of nobody: whatever it says of itself, it gets no further than that.
//!
//! `METHOD path`, then a header on each line, then an empty line and the body. `{token}` is a token of a service account that may
//! read ConfigMaps in the namespace `own`.
#![no_main]

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, ensure};
use apiserver::{ApiServer, Config, KubeletClient, ServiceAccountKeys};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// What anybody may get, and what only those who are somebody.
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
const KNOWN: [&str; 5] = ["/api", "/apis", "/openapi", "/openid/v1/jwks", "/.well-known/openid-configuration"];
const ABOUT_ONESELF: [&str; 4] =
    ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews", "selfsubjectattributesreviews"];
const OWN: &str = "/api/v1/namespaces/own/configmaps";
const OWN_WATCHED: &str = "/api/v1/watch/namespaces/own/configmaps";

struct Served {
    runtime: Runtime,
    server: Arc<ApiServer>,
    token: String,
}

fuzz_target!(|bytes: &[u8]| {
    static SERVED: OnceLock<Served> = OnceLock::new();
    let served = SERVED.get_or_init(|| Served::start().expect("a server"));
    let Some(request) = request(bytes, &served.token) else { return };
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let is_somebody = request.headers().contains_key("authorization");
    let response = served.runtime.block_on(served.server.handle(request));
    assert!(!response.status().is_server_error(), "{method} {uri}: {}", response.status());
    if response.status().is_success() {
        assert!(is_allowed(&method, uri.path(), is_somebody), "{method} {uri}: {}", response.status());
    }
});

/// More than this nobody was given.
fn is_allowed(method: &Method, path: &str, is_somebody: bool) -> bool {
    let is_read = method == Method::GET;
    let below = |prefix: &str| path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    // What is a resource is none of discovery's paths, however it is written.
    let is_discovery = || below("/openapi") || path.trim_end_matches('/').split('/').count() <= 4;
    is_read && PUBLIC.contains(&path)
        || is_somebody
            && (is_read && KNOWN.into_iter().any(below) && is_discovery()
                || is_read && (below(OWN) || below(OWN_WATCHED))
                || method == Method::POST && ABOUT_ONESELF.iter().any(|review| path.ends_with(review)))
}

fn request(bytes: &[u8], token: &str) -> Option<Request<apiserver::Body>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let (method, path) = lines.next()?.split_once(' ')?;
    let mut builder = Request::builder().method(method).uri(path);
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        builder = builder.header(name, value.replace("{token}", token));
    }
    builder.body(body_of(body.to_owned())).ok()
}

fn body_of(text: String) -> apiserver::Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

impl Served {
    fn start() -> Result<Self> {
        let runtime = Runtime::new()?;
        let (server, token) = runtime.block_on(async {
            let dir = tempfile::tempdir()?;
            let store = Arc::new(store::Embedded::open(dir.path(), store::Options::default())?);
            let server = ApiServer::start(config()?, store, CancellationToken::new()).await?;
            let token = prepare(&server).await?;
            // The files stay for as long as they are open; nothing is left of them when the fuzzer ends.
            anyhow::Ok((server, token))
        })?;
        Ok(Self { runtime, server, token })
    }
}

fn config() -> Result<Config> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?.serialize_pem();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let keys = ServiceAccountKeys::read(key.as_bytes(), &[])?;
    let mut config = Config::new([192, 0, 2, 1].into(), keys, KubeletClient::new(Arc::new(tls)));
    config.auth.enable_bootstrap_token_auth = true;
    Ok(config)
}

/// The account, what it may, and its token.
async fn prepare(server: &Arc<ApiServer>) -> Result<String> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/own";
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"});
    let account = json!({"kind": "ServiceAccount", "name": "reader", "namespace": "own"});
    for (path, object) in [
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": "own"}})),
        (OWN.to_owned(), json!({"metadata": {"name": "seen"}})),
        ("/api/v1/namespaces/own/serviceaccounts".to_owned(), json!({"metadata": {"name": "reader"}})),
        (format!("{rbac}/roles"), json!({"metadata": {"name": "reader"}, "rules": [rule]})),
        (
            format!("{rbac}/rolebindings"),
            json!({"metadata": {"name": "reader"}, "roleRef": role, "subjects": [account]}),
        ),
    ] {
        create(server, &path, &object).await?;
    }
    let token = create(server, "/api/v1/namespaces/own/serviceaccounts/reader/token", &json!({"spec": {}})).await?;
    token.pointer("/status/token").and_then(Value::as_str).map(ToOwned::to_owned).context("no token")
}

async fn create(server: &Arc<ApiServer>, path: &str, object: &Value) -> Result<Value> {
    let request = Request::post(path).header("content-type", "application/json");
    let mut request = request.body(body_of(object.to_string()))?;
    request.extensions_mut().insert(api::UserInfo::authenticated("admin", &["system:masters"]));
    let response: Response<_> = server.handle(request).await;
    ensure!(response.status().is_success(), "{path}: {}", response.status());
    let body = response.into_body().collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}
