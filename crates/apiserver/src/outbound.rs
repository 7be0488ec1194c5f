//! Requests the API server makes itself: to webhooks, to issuers of tokens, to API servers it stands in front of.
//!
//! An [`Outbound`] is one of them: where it is, whom to believe there, and the idle connections to it. A service stands for
//! one of its endpoints, chosen with each request.

pub(crate) mod connect;
mod idle;
mod kubeconfig;
pub(crate) mod line;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use api::{Object, ObjectExt as _};
use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use rustls::ClientConfig;
use rustls::client::ResolvesClientCert;
use serde_json::Value;

use self::connect::Trust;
use self::idle::Idle;
pub(crate) use self::kubeconfig::Logins;
use self::line::Line;
use crate::http::{Body, full};
use crate::server::ApiServer;
use crate::streaming::service_endpoint;

const TIMEOUT: Duration = Duration::from_secs(30);
/// No review is larger.
const MAX_ANSWER: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    #[error("{0} cannot be read: {1}")]
    Read(String, std::io::Error),
    #[error("{0}")]
    Config(String),
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    Authorities,
    #[error("tls: {0}")]
    Tls(String),
    #[error("dial tcp {0}: {1}")]
    Dial(String, String),
    #[error("{0}")]
    Unresolved(String),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// Which request, and why there is no answer to it.
    #[error("{0} {1:?}: {2}")]
    Failed(&'static str, String, String),
    #[error("{0}")]
    Status(String),
    #[error("the answer cannot be read: {0}")]
    Answer(String),
}

/// As whom the server shows itself.
pub(crate) type Identity = Arc<dyn ResolvesClientCert>;

#[derive(Debug)]
enum Address {
    Url(Uri),
    Service { namespace: String, name: String, port: u16, path: String },
}

/// Where a request goes.
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) port: u16,
    is_tls: bool,
    /// What the one there is called, in its certificate and in the address.
    pub(crate) name: String,
    asked_port: u16,
    path: String,
}

/// Somebody whom the server asks.
#[derive(Debug)]
pub(crate) struct Outbound {
    to: Address,
    trust: Trust,
    pub(crate) identity: Option<Identity>,
    tls: OnceLock<Arc<ClientConfig>>,
    authorization: Option<HeaderValue>,
    pub(crate) max_answer: usize,
    idle: Idle,
}

impl Place {
    fn of(url: &Uri) -> Result<Self, OutboundError> {
        let host = url.host().ok_or_else(|| OutboundError::Config(format!("{url} names no host")))?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let is_tls = url.scheme_str() != Some("http");
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { name: host.clone(), host, port, is_tls, asked_port: port, path })
    }

    fn key(&self) -> String {
        format!("{} {}:{}", self.name, self.host, self.port)
    }

    /// The name and port that were asked for, as addresses have them.
    pub(crate) fn authority(&self) -> String {
        let name = if self.name.contains(':') { format!("[{}]", self.name) } else { self.name.clone() };
        format!("{name}:{}", self.asked_port)
    }
}

impl Outbound {
    fn to(to: Address, trust: Trust) -> Self {
        Self {
            to,
            trust,
            identity: None,
            tls: OnceLock::new(),
            authorization: None,
            max_answer: MAX_ANSWER,
            idle: Idle::default(),
        }
    }

    pub(crate) fn new(url: &str, trust: Trust) -> Result<Self, OutboundError> {
        let parsed = url.parse().map_err(|error| OutboundError::Config(format!("{url}: {error}")))?;
        Ok(Self::to(Address::Url(parsed), trust))
    }

    /// As a `clientConfig`, or the spec of an APIService, says.
    pub(crate) fn from_client_config(config: &Object) -> Result<Self, OutboundError> {
        let trust = match config.text(&["caBundle"]) {
            _ if config.get("insecureSkipTLSVerify") == Some(&Value::Bool(true)) => Trust::Anybody,
            "" => Trust::System,
            bundle => Trust::Authorities(bundle_of(bundle)?),
        };
        let url = config.text(&["url"]);
        if !url.is_empty() {
            return Self::new(url, trust);
        }
        let text = |field: &str| config.text(&["service", field]).to_owned();
        let port = config.at(&["service", "port"]).and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let path = text("path");
        let path = if path.starts_with('/') { path } else { format!("/{path}") };
        let to = Address::Service { namespace: text("namespace"), name: text("name"), port: port.unwrap_or(443), path };
        Ok(Self::to(to, trust))
    }

