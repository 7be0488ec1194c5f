//! A v5 caller in front of a v4 runtime: the same frames, without the signal that closes one stream.
//!
//! v4 has no word for "no more input", so the signal is dropped: a command that reads to the end of its input does not see it.

use futures::{SinkExt, StreamExt};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::relay::{RelayError, Session, V4, V5, endpoint};
use super::{Body, full, routes};

/// The first byte of v5's close signal; the second names the stream.
const CLOSE: u8 = 255;

pub(super) async fn serve(
    cri: &dyn cri::Cri,
    session: &Session,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, RelayError> {
    let url = session.url(cri).await?;
    let endpoint = endpoint(&url)?;
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    let target = format!("ws://{}:{}{}", endpoint.host, endpoint.port, endpoint.path);
    let mut handshake = target.into_client_request().map_err(Box::new)?;
    handshake.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(V4));
    let (runtime, _) = tokio_tungstenite::client_async(handshake, stream).await.map_err(Box::new)?;
    let key = routes::headers_of(&request).remove("sec-websocket-key").unwrap_or_default();
    let caller = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(caller) = caller.await else { return };
        let caller = WebSocketStream::from_raw_socket(TokioIo::new(caller), Role::Server, None).await;
        pump(caller, runtime).await;
    });
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert("connection", HeaderValue::from_static("Upgrade"));
    headers.insert("upgrade", HeaderValue::from_static("websocket"));
    headers.insert("sec-websocket-protocol", HeaderValue::from_static(V5));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert("sec-websocket-accept", accept);
    }
    Ok(response)
}

async fn pump<A, B>(caller: WebSocketStream<A>, runtime: WebSocketStream<B>)
where
    A: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    B: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut to_caller, mut from_caller) = caller.split();
    let (mut to_runtime, mut from_runtime) = runtime.split();
    let down = async {
        while let Some(Ok(message)) = from_caller.next().await {
            if !is_close_signal(&message) && to_runtime.send(message).await.is_err() {
                return;
            }
        }
    };
    let up = async {
        while let Some(Ok(message)) = from_runtime.next().await {
            if to_caller.send(message).await.is_err() {
                return;
            }
        }
        let _ = to_caller.close().await;
    };
    tokio::select! {
        () = down => (),
        () = up => (),
    }
}

fn is_close_signal(message: &Message) -> bool {
    matches!(message, Message::Binary(bytes) if bytes.len() == 2 && bytes.first() == Some(&CLOSE))
}
