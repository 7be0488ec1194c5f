//! The channels of a session and what is pumped through them.

use std::io;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::terminal::Terminal;

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const STATUS: u8 = 3;
pub(super) const RESIZE: u8 = 4;

/// More than any size takes.
const MAX_SIZE_BYTES: usize = 1 << 10;
const READ_BYTES: usize = 32 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
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

/// A client in whatever framing: what it says, and how it is answered.
pub(super) struct Client {
    /// A channel and its data, or its end. The stream ends when the client is gone.
    pub incoming: BoxStream<'static, (u8, Option<Bytes>)>,
    pub outbox: Outbox,
    /// Ends when everything was sent and the client was told goodbye, which happens once the last outbox is dropped.
    pub writer: JoinHandle<()>,
}

/// Sends messages from any task, in order, with the connection's own back pressure.
#[derive(Clone)]
pub(super) struct Outbox(pub(super) mpsc::Sender<(u8, Bytes)>);

impl Outbox {
    /// False when the client is gone.
    pub(super) async fn send(&self, channel: u8, bytes: &[u8]) -> bool {
        self.0.send((channel, Bytes::copy_from_slice(bytes))).await.is_ok()
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
    mut from: BoxStream<'static, (u8, Option<Bytes>)>,
    mut stdin: Option<Writer>,
    terminal: Option<Terminal>,
) -> Option<Writer> {
    let mut sizes = Vec::new();
    while let Some((channel, data)) = from.next().await {
        match (channel, data) {
            (STDIN, Some(data)) => {
                if let Some(writer) = &mut stdin
                    && (writer.write_all(&data).await.is_err() || writer.flush().await.is_err())
                {
                    stdin = None;
                }
            }
            (STDIN, None) => stdin = None,
            (RESIZE, Some(data)) => {
                sizes.extend_from_slice(&data);
                if let (Some(size), Some(terminal)) = (last_size(&mut sizes), &terminal)
                    && let Err(error) = terminal.resize(size.width, size.height)
                {
                    tracing::debug!(%error, "terminal not resized");
                }
            }
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

/// The last whole size in what arrived; a beginning stays for its rest, nonsense does not.
fn last_size(arrived: &mut Vec<u8>) -> Option<Size> {
    let mut sizes = serde_json::Deserializer::from_slice(arrived).into_iter::<Size>();
    let (mut last, mut used) = (None, 0);
    loop {
        match sizes.next() {
            Some(Ok(size)) => (last, used) = (Some(size), sizes.byte_offset()),
            Some(Err(error)) if error.is_eof() && arrived.len() <= MAX_SIZE_BYTES => break,
            _ => {
                used = arrived.len();
                break;
            }
        }
    }
    arrived.drain(..used);
    last
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&str], want: &[Option<(u16, u16)>]) {
        let mut arrived = Vec::new();
        let got: Vec<_> = pieces
            .iter()
            .map(|piece| {
                arrived.extend_from_slice(piece.as_bytes());
                last_size(&mut arrived).map(|size| (size.width, size.height))
            })
            .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn terminal_sizes_may_arrive_in_pieces_and_heaps() {
        check(&[r#"{"Width":80,"Height":24}"#], &[Some((80, 24))]);
        check(
            &["{\"Width\":80,", "\"Height\":24}\n{\"Wi", "dth\":1,\"Height\":2}"],
            &[None, Some((80, 24)), Some((1, 2))],
        );
        check(&["{\"Width\":1,\"Height\":2}\n{\"Width\":3,\"Height\":4}\n"], &[Some((3, 4))]);
        check(&["nonsense", r#"{"Width":5,"Height":6}"#], &[None, Some((5, 6))]);
    }
}
