//! Exec and attach of a v5 WebSocket, carried on as SPDY: the same channels, here a byte before each message, there streams.

use ::http::{Request, Response, StatusCode};
use api::ApiError;
use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll};
use futures::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use spdy::{Connection, Headers, StreamReader, StreamWriter};
use tokio_tungstenite::tungstenite::protocol::Message;

use super::connect;
use super::socket::{self, Messages, Sink};
use super::target::Target;
use crate::handlers::websocket;
use crate::http::{Body, Query};
use crate::server::KubeletClient;

pub(super) const V5: &str = "v5.channel.k8s.io";
/// As streams it knows all that v5 does.
const V4: &str = "v4.channel.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// The next byte names the channel that is at its end.
const CLOSE: u8 = 255;

/// More of a refusal or a status is not told.
const MAX_STATUS_BYTES: usize = 64 << 10;

pub(super) async fn serve(
    kubelet: &KubeletClient,
    target: &Target,
    query: &Query,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let response = websocket::accept(request.headers(), Some(V5))?;
    let client_side = hyper::upgrade::on(&mut request);
    connect::ask_for_spdy(&mut request, &[V4]);
    let answer = connect::send(kubelet, target, request).await.map_err(connect::undialled)?;
    let has_terminal = query.flag("tty");
    let mut wanted = vec![(STATUS, "error")];
    wanted.extend(query.flag("stdin").then_some((STDIN, "stdin")));
    wanted.extend(query.flag("stdout").then_some((STDOUT, "stdout")));
    wanted.extend((query.flag("stderr") && !has_terminal).then_some((STDERR, "stderr")));
    wanted.extend(has_terminal.then_some((RESIZE, "resize")));
    tokio::spawn(async move {
        let Ok(client) = client_side.await else { return };
        let (mut sink, mut messages) = socket::open(client).await;
        let status = match open(answer, &wanted).await {
            Ok(session) => session.carry(&mut sink, &mut messages).await,
            Err(why) => Some(failure(&why)),
        };
        if let Some(status) = status {
            let _ = say(&mut sink, STATUS, &status).await;
        }
        socket::close(sink, messages).await;
    });
    Ok(response)
}

struct Session {
    /// Ends with the session.
    _connection: Connection,
    stdin: Option<StreamWriter>,
    resize: Option<StreamWriter>,
    /// Those that nothing is sent on are held, because letting go of one resets it.
    _silent: Vec<StreamWriter>,
    outputs: SelectAll<BoxStream<'static, (u8, Bytes)>>,
}

/// Opens the streams of a session on the connection that the kubelet has agreed to.
async fn open(mut answer: Response<Incoming>, wanted: &[(u8, &str)]) -> Result<Session, String> {
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(answer.into_body(), MAX_STATUS_BYTES).collect().await;
        let why = body.map(|body| body.to_bytes()).map_err(|error| error.to_string())?;
        return Err(format!("unable to upgrade connection: {}", String::from_utf8_lossy(&why)));
    }
    let upgraded = hyper::upgrade::on(&mut answer).await.map_err(|error| error.to_string())?;
    let connection = Connection::new(TokioIo::new(upgraded), spdy::Role::Client);
    let (mut stdin, mut resize, mut silent, mut outputs) = (None, None, Vec::new(), SelectAll::new());
    for (channel, name) in wanted {
        let stream = connection.open(Headers::new(&[("streamtype", name)])).await.map_err(|error| error.to_string())?;
        match *channel {
            STDIN => stdin = Some(stream.writer),
            RESIZE => resize = Some(stream.writer),
            output => {
                silent.push(stream.writer);
                outputs.push(output_of(output, stream.reader));
            }
        }
    }
    Ok(Session { _connection: connection, stdin, resize, _silent: silent, outputs })
}

fn output_of(channel: u8, reader: StreamReader) -> BoxStream<'static, (u8, Bytes)> {
    stream::unfold(reader, move |mut reader| async move {
        let data = reader.next().await?;
        Some(((channel, data), reader))
    })
    .boxed()
}

impl Session {
    /// Carries both ways until the command has ended, and answers its status; nothing if the client left before.
    async fn carry(mut self, sink: &mut Sink, messages: &mut Messages) -> Option<Bytes> {
        let mut status = Vec::new();
        let up = async {
            // An empty message tells the client that it is connected.
            say(sink, STDOUT, b"").await?;
            while let Some((channel, data)) = self.outputs.next().await {
                if channel != STATUS {
                    say(sink, channel, &data).await?;
                } else if status.len() + data.len() <= MAX_STATUS_BYTES {
                    status.extend_from_slice(&data);
                }
            }
            Some(())
        };
        let down = async {
            while let Some(Ok(message)) = messages.next().await {
                match message {
                    Message::Close(_) => return,
                    message => heard(&mut self.stdin, self.resize.as_ref(), &message.into_data()).await,
                }
            }
        };
        tokio::select! {
            told = up => told?,
            () = down => return None,
        }
        Some(if status.is_empty() { failure("the connection ended before the status arrived") } else { status.into() })
    }
}

async fn heard(stdin: &mut Option<StreamWriter>, resize: Option<&StreamWriter>, message: &Bytes) {
    match message.split_first() {
        Some((&CLOSE, [STDIN])) => {
            if let Some(stdin) = stdin.take() {
                stdin.finish().await;
            }
        }
        Some((&STDIN, [_, ..])) => {
            if let Some(stdin) = stdin {
                stdin.send(message.slice(1..)).await;
            }
        }
        Some((&RESIZE, [_, ..])) => {
            if let Some(resize) = resize {
                resize.send(message.slice(1..)).await;
            }
        }
        _ => (),
    }
}

/// Nothing when the client is gone.
async fn say(sink: &mut Sink, channel: u8, data: &[u8]) -> Option<()> {
    sink.send(Message::Binary([&[channel], data].concat().into())).await.ok()
}

fn failure(why: &str) -> Bytes {
    ApiError::internal(why).to_status().to_string().into()
}
