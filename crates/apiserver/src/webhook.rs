//! Calls webhooks: one POST of JSON over TLS, bounded in size and time.
//!
//! Connections are kept for the next call. A webhook is named by an address, or by a service, of which one endpoint is
//! asked; either way its certificate is checked against the authorities that its configuration gives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ::http::{Request, StatusCode, Uri, header};
use api::{Object, ObjectExt as _};
use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::server::ApiServer;
use crate::streaming::service_endpoint;

/// More than any object, or list of objects, that is sent.
const MAX_ANSWER: usize = 32 << 20;
/// Idle connections to one webhook.
const MAX_IDLE: usize = 8;

#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookError {
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    Authorities,
    #[error("no caBundle is configured, and this server trusts no authorities of its own")]
    NoAuthorities,
    #[error("{0:?} is not the address of a webhook")]
    Address(String),
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
    #[error("dial tcp {0}: {1}")]
    Connect(String, #[source] std::io::Error),
    #[error("tls: {0}")]
    Tls(#[source] std::io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("the server answered {0}: {1}")]
    Status(StatusCode, String),
    #[error("the answer cannot be read: {0}")]
    Answer(String),
    #[error("context deadline exceeded")]
    TimedOut,
}

/// The authorities in a bundle of PEM, itself in base64.
pub(crate) fn authorities(bundle: &str) -> Result<RootCertStore, WebhookError> {
    let pem = base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|_| WebhookError::Authorities)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| WebhookError::Authorities)?;
        roots.add(certificate).map_err(|_| WebhookError::Authorities)?;
    }
    if roots.is_empty() { Err(WebhookError::Authorities) } else { Ok(roots) }
}

/// The connections that are open and idle, by webhook.
#[derive(Default)]
pub(crate) struct Webhooks {
    idle: Mutex<HashMap<String, Vec<SendRequest<Full<Bytes>>>>>,
}

/// Where a webhook is.
struct Target {
    /// What connections to it are kept under.
    key: String,
    host: String,
    port: u16,
    name: String,
    path: String,
    bundle: String,
}

impl Target {
    fn new(server: &ApiServer, config: &Object) -> Result<Self, WebhookError> {
        let bundle = config.text(&["caBundle"]).to_owned();
        if bundle.is_empty() {
            return Err(WebhookError::NoAuthorities);
        }
        let url = config.text(&["url"]);
        let (host, port, name, path) = if url.is_empty() {
            let (namespace, name) = (config.text(&["service", "namespace"]), config.text(&["service", "name"]));
            let port = config.at(&["service", "port"]).and_then(Value::as_u64).unwrap_or(443);
            let (host, port) = service_endpoint(server, namespace, name, Some(&port.to_string()))
                .ok_or_else(|| WebhookError::NoEndpoints(name.to_owned()))?;
            let path = config.text(&["service", "path"]);
            let slash = if path.starts_with('/') { "" } else { "/" };
            (host, port, format!("{name}.{namespace}.svc"), format!("{slash}{path}"))
        } else {
            let unusable = || WebhookError::Address(url.to_owned());
            let uri: Uri = url.parse().map_err(|_| unusable())?;
            let host = uri.host().ok_or_else(unusable)?.trim_matches(['[', ']']).to_owned();
            let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
            (host.clone(), uri.port_u16().unwrap_or(443), host, path)
        };
        let key = format!("{name} {host} {port} {bundle}");
        Ok(Self { key, host, port, name, path, bundle })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, WebhookError> {
        let refused = |error| WebhookError::Connect(format!("{}:{}", self.host, self.port), error);
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(refused)?;
        let _ = stream.set_nodelay(true);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.map_err(|error| WebhookError::Tls(std::io::Error::other(error)))?;
        let tls = tls.with_root_certificates(authorities(&self.bundle)?).with_no_client_auth();
        let name = ServerName::try_from(self.name.clone());
        let name = name.map_err(|error| WebhookError::Tls(std::io::Error::other(error)))?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.map_err(WebhookError::Tls)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Whoever uses the connection is told when it breaks.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

impl Webhooks {
    /// Sends `body` to the webhook that `config` names, and answers what it says.
    pub(crate) async fn call(
        &self,
        server: &ApiServer,
        config: &Object,
        body: &Value,
        timeout: Duration,
    ) -> Result<Value, WebhookError> {
        let target = Target::new(server, config)?;
        let asked = tokio::time::timeout(timeout, self.ask(&target, Bytes::from(body.to_string())));
        asked.await.map_err(|_| WebhookError::TimedOut)?
    }

    async fn ask(&self, target: &Target, body: Bytes) -> Result<Value, WebhookError> {
        // One that was idle may have been closed just now; a new one has no such excuse.
        while let Some(mut sender) = self.idle(&target.key) {
            match self.exchange(&mut sender, target, body.clone()).await {
                Err(WebhookError::Http(error)) if error.is_canceled() || error.is_closed() => (),
                answer => {
                    self.keep(target, sender);
                    return answer;
                }
            }
        }
        let mut sender = target.connect().await?;
        let answer = self.exchange(&mut sender, target, body).await;
        self.keep(target, sender);
        answer
    }

    fn idle(&self, key: &str) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        let known = idle.get_mut(key)?;
        known.retain(|sender| !sender.is_closed());
        known.pop()
    }

    fn keep(&self, target: &Target, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock();
        idle.retain(|_, senders| {
            senders.retain(|sender| !sender.is_closed());
            !senders.is_empty()
        });
        let known = idle.entry(target.key.clone()).or_default();
        if sender.is_ready() && known.len() < MAX_IDLE {
            known.push(sender);
        }
    }

    async fn exchange(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        target: &Target,
        body: Bytes,
    ) -> Result<Value, WebhookError> {
        sender.ready().await?;
        let request = Request::post(&target.path)
            .header(header::HOST, format!("{}:{}", target.name, target.port))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(body));
        let request = request.map_err(|error| WebhookError::Answer(error.to_string()))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let bytes = bytes.map_err(|error| WebhookError::Answer(error.to_string()))?.to_bytes();
        if !status.is_success() {
            return Err(WebhookError::Status(status, String::from_utf8_lossy(&bytes).chars().take(1024).collect()));
        }
        serde_json::from_slice(&bytes).map_err(|error| WebhookError::Answer(error.to_string()))
    }
}
