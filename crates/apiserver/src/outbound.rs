//! Requests the API server makes itself: to webhooks, as a kubeconfig says, and to issuers of tokens.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 3 << 20;
/// Where systems keep the authorities they believe.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    #[error("{0} cannot be read: {1}")]
    Read(String, std::io::Error),
    #[error("{0}")]
    Config(String),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("request to {0} failed: {1}")]
    Failed(String, String),
    #[error("{0} answered {1}")]
    Status(String, StatusCode),
}

/// Whom to ask, and with which credentials.
pub(crate) struct Outbound {
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Where reviews are sent; paths of issuers are given with each request.
    url: Uri,
    token: Option<HeaderValue>,
}

fn config_error(why: impl std::fmt::Display) -> OutboundError {
    OutboundError::Config(why.to_string())
}

fn roots(pem: Option<&[u8]>) -> Result<RootCertStore, OutboundError> {
    let mut roots = RootCertStore::empty();
    let system: Vec<u8> = match pem {
        Some(pem) => pem.to_vec(),
        None => SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default(),
    };
    for authority in CertificateDer::pem_slice_iter(&system) {
        let authority = authority.map_err(|_| config_error("the certificate authority is not PEM"))?;
        // A system's list may hold one that this library does not understand.
        if let (Err(error), Some(_)) = (roots.add(authority), pem) {
            return Err(error.into());
        }
    }
    Ok(roots)
}

impl Outbound {
    pub(crate) fn new(
        url: &str,
        authority: Option<&[u8]>,
        identity: Option<(&[u8], &[u8])>,
        token: Option<&str>,
    ) -> Result<Self, OutboundError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let tls = tls.with_root_certificates(roots(authority)?);
        let tls = match identity {
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>();
                let chain = chain.map_err(|_| config_error("the client certificate is not PEM"))?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| config_error("the client key is not PEM"))?;
                tls.with_client_auth_cert(chain, key)?
            }
            None => tls.with_no_client_auth(),
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_all_versions();
        let http = Client::builder(TokioExecutor::new()).build(connector.wrap_connector(http));
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let token = token.map_err(|_| config_error("the token is no header value"))?;
        let url = url.parse().map_err(|error| config_error(format!("{url}: {error}")))?;
        Ok(Self { http, url, token })
    }

    /// As the current context of a kubeconfig says: the way upstream configures webhooks.
    pub(crate) fn from_kubeconfig(path: &Path) -> Result<Self, OutboundError> {
        let shown = path.display().to_string();
        let text = std::fs::read(path).map_err(|error| OutboundError::Read(shown.clone(), error))?;
        let config = crate::http::yaml(&text).map_err(|error| config_error(format!("{shown}: {}", error.message)))?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let current =
            text_of(&config, "current-context").ok_or_else(|| config_error(format!("{shown}: no current-context")))?;
        let context = named(&config, "contexts", "context", current)?;
        let cluster = named(&config, "clusters", "cluster", text_of(context, "cluster").unwrap_or_default())?;
        let nobody = Value::Null;
        let user = match text_of(context, "user") {
            Some(name) => named(&config, "users", "user", name)?,
            None => &nobody,
        };
        for unknown in ["exec", "auth-provider", "username"] {
            if user.get(unknown).is_some() {
                return Err(config_error(format!("{shown}: a user with {unknown:?} cannot be used here")));
            }
        }
        if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
            return Err(config_error(format!(
                "{shown}: insecure-skip-tls-verify is not supported; give certificate-authority"
            )));
        }
        let authority = content(cluster, "certificate-authority", dir)?;
        let identity = content(user, "client-certificate", dir)?.zip(content(user, "client-key", dir)?);
        let identity = identity.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
        let server = text_of(cluster, "server").ok_or_else(|| config_error(format!("{shown}: no server")))?;
        let token = match text_of(user, "tokenFile") {
            Some(file) => Some(String::from_utf8_lossy(&read(&dir.join(file))?).trim().to_owned()),
            None => text_of(user, "token").map(ToOwned::to_owned),
        };
        Self::new(server, authority.as_deref(), identity, token.as_deref())
    }

    pub(crate) async fn post(&self, body: &Value) -> Result<Value, OutboundError> {
        self.ask(Method::POST, self.url.clone(), body.to_string().into()).await
    }

    pub(crate) async fn get(&self, url: &str) -> Result<Value, OutboundError> {
        let url = url.parse().map_err(|error| config_error(format!("{url}: {error}")))?;
        self.ask(Method::GET, url, Bytes::new()).await
    }

    async fn ask(&self, method: Method, url: Uri, body: Bytes) -> Result<Value, OutboundError> {
        let shown = url.to_string();
        let failed = |why: String| OutboundError::Failed(shown.clone(), why);
        let mut request = Request::builder().method(method).uri(url);
        request = request.header(header::CONTENT_TYPE, "application/json").header(header::ACCEPT, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body)).map_err(|error| failed(error.to_string()))?;
        let whole = async {
            let response = self.http.request(request).await.map_err(|error| failed(chain(&error)))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let bytes = body.map_err(|error| failed(error.to_string()))?.to_bytes();
            if !status.is_success() {
                return Err(OutboundError::Status(shown.clone(), status));
            }
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))
        };
        tokio::time::timeout(TIMEOUT, whole).await.map_err(|_| failed("no answer in time".into()))?
    }
}

/// An error and what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn text_of<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !text.is_empty())
}

fn named<'a>(config: &'a Value, list: &str, what: &str, name: &str) -> Result<&'a Value, OutboundError> {
    let mut entries = config.get(list).and_then(Value::as_array).into_iter().flatten();
    let entry = entries.find(|entry| text_of(entry, "name") == Some(name)).and_then(|entry| entry.get(what));
    entry.ok_or_else(|| config_error(format!("no {what} is named {name:?}")))
}

fn read(path: &Path) -> Result<Vec<u8>, OutboundError> {
    std::fs::read(path).map_err(|error| OutboundError::Read(path.display().to_string(), error))
}

/// What `key` names as a file, beside the kubeconfig if not a whole path, or holds itself as `key-data`.
fn content(value: &Value, key: &str, dir: &Path) -> Result<Option<Vec<u8>>, OutboundError> {
    if let Some(data) = text_of(value, &format!("{key}-data")) {
        return STANDARD.decode(data).map(Some).map_err(|_| config_error(format!("{key}-data is not base64")));
    }
    text_of(value, key).map(|file| read(&dir.join(file))).transpose()
}
