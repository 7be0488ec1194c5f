//! The two framings of a session's channels.
//!
//! In a WebSocket the first byte of each message names its channel; in SPDY each channel is a stream with its name in a header.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::channels::{Client, Outbox, RESIZE, STATUS, STDERR, STDIN, STDOUT, StreamError};

/// v5: the next byte names the channel that is at its end.
const CLOSE: u8 = 255;
/// Clients send some 32 KiB at a time.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
const QUEUE: usize = 16;
/// How long a client may take to open the streams it asked for.
const STREAMS_PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn websocket(io: TokioIo<Upgraded>) -> Client {
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let (mut sink, messages) = socket.split();
    let (sender, mut outgoing) = mpsc::channel::<(u8, Bytes)>(QUEUE);
    let writer = tokio::spawn(async move {
        while let Some((channel, data)) = outgoing.recv().await {
            let message = [&[channel], data.as_ref()].concat();
            if sink.send(Message::Binary(message.into())).await.is_err() {
                return;
            }
        }
        // kubectl takes a close without a code for a failure.
        let goodbye = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
        let _ = sink.send(Message::Close(Some(goodbye))).await;
        let _ = sink.close().await;
    });
    // Pings are answered by the socket itself.
    let incoming = messages
        .take_while(|message| std::future::ready(matches!(message, Ok(message) if !message.is_close())))
        .filter_map(|message| std::future::ready(message.ok().and_then(said)))
        .boxed();
    Client { incoming, outbox: Outbox(sender), writer }
}

fn said(message: Message) -> Option<(u8, Option<Bytes>)> {
    let payload = match message {
        Message::Binary(bytes) => bytes,
        Message::Text(text) => text.into(),
        _ => return None,
    };
    match *payload.first()? {
        CLOSE => Some((*payload.get(1)?, None)),
        channel => Some((channel, Some(payload.slice(1..)))),
    }
}

/// The streams that the client of a command will open, besides the one for its status.
pub(super) struct Wanted {
    inputs_and_outputs: usize,
    has_terminal: bool,
}

impl Wanted {
    pub(super) fn of(streams: [bool; 3], has_terminal: bool) -> Self {
        Self { inputs_and_outputs: streams.iter().filter(|wanted| **wanted).count(), has_terminal }
    }
}

pub(super) async fn spdy(
    mut connection: spdy::Connection,
    wanted: Wanted,
    protocol: &str,
) -> Result<Client, StreamError> {
    let has_status = protocol == "v4.channel.k8s.io";
    let can_resize = has_status || protocol == "v3.channel.k8s.io";
    let expected = 1 + wanted.inputs_and_outputs + usize::from(wanted.has_terminal && can_resize);
    let streams = tokio::time::timeout(STREAMS_PATIENCE, open_streams(&mut connection, expected)).await;
    let streams = streams.ok().flatten();
    let streams =
        streams.ok_or_else(|| StreamError::Refused("timed out waiting for client to create streams".to_owned()))?;
    let (mut writers, mut inputs) = (HashMap::new(), Vec::new());
    for (channel, stream) in streams {
        writers.insert(channel, stream.writer);
        if matches!(channel, STDIN | RESIZE) {
            inputs.push(input(channel, stream.reader));
        }
    }
    let closed = connection.closed();
    let incoming = stream::select_all(inputs).chain(stream::pending());
    let incoming = incoming.take_until(closed.clone().cancelled_owned()).boxed();
    let (sender, mut outgoing) = mpsc::channel::<(u8, Bytes)>(QUEUE);
    let writer = tokio::spawn(async move {
        while let Some((channel, data)) = outgoing.recv().await {
            let data = if channel == STATUS && !has_status { in_words(&data) } else { data };
            if let Some(writer) = writers.get(&channel)
                && !data.is_empty()
                && !writer.send(data).await
                && closed.is_cancelled()
            {
                return;
            }
        }
        for writer in writers.into_values() {
            writer.finish().await;
        }
        connection.close().await;
    });
    Ok(Client { incoming, outbox: Outbox(sender), writer })
}

async fn open_streams(connection: &mut spdy::Connection, expected: usize) -> Option<HashMap<u8, spdy::Stream>> {
    let mut streams = HashMap::new();
    while streams.len() < expected {
        let stream = connection.accept().await?;
        let channel = match stream.headers.get("streamtype") {
            Some("error") => STATUS,
            Some("stdin") => STDIN,
            Some("stdout") => STDOUT,
            Some("stderr") => STDERR,
            Some("resize") => RESIZE,
            // Dropped, and so reset.
            _ => continue,
        };
        streams.insert(channel, stream);
    }
    Some(streams)
}

/// What arrives on a stream, and its end.
fn input(channel: u8, reader: spdy::StreamReader) -> BoxStream<'static, (u8, Option<Bytes>)> {
    stream::unfold(Some(reader), move |reader| async move {
        let mut reader = reader?;
        let data = reader.next().await;
        let rest = data.is_some().then_some(reader);
        Some(((channel, data), rest))
    })
    .boxed()
}

/// A status as clients before v4 expect it: nothing of a success, else the message.
fn in_words(status: &[u8]) -> Bytes {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap_or_default();
    let message = status.get("message").and_then(serde_json::Value::as_str).unwrap_or_default();
    Bytes::copy_from_slice(message.as_bytes())
}
