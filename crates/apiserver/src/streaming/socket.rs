//! The client's side of a stream that came as a WebSocket.

use std::time::Duration;

use ::http::{HeaderMap, header};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};

use crate::handlers::websocket;

pub(super) type Sink = SplitSink<WebSocketStream<TokioIo<Upgraded>>, Message>;
pub(super) type Messages = SplitStream<WebSocketStream<TokioIo<Upgraded>>>;

/// Clients send some 32 KiB at a time.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
const GOODBYE_PATIENCE: Duration = Duration::from_secs(5);

/// The subprotocols that a request offers; none if it does not ask for a WebSocket.
pub(super) fn protocols(headers: &HeaderMap) -> Vec<&str> {
    if !websocket::is_asked(headers) {
        return Vec::new();
    }
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|list| list.split(',').map(str::trim)).collect()
}

pub(super) async fn open(connection: Upgraded) -> (Sink, Messages) {
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    let io = TokioIo::new(connection);
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split()
}

/// Says goodbye and waits for the client to hang up: what it has not read yet would be lost with the connection.
pub(super) async fn close(mut sink: Sink, mut messages: Messages) {
    // kubectl takes a close without a code for a failure.
    let goodbye = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let farewell = async {
        let _ = sink.send(Message::Close(Some(goodbye))).await;
        while let Some(Ok(_)) = messages.next().await {}
    };
    let _ = tokio::time::timeout(GOODBYE_PATIENCE, farewell).await;
}
