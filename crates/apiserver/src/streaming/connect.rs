//! Carries a request to its target and the answer back, upgraded connections included.

use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use api::ApiError;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::target::Target;
use crate::http::{Body, BoxError};
use crate::outbound::connect::connect;
use crate::server::KubeletClient;

/// Carries the request on as it is, byte for byte once it is upgraded.
pub(super) async fn forward(
    kubelet: &KubeletClient,
    target: &Target,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let client_side = hyper::upgrade::on(&mut request);
    let response = send(kubelet, target, request).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => Ok(carry(client_side, response)),
        _ => Ok(response.map(boxed)),
    }
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
) -> Result<Response<Incoming>, ApiError> {
    let refuse = |why: String| ApiError::new(502, "InternalError", format!("error dialing backend: {why}"));
    let outgoing = outgoing(&format!("{}:{}", target.host, target.port), &target.path_and_query, request)?;
    let tls = target.tls.then_some((&kubelet.tls, target.host.as_str()));
    let line = connect(&target.host, target.port, tls).await.map_err(|error| refuse(error.to_string()))?;
    line.detach().send_request(outgoing).await.map_err(|error| refuse(error.to_string()))
}

/// The same request, addressed to the target, without what only concerns our own connection to the client.
pub(crate) fn outgoing(host: &str, path: &str, request: Request<Body>) -> Result<Request<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut headers = parts.headers;
    let impersonation: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
    impersonation.into_iter().for_each(|name| drop(headers.remove(name)));
    let upgrade = headers.get(header::UPGRADE).cloned();
    for name in [
        header::HOST,
        header::AUTHORIZATION,
        header::CONNECTION,
        header::UPGRADE,
        header::TE,
        header::TRANSFER_ENCODING,
    ] {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    headers.insert(header::HOST, HeaderValue::from_str(host).map_err(ApiError::internal)?);
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = path.parse().map_err(|_| ApiError::bad_request("the path is not a valid URI"))?;
    *outgoing.headers_mut() = headers as HeaderMap;
    Ok(outgoing)
}

pub(super) fn boxed(body: Incoming) -> Body {
    body.map_err(BoxError::from).boxed_unsync()
}
