//! Hands an upgraded connection to the runtime's streaming server, byte for byte.
//!
//! The runtime answers the caller's own handshake, so whatever both speak works: SPDY, which API servers of every age
//! and all runtimes do, or WebSocket in any subprotocol.

use std::io;
use std::sync::Arc;

use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::Status;

use super::{Body, full, text};

pub(super) enum Session {
    Exec(ExecRequest),
    Attach(AttachRequest),
    PortForward(PortForwardRequest),
}

impl Session {
    /// A URL is good for one connection.
    async fn url(self, cri: &dyn cri::Cri) -> Result<String, Status> {
        Ok(match self {
            Self::Exec(request) => cri.exec(request).await?.url,
            Self::Attach(request) => cri.attach(request).await?.url,
            Self::PortForward(request) => cri.port_forward(request).await?.url,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RelayError {
    #[error("the runtime's streaming URL {0} is not usable")]
    Url(String),
    #[error("cannot reach the runtime's streaming server: {0}")]
    Connect(#[from] io::Error),
    #[error("the runtime's streaming server: {0}")]
    Http(#[from] hyper::Error),
    #[error("{}", .0.message())]
    Runtime(#[from] Status),
}

pub(super) async fn serve(cri: Arc<dyn cri::Cri>, session: Session, request: Request<Incoming>) -> Response<Body> {
    if !request.headers().contains_key("upgrade") {
        return text(StatusCode::BAD_REQUEST, "Upgrade request required".to_owned());
    }
    match relay(cri.as_ref(), session, request).await {
        Ok(response) => response,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

struct Endpoint {
    host: String,
    port: u16,
    path: String,
}

fn endpoint(url: &str) -> Result<Endpoint, RelayError> {
    let bad = || RelayError::Url(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| bad())?;
    if uri.scheme_str() == Some("https") {
        return Err(bad());
    }
    let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    Ok(Endpoint { host, port: uri.port_u16().unwrap_or(80), path })
}

async fn relay(
    cri: &dyn cri::Cri,
    session: Session,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, RelayError> {
    let endpoint = endpoint(&session.url(cri).await?)?;
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // An error of the connection is seen by the request that needs it.
        let _ = connection.with_upgrades().await;
    });
    let mut onward = Request::new(Empty::<Bytes>::new());
    *onward.method_mut() = request.method().clone();
    // Port-forward takes its ports from the query.
    let separator = if endpoint.path.contains('?') { '&' } else { '?' };
    let path = match request.uri().query() {
        Some(query) => format!("{}{separator}{query}", endpoint.path),
        None => endpoint.path.clone(),
    };
    *onward.uri_mut() = path.parse().map_err(|_| RelayError::Url(path.clone()))?;
    for (name, value) in request.headers() {
        let hop = matches!(name.as_str(), "host" | "content-length" | "authorization" | "origin");
        if !hop {
            onward.headers_mut().append(name, value.clone());
        }
    }
    let host = HeaderValue::from_str(&format!("{}:{}", endpoint.host, endpoint.port));
    onward.headers_mut().insert(HeaderName::from_static("host"), host.unwrap_or(HeaderValue::from_static("localhost")));
    let mut answer = sender.send_request(onward).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        return Ok(text(status, String::from_utf8_lossy(&body).into_owned()));
    }
    let runtime = hyper::upgrade::on(&mut answer);
    let caller = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (Ok(caller), Ok(runtime)) = tokio::join!(caller, runtime) else { return };
        let (mut caller, mut runtime) = (TokioIo::new(caller), TokioIo::new(runtime));
        // Either side may just go away.
        let _ = tokio::io::copy_bidirectional(&mut caller, &mut runtime).await;
    });
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer.headers().clone();
    Ok(response)
}
