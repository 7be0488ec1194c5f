//! Carries a request to its target and the answer back, upgraded connections included.

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use api::ApiError;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::target::{Target, Way, unexplained};
use crate::audit::ClientAddress;
use crate::http::{Body, BoxError};
use crate::outbound::OutboundError;
use crate::outbound::connect::{anybody, connect};
use crate::server::KubeletClient;

/// What is said between two neighbours alone, and who the client proved to be.
const HOP_BY_HOP: [HeaderName; 11] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

impl Target {
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Carries the request on as it is, byte for byte once both sides speak something else, which they must.
pub(super) async fn upgrade(
    kubelet: &KubeletClient,
    target: &Target,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let client_side = hyper::upgrade::on(&mut request);
    let response = send(kubelet, target, request).await.map_err(undialled)?;
    match response.status().as_u16() {
        101 => Ok(carry(client_side, response)),
        code @ ..400 => Err(unexplained(format!("invalid upgrade response: status code {code}"))),
        _ => Ok(response.map(boxed)),
    }
}

pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut words = values.flat_map(|value| value.split(',').map(str::trim));
    words.any(|word| word.eq_ignore_ascii_case("upgrade"))
}

pub(super) fn undialled(error: impl std::fmt::Display) -> ApiError {
    unexplained(format!("error dialing backend: {error}"))
}

/// Carries bytes both ways once both sides have agreed to speak something else; answers what the client is told.
pub(crate) fn carry(client_side: OnUpgrade, mut response: Response<Incoming>) -> Response<Body> {
    let target_side = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        if let (Ok(client), Ok(target)) = tokio::join!(client_side, target_side) {
            let (mut client, mut target) = (TokioIo::new(client), TokioIo::new(target));
            // Either side closing ends the other; how much went through does not matter here.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut target).await;
        }
    });
    let (parts, _) = response.into_parts();
    Response::from_parts(parts, crate::http::full(Bytes::new()))
}

/// Turns a request for a WebSocket into one for SPDY.
pub(super) fn ask_for_spdy(request: &mut Request<Body>, protocols: &[&str]) {
    *request.method_mut() = Method::POST;
    *request.body_mut() = crate::http::full(Bytes::new());
    let headers = request.headers_mut();
    for name in [
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_EXTENSIONS,
    ] {
        headers.remove(name);
    }
    headers.insert(header::UPGRADE, HeaderValue::from_static(spdy::PROTOCOL));
    headers.remove(spdy::STREAM_PROTOCOL_VERSION);
    for protocol in protocols.iter().filter_map(|protocol| HeaderValue::from_str(protocol).ok()) {
        headers.append(spdy::STREAM_PROTOCOL_VERSION, protocol);
    }
}

/// Connects to the target and asks it.
pub(super) async fn send(
    kubelet: &KubeletClient,
    target: &Target,
    request: Request<Body>,
) -> Result<Response<Incoming>, OutboundError> {
    let host = request.headers().get(header::HOST).cloned();
    let host = host.or_else(|| HeaderValue::from_str(request.uri().authority()?.as_str()).ok());
    let host = host.map_or_else(|| HeaderValue::try_from(target.authority()), Ok);
    let host = host.map_err(|error| OutboundError::Config(error.to_string()))?;
    let outgoing =
        outgoing(host, &target.path_and_query, request).map_err(|error| OutboundError::Config(error.message))?;
    let tls = match target.way {
        Way::Plain => None,
        Way::Kubelet => Some(&kubelet.tls),
        Way::UnverifiedKubelet => Some(&kubelet.unverified),
        Way::Anybody => Some(anybody()?),
    };
    let checked = target.address.map(|address| address.to_string());
    let to = checked.as_ref().unwrap_or(&target.host);
    let line = connect(to, target.port, tls.map(|tls| (tls, target.host.as_str()))).await?;
    Ok(line.detach().send_request(outgoing).await?)
}

/// The same request, addressed to somebody else, without what only concerns our own connection to the client.
pub(crate) fn outgoing(host: HeaderValue, path: &str, request: Request<Body>) -> Result<Request<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut headers = parts.headers;
    let upgrade = headers.get(header::UPGRADE).cloned().filter(|_| is_upgrade(&headers));
    let knows_trailers = headers.get_all(header::TE).iter().any(|value| value.as_bytes() == b"trailers");
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named = named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    let own = |name: &&HeaderName| name.as_str().starts_with("impersonate-");
    let dropped: Vec<HeaderName> = named.chain(headers.keys().filter(own).cloned()).collect();
    dropped.iter().chain(&HOP_BY_HOP).for_each(|name| drop(headers.remove(name)));
    if knows_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    if let Some(ClientAddress(address)) = parts.extensions.get() {
        forwarded_for(&mut headers, &address.to_string());
    }
    headers.insert(header::HOST, host);
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = path.parse().map_err(|_| ApiError::bad_request("the path is not a valid URI"))?;
    *outgoing.headers_mut() = headers;
    Ok(outgoing)
}

/// Adds who asked to those who asked them.
fn forwarded_for(headers: &mut HeaderMap, address: &str) {
    const NAME: HeaderName = HeaderName::from_static("x-forwarded-for");
    let before = headers.get_all(&NAME).iter().filter_map(|value| value.to_str().ok());
    let all: Vec<&str> = before.chain([address]).collect();
    if let Ok(value) = HeaderValue::try_from(all.join(", ")) {
        headers.insert(NAME, value);
    }
}

pub(super) fn boxed(body: Incoming) -> Body {
    body.map_err(BoxError::from).boxed_unsync()
}
