//! The Kubernetes channel protocol: the first byte of each WebSocket message names the stream it belongs to.

use std::io;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};

use super::terminal::Terminal;

pub(super) type Socket = WebSocketStream<TcpStream>;
pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// v5: the next byte names the channel that is at its end.
const CLOSE: u8 = 255;

const READ_BYTES: usize = 32 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the connection failed: {0}")]
    Socket(#[from] WsError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
}

/// What a session is connected to.
pub(super) struct Process {
    pub stdin: Option<Writer>,
    pub terminal: Option<Terminal>,
    pub outputs: Vec<(u8, Reader)>,
}

/// Sends messages from any task, in order, with the socket's own back pressure.
#[derive(Clone)]
pub(super) struct Outbox(mpsc::Sender<Message>);

impl Outbox {
    pub(super) fn new(mut sink: SplitSink<Socket, Message>) -> (Self, tokio::task::JoinHandle<()>) {
        let (sender, mut messages) = mpsc::channel(16);
        let writer = tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                if sink.send(message).await.is_err() {
                    return;
                }
            }
            // kubectl takes a close without a code for a failure.
            let goodbye = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
            let _ = sink.send(Message::Close(Some(goodbye))).await;
            let _ = sink.close().await;
        });
        (Self(sender), writer)
    }

    /// False when the client is gone.
    pub(super) async fn send(&self, channel: u8, bytes: &[u8]) -> bool {
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(channel);
        message.extend_from_slice(bytes);
        self.0.send(Message::Binary(message.into())).await.is_ok()
    }

    pub(super) async fn pong(&self, payload: Bytes) {
        let _ = self.0.send(Message::Pong(payload)).await;
    }

    pub(super) async fn status(&self, status: &serde_json::Value) {
        self.send(STATUS, status.to_string().as_bytes()).await;
    }
}

/// Copies an output to its channel until either end is gone.
pub(super) async fn pump_out(mut from: Reader, channel: u8, to: Outbox) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 || !to.send(channel, buffer.get(..read).unwrap_or_default()).await {
            return;
        }
    }
}

/// Serves the client's side until it hangs up: stdin, its end, and the terminal's size.
pub(super) async fn pump_in(
    mut from: SplitStream<Socket>,
    mut stdin: Option<Writer>,
    terminal: Option<Terminal>,
    pongs: Outbox,
) -> Option<Writer> {
    while let Some(Ok(message)) = from.next().await {
        let payload = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::copy_from_slice(text.as_bytes()),
            Message::Ping(payload) => {
                pongs.pong(payload).await;
                continue;
            }
            Message::Close(_) => break,
            _ => continue,
        };
        match payload.split_first() {
            Some((&STDIN, data)) => {
                if let Some(writer) = &mut stdin
                    && (writer.write_all(data).await.is_err() || writer.flush().await.is_err())
                {
                    stdin = None;
                }
            }
            Some((&CLOSE, [STDIN, ..])) => stdin = None,
            Some((&RESIZE, data)) => resize(terminal.as_ref(), data),
            _ => (),
        }
    }
    stdin
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

fn resize(terminal: Option<&Terminal>, data: &[u8]) {
    if let (Some(terminal), Ok(size)) = (terminal, serde_json::from_slice::<Size>(data))
        && let Err(error) = terminal.resize(size.width, size.height)
    {
        tracing::debug!(%error, "terminal not resized");
    }
}

/// The message on the error channel that says how a command ended.
pub(super) fn exit_status(code: i32) -> serde_json::Value {
    match code {
        0 => serde_json::json!({ "metadata": {}, "status": "Success" }),
        code => serde_json::json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
    }
}

pub(super) fn failure(message: &str) -> serde_json::Value {
    serde_json::json!({ "metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500 })
}
