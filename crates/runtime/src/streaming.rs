//! The server behind the URLs of exec, attach and port-forward: WebSocket on loopback, one session per URL, each usable once.

mod channels;
mod exec;
mod forward;
mod terminal;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Weak;
use std::time::{Duration, Instant};

use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode};

pub(crate) use exec::exec_sync;

use crate::Runtime;

/// The subprotocols spoken, best first. v5 can close a single channel.
const PROTOCOLS: [&str; 3] = ["v5.channel.k8s.io", "v4.channel.k8s.io", "portforward.k8s.io"];
/// A URL that nobody opened in this time is void.
const URL_LIFE: Duration = Duration::from_secs(60);

/// What a URL stands for.
#[derive(Clone, Debug)]
pub(crate) enum Session {
    Exec(ExecRequest),
    Attach(AttachRequest),
    PortForward(PortForwardRequest),
}

pub(crate) struct Streaming {
    address: SocketAddr,
    listener: Mutex<Option<TcpListener>>,
    sessions: Mutex<HashMap<String, (Instant, Session)>>,
}

impl Streaming {
    pub(crate) async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { address, listener: Mutex::new(Some(listener)), sessions: Mutex::default() })
    }

    /// A URL for one session. Whoever knows it may use it, so it cannot be guessed.
    pub(crate) fn url(&self, session: Session) -> String {
        let kind = match &session {
            Session::Exec(_) => "exec",
            Session::Attach(_) => "attach",
            Session::PortForward(_) => "portforward",
        };
        let token = hex::encode(rand::random::<[u8; 16]>());
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, (made, _)| made.elapsed() < URL_LIFE);
        sessions.insert(token.clone(), (Instant::now(), session));
        format!("http://{}/{kind}/{token}", self.address)
    }

    fn take(&self, path: &str) -> Option<Session> {
        let (made, session) = self.sessions.lock().remove(path.rsplit('/').next()?)?;
        (made.elapsed() < URL_LIFE).then_some(session)
    }

    /// Accepts until the runtime is gone.
    pub(crate) fn serve(&self, runtime: Weak<Runtime>) {
        let Some(listener) = self.listener.lock().take() else { return };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if runtime.strong_count() == 0 {
                    return;
                }
                tokio::spawn(connection(runtime.clone(), stream));
            }
        });
    }
}

async fn connection(runtime: Weak<Runtime>, stream: TcpStream) {
    let mut session = None;
    let mut query = String::new();
    let mut protocol = "";
    // The signature is the handshake library's.
    #[allow(clippy::result_large_err)]
    let handshake = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        session = runtime.upgrade().and_then(|runtime| runtime.streaming.take(request.uri().path()));
        query = request.uri().query().unwrap_or_default().to_owned();
        let offered: Vec<&str> = request
            .headers()
            .get_all("Sec-WebSocket-Protocol")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|list| list.split(',').map(str::trim))
            .collect();
        protocol = PROTOCOLS.into_iter().find(|ours| offered.contains(ours)).unwrap_or_default();
        let refuse = |status, reason: &str| {
            let mut refusal = ErrorResponse::new(Some(reason.to_owned()));
            *refusal.status_mut() = status;
            Err(refusal)
        };
        if session.is_none() {
            return refuse(StatusCode::NOT_FOUND, "no such session");
        }
        if protocol.is_empty() {
            return refuse(
                StatusCode::BAD_REQUEST,
                "no known subprotocol: offer v5.channel.k8s.io or v4.channel.k8s.io",
            );
        }
        response.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static(protocol));
        Ok(response)
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, handshake).await else { return };
    let (Some(runtime), Some(session)) = (runtime.upgrade(), session) else { return };
    let outcome = match session {
        Session::Exec(request) => exec::serve_exec(&runtime, socket, request).await,
        Session::Attach(request) => exec::serve_attach(&runtime, socket, request).await,
        Session::PortForward(request) => forward::serve(&runtime, socket, request, &query).await,
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "stream ended");
    }
}
