//! The server behind the URLs of exec, attach and port-forward: on loopback, one session per URL, each usable once.
//!
//! A client comes as a WebSocket or with SPDY/3.1; both are framings of the same channels, and no session knows which it is.

mod channels;
mod exec;
mod forward;
mod framing;
mod handshake;
mod terminal;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Weak;
use std::time::{Duration, Instant};

use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use parking_lot::Mutex;
use tokio::net::TcpListener;

pub(crate) use exec::exec_sync;

use crate::Runtime;

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
                tokio::spawn(handshake::connection(runtime.clone(), stream));
            }
        });
    }
}