    /// Where it is at this moment.
    pub(crate) fn place(&self, server: &ApiServer) -> Result<Place, OutboundError> {
        match &self.to {
            Address::Url(url) => Place::of(url),
            Address::Service { namespace, name, port, path } => {
                let found = service_endpoint(server, namespace, name, Some(&port.to_string()));
                let missing = || OutboundError::Unresolved(format!("no endpoints available for service {name:?}"));
                let (host, at) = found.ok_or_else(missing)?;
                let (name, path) = (format!("{name}.{namespace}.svc"), path.clone());
                Ok(Place { host, port: at, is_tls: true, name, asked_port: *port, path })
            }
        }
    }

    /// Fails now if it would fail later for what it is to believe.
    pub(crate) fn checked(self) -> Result<Self, OutboundError> {
        self.tls()?;
        Ok(self)
    }

    fn tls(&self) -> Result<&Arc<ClientConfig>, OutboundError> {
        if let Some(known) = self.tls.get() {
            return Ok(known);
        }
        let mut config = connect::tls(&self.trust)?;
        if let Some(identity) = &self.identity {
            config.client_auth_cert_resolver = identity.clone();
        }
        Ok(self.tls.get_or_init(|| Arc::new(config)))
    }

    /// Sends a request; the line is to be given back once the answer was read.
    pub(crate) async fn send(
        &self,
        place: &Place,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Line), OutboundError> {
        let key = place.key();
        // One that was idle may have been closed just now; a new one has no such excuse.
        while let Some(mut line) = self.idle.take(&key) {
            match line.ask(request).await {
                Ok(response) => return Ok((response, line)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let tls = if place.is_tls { Some((self.tls()?, place.name.as_str())) } else { None };
        let mut line = connect::connect(&place.host, place.port, tls).await?;
        let response = line.ask(request).await.map_err(TrySendError::into_error)?;
        Ok((response, line))
    }

    pub(crate) fn keep(&self, place: &Place, line: Line) {
        self.idle.keep(place.key(), line);
    }

    /// Posts `body` to where the configuration says; `query` is added to the path.
    pub(crate) async fn call(
        &self,
        server: &ApiServer,
        body: Bytes,
        timeout: Duration,
        query: &str,
    ) -> Result<Value, OutboundError> {
        let mut place = self.place(server);
        if let Ok(place) = &mut place {
            place.path.push_str(query);
        }
        self.ask(Method::POST, place, body, timeout).await
    }

    /// The same where no service can be meant.
    pub(crate) async fn post(&self, body: &Value) -> Result<Value, OutboundError> {
        let Address::Url(url) = &self.to else { return Err(OutboundError::Config("no address".into())) };
        self.ask(Method::POST, Place::of(url), body.to_string().into(), TIMEOUT).await
    }

    pub(crate) async fn get(&self, url: &str) -> Result<Value, OutboundError> {
        let url: Uri = url.parse().map_err(|error| OutboundError::Config(format!("{url}: {error}")))?;
        self.ask(Method::GET, Place::of(&url), Bytes::new(), TIMEOUT).await
    }

    /// Gets a path, in a time; answers whatever comes back.
    pub(crate) async fn fetch(
        &self,
        server: &ApiServer,
        path: &str,
        headers: HeaderMap,
        timeout: Duration,
    ) -> Result<(StatusCode, HeaderMap, Bytes), OutboundError> {
        let mut place = self.place(server)?;
        place.path = path.to_owned();
        let url = self.shown(Some(&place));
        let failed = |why: String| OutboundError::Failed("Get", url.clone(), why);
        let mut request = Request::new(full(Bytes::new()));
        *request.headers_mut() = headers;
        *request.uri_mut() = path.parse().map_err(|error| OutboundError::Config(format!("{path}: {error}")))?;
        match tokio::time::timeout(timeout, self.exchange(&place, request)).await {
            Ok(answer) => answer.map_err(|error| failed(chain(&error))),
            Err(_) => Err(failed("context deadline exceeded".into())),
        }
    }

    /// One request and the whole of its answer.
    async fn exchange(
        &self,
        place: &Place,
        mut request: Request<Body>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), OutboundError> {
        if let Ok(host) = HeaderValue::try_from(place.authority()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let (response, mut line) = self.send(place, request).await?;
        let (parts, body) = response.into_parts();
        let body = line.drive(Limited::new(body, self.max_answer).collect()).await;
        let bytes = body.map_err(|error| OutboundError::Answer(error.to_string()))?.to_bytes();
        self.keep(place, line);
        Ok((parts.status, parts.headers, bytes))
    }

    async fn ask(
        &self,
        method: Method,
        place: Result<Place, OutboundError>,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Value, OutboundError> {
        let verb = if method == Method::GET { "Get" } else { "Post" };
        let url = self.shown(place.as_ref().ok());
        let failed = |error: &dyn std::error::Error| OutboundError::Failed(verb, url.clone(), chain(error));
        let place = place.map_err(|error| failed(&error))?;
        let whole = async {
            let mut request = Request::builder()
                .method(method)
                .uri(&place.path)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json")
                .header(header::USER_AGENT, "kube-apiserver-admission");
            if let Some(authorization) = &self.authorization {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let request = request.body(full(body)).map_err(|error| failed(&error))?;
            let (status, _, bytes) = self.exchange(&place, request).await.map_err(|error| failed(&error))?;
            if !status.is_success() {
                return Err(OutboundError::Status(refusal(status, &bytes)));
            }
            serde_json::from_slice(&bytes).map_err(|error| failed(&OutboundError::Answer(error.to_string())))
        };
        let late = |_| OutboundError::Failed(verb, url.clone(), "context deadline exceeded".into());
        tokio::time::timeout(timeout, whole).await.map_err(late)?
    }

    /// The address, for messages.
    fn shown(&self, place: Option<&Place>) -> String {
        match (place, &self.to) {
            (Some(place), _) => {
                let scheme = if place.is_tls { "https" } else { "http" };
                format!("{scheme}://{}{}", place.authority(), place.path)
            }
            (None, Address::Url(url)) => url.to_string(),
            (None, Address::Service { namespace, name, port, path }) => {
                format!("https://{name}.{namespace}.svc:{port}{path}")
            }
        }
    }
}

/// A `caBundle`: PEM in base64.
pub(crate) fn bundle_of(text: &str) -> Result<Vec<u8>, OutboundError> {
    base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| OutboundError::Authorities)
}

/// What a client of upstream's makes of an answer that is none.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let told: Option<Value> = serde_json::from_slice(body).ok();
    if let Some(message) = told.as_ref().filter(|told| told.get("kind").is_some_and(|kind| kind == "Status"))
        && let Some(message) = message.get("message").and_then(Value::as_str)
    {
        return message.to_owned();
    }
    let text: String = String::from_utf8_lossy(body).chars().take(1024).collect();
    unexpected(status, &text)
}

/// What is told of an answer that says nothing but its code, and `text`.
pub(crate) fn unexpected(status: StatusCode, text: &str) -> String {
    match status.as_u16() {
        400 => "the server rejected our request for an unknown reason".into(),
        401 => "the server has asked for the client to provide credentials".into(),
        403 => text.to_owned(),
        404 => "the server could not find the requested resource".into(),
        409 => "the server reported a conflict".into(),
        405 => "the server does not allow this method on the requested resource".into(),
        429 => "the server has received too many requests and has asked us to try again later".into(),
        503 => "the server is currently unable to handle the request".into(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .into()
        }
        500.. => format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}

/// An error and what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let told = cause.to_string();
        if !text.ends_with(&told) {
            text = format!("{text}: {told}");
        }
        next = cause.source();
    }
    text
}
