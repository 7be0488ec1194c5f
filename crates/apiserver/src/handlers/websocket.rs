//! WATCH over a WebSocket: one message per event.

use std::sync::Arc;

use ::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use api::ApiError;
use bytes::{Buf as _, Bytes};
use futures::{SinkExt as _, StreamExt as _};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

use crate::http::{Body, PROTOBUF, full};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

/// The client wants to go on as a WebSocket.
pub(crate) fn is_asked(headers: &HeaderMap) -> bool {
    let has = |name: header::HeaderName, wanted: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(',').any(|token| token.trim().eq_ignore_ascii_case(wanted))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Answers the watch as usual, and hands its events over to the socket.
pub(crate) async fn answer(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let response = accept(request.headers(), None)?;
    let upgrade = hyper::upgrade::on(&mut request);
    let watch = super::answer(server, served, context, full(Bytes::new())).await?;
    if watch.status() != StatusCode::OK {
        return Ok(watch);
    }
    let content_type = watch.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_binary = content_type.is_some_and(|value| value.starts_with(PROTOBUF));
    let events = watch.into_body();
    tokio::spawn(async move {
        match upgrade.await {
            Ok(connection) => {
                let socket = WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, None).await;
                carry(socket, events, is_binary).await;
            }
            Err(error) => tracing::debug!(%error, "the client did not become a WebSocket"),
        }
    });
    Ok(response)
}

/// Says yes to a WebSocket, in the subprotocol that was chosen.
pub(crate) fn accept(request: &HeaderMap, protocol: Option<&str>) -> Result<Response<Body>, ApiError> {
    let key = request.get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| ApiError::bad_request("a WebSocket needs a Sec-WebSocket-Key"))?;
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(ApiError::internal)?;
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        let protocol = HeaderValue::from_str(protocol).map_err(ApiError::internal)?;
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(response)
}

/// Sends events until either side has had enough; what the client says is not heard.
async fn carry(mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>, mut events: Body, is_binary: bool) {
    loop {
        tokio::select! {
            said = socket.next() => match said {
                None | Some(Err(_) | Ok(Message::Close(_))) => return,
                Some(Ok(_)) => (),
            },
            frame = events.frame() => {
                let Some(Ok(Ok(events))) = frame.map(|frame| frame.map(hyper::body::Frame::into_data)) else { break };
                for message in messages(events, is_binary) {
                    if socket.send(message).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
    // The watch has ended; a client that is gone already need not hear it.
    let _ = socket.close(None).await;
}

/// The events of a chunk, each a message of its own.
fn messages(mut events: Bytes, is_binary: bool) -> impl Iterator<Item = Message> {
    std::iter::from_fn(move || {
        if events.is_empty() {
            return None;
        }
        if is_binary {
            let length = events.try_get_u32().ok()?;
            let length = usize::try_from(length).ok()?.min(events.len());
            return Some(Message::Binary(events.split_to(length)));
        }
        let end = events.iter().position(|byte| *byte == b'\n').map_or(events.len(), |end| end + 1);
        Some(Message::text(String::from_utf8_lossy(&events.split_to(end)).trim_end()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_of_a_chunk_is_a_message() {
        let texts = |events: &'static [u8], is_binary| -> Vec<Vec<u8>> {
            messages(Bytes::from_static(events), is_binary).map(|message| message.into_data().to_vec()).collect()
        };
        assert_eq!(texts(b"{\"a\":1}\n{\"b\":2}\n", false), [&b"{\"a\":1}"[..], b"{\"b\":2}"]);
        assert_eq!(texts(b"\0\0\0\x02ab\0\0\0\x01c", true), [&b"ab"[..], b"c"]);
        assert_eq!(texts(b"", true), Vec::<Vec<u8>>::new());
    }
}
