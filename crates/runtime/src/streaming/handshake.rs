//! The HTTP side of a session: which URL, which framing, which protocol, and the switch to it.

use std::convert::Infallible;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::channels::StreamError;
use super::framing::{self, Wanted};
use super::{Session, exec, forward};
use crate::Runtime;

const HEADER_PATIENCE: Duration = Duration::from_secs(10);

const WS_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
/// The subprotocols spoken, best first. v5 can close a single channel.
const WS_PROTOCOLS: &[&str] = &["v5.channel.k8s.io", "v4.channel.k8s.io", "portforward.k8s.io"];

const SPDY_PROTOCOL: HeaderName = HeaderName::from_static(spdy::STREAM_PROTOCOL_VERSION);
/// v4 says how a command ended as a status, those before it only in words; v3 brought the terminal's size.
const SPDY_COMMAND_PROTOCOLS: &[&str] =
    &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const SPDY_FORWARD_PROTOCOLS: &[&str] = &["portforward.k8s.io"];

pub(super) async fn connection(runtime: Weak<Runtime>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let response = answer(&runtime, request).unwrap_or_else(|refusal| *refusal);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await {
        tracing::debug!(%error, "streaming connection ended");
    }
}

type Answer = Response<Full<Bytes>>;

/// Agrees on a protocol, and leaves the session to a task of its own.
fn answer(runtime: &Weak<Runtime>, request: Request<Incoming>) -> Result<Answer, Box<Answer>> {
    let refuse = |status, why: String| {
        let mut response = Response::new(Full::from(why));
        *response.status_mut() = status;
        Box::new(response)
    };
    let session = runtime.upgrade().and_then(|runtime| runtime.streaming.take(request.uri().path()));
    let session = session.ok_or_else(|| refuse(StatusCode::NOT_FOUND, "no such session".to_owned()))?;
    let upgrade = request.headers().get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_spdy = upgrade.eq_ignore_ascii_case(spdy::PROTOCOL);
    let (name, ours) = match (&session, is_spdy) {
        (_, false) if !upgrade.eq_ignore_ascii_case("websocket") => {
            return Err(refuse(StatusCode::BAD_REQUEST, "Upgrade request required".to_owned()));
        }
        (_, false) => (WS_PROTOCOL, WS_PROTOCOLS),
        (Session::PortForward(_), true) => (SPDY_PROTOCOL, SPDY_FORWARD_PROTOCOLS),
        (_, true) => (SPDY_PROTOCOL, SPDY_COMMAND_PROTOCOLS),
    };
    let offered: Vec<&str> = request
        .headers()
        .get_all(&name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(',').map(str::trim))
        .collect();
    let Some(protocol) = ours.iter().copied().find(|protocol| offered.contains(protocol)) else {
        let (offered, ours) = (offered.join(" "), ours.join(" "));
        let why = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{offered}], server accepts [{ours}]"
        );
        return Err(refuse(StatusCode::FORBIDDEN, why));
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(if is_spdy { spdy::PROTOCOL } else { "websocket" }));
    headers.insert(name, HeaderValue::from_static(protocol));
    if !is_spdy {
        let key = request.headers().get("sec-websocket-key").map(HeaderValue::as_bytes).unwrap_or_default();
        let accept = HeaderValue::from_str(&derive_accept_key(key));
        let accept = accept.map_err(|error| refuse(StatusCode::BAD_REQUEST, error.to_string()))?;
        headers.insert("sec-websocket-accept", accept);
    }
    tokio::spawn(serve(runtime.clone(), session, request, is_spdy, protocol));
    Ok(response)
}

async fn serve(
    runtime: Weak<Runtime>,
    session: Session,
    request: Request<Incoming>,
    is_spdy: bool,
    protocol: &'static str,
) {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let Some(runtime) = runtime.upgrade() else { return };
    let io = TokioIo::new(upgraded);
    let outcome: Result<(), StreamError> = async {
        let client = if is_spdy {
            let connection = spdy::Connection::new(io, spdy::Role::Server);
            let wanted = match &session {
                Session::PortForward(request) => return forward::serve_streams(&runtime, connection, request).await,
                Session::Exec(request) => Wanted::of([request.stdin, request.stdout, request.stderr], request.tty),
                Session::Attach(request) => Wanted::of([request.stdin, request.stdout, request.stderr], request.tty),
            };
            framing::spdy(connection, wanted, protocol).await?
        } else {
            framing::websocket(io).await
        };
        match session {
            Session::Exec(request) => exec::serve_exec(&runtime, client, request).await,
            Session::Attach(request) => exec::serve_attach(&runtime, client, request).await,
            Session::PortForward(request) => forward::serve_channels(&runtime, client, request, &query).await,
        }
    }
    .await;
    if let Err(error) = outcome {
        tracing::debug!(%error, "stream ended");
    }
}
