//! Port-forward in a WebSocket whose messages are the bytes of a SPDY connection; the kubelet is spoken to without it.

use ::http::{Request, Response, StatusCode};
use api::ApiError;
use bytes::BytesMut;
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::protocol::Message;

use super::connect;
use super::socket::{self, Messages, Sink};
use super::target::Target;
use crate::handlers::websocket;
use crate::http::Body;
use crate::server::KubeletClient;

/// Before the name of the protocol that is spoken inside.
pub(super) const PREFIX: &str = "SPDY/3.1+";
const READ_BYTES: usize = 32 << 10;

pub(super) async fn serve(
    kubelet: &KubeletClient,
    target: &Target,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let client_side = hyper::upgrade::on(&mut request);
    let asked = request.headers().clone();
    let inner: Vec<&str> = socket::protocols(&asked).into_iter().filter_map(|p| p.strip_prefix(PREFIX)).collect();
    connect::ask_for_spdy(&mut request, &inner);
    let mut answer = connect::send(kubelet, target, request).await.map_err(connect::undialled)?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer.map(connect::boxed));
    }
    let chosen = answer.headers().get(spdy::STREAM_PROTOCOL_VERSION).and_then(|value| value.to_str().ok());
    let response = websocket::accept(&asked, chosen.map(|chosen| format!("{PREFIX}{chosen}")).as_deref())?;
    let target_side = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        if let (Ok(client), Ok(target)) = tokio::join!(client_side, target_side) {
            let (sink, messages) = socket::open(client).await;
            carry(sink, messages, TokioIo::new(target)).await;
        }
    });
    Ok(response)
}

/// Carries bytes until either side has had enough.
async fn carry(mut sink: Sink, mut messages: Messages, target: TokioIo<Upgraded>) {
    let (mut from_target, mut to_target) = tokio::io::split(target);
    let down = async {
        while let Some(Ok(message)) = messages.next().await {
            match message {
                Message::Binary(bytes) => {
                    if to_target.write_all(&bytes).await.is_err() || to_target.flush().await.is_err() {
                        return;
                    }
                }
                Message::Ping(_) | Message::Pong(_) => (),
                _ => return,
            }
        }
    };
    let up = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(READ_BYTES);
            match from_target.read_buf(&mut buffer).await {
                Ok(1..) if sink.send(Message::Binary(buffer.split().freeze())).await.is_ok() => (),
                _ => return,
            }
        }
    };
    tokio::select! {
        () = down => (),
        () = up => (),
    }
    socket::close(sink, messages).await;
}
