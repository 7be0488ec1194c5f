//! An HTTPS port: TLS, HTTP/1.1 and HTTP/2, and the limits that keep a client from holding what others need.
//!
//! A handshake, a header and an idle connection have deadlines; the connections of one address, and all together, have a number.
//! Nothing here knows what is served: [`serve`] asks for a handler of requests once a connection has shown its certificate.

mod gathered;
mod load;
mod quota;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::{ServerConfig, ServerConnection};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::gathered::Gathered;
pub use self::load::Carrying;
use self::load::Load;
pub use self::quota::Quota;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Numbers the connections of this process.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// The protocol name of HTTP/2 in a handshake.
pub const HTTP2: &[u8] = b"h2";
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// How long requests in flight may take once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing is accepted after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const MAX_STREAMS: u32 = 250;
/// From 8 KB on, glibc copies with one instruction of the processor, `rep movsb`. On AMD's that takes up to four times as long as vector
/// registers do, or not, depending on where in a page both sides begin: the same server was a third slower from one start to the next.
/// What is sent is copied in parts, and encrypted in records, that are smaller.
pub const COPIED_AT_ONCE: usize = 8000;

/// The other end of a connection, after the handshake.
pub struct Peer<'a> {
    pub address: Option<SocketAddr>,
    /// Knows the certificate that the client showed.
    pub session: &'a ServerConnection,
    /// The connection's number, if it carries many requests at a time.
    pub shared: Option<u64>,
}

/// Answers the requests of one connection.
pub trait Handler: Send + Sync + 'static {
    type Body: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static;

    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A port that is served.
pub struct Port {
    pub listener: TcpListener,
    /// A connection takes the configuration as it is when the connection begins.
    pub tls: watch::Receiver<Arc<ServerConfig>>,
    pub quota: Quota,
    pub drain: CancellationToken,
    /// Where connections run.
    pub tasks: TaskTracker,
}

/// Serves until drained; then no connection is accepted, and those that are open get a moment to finish.
pub async fn serve<H: Handler>(port: Port, handler: impl Fn(Peer<'_>) -> H + Clone + Send + Sync + 'static) {
    let Port { listener, tls, quota, drain, tasks } = port;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.cancelled() => break,
        };
        match accepted {
            Ok((stream, from)) => {
                let Some(place) = quota.take(from.ip()) else {
                    tracing::debug!(%from, "too many connections");
                    continue;
                };
                let acceptor = TlsAcceptor::from(tls.borrow().clone());
                let (handler, drain) = (handler.clone(), drain.clone());
                tasks.spawn(async move {
                    connection(handler, acceptor, stream, drain).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: others must close some first.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    tasks.close();
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, tasks.wait()).await;
}

async fn connection<H: Handler>(
    handler: impl Fn(Peer<'_>) -> H,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    drain: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    // What was agreed on is spoken; guessing by the first bytes would wait for them for ever.
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
    let shared = is_http2.then(|| CONNECTIONS.fetch_add(1, Ordering::Relaxed));
    let handler =
        Arc::new(handler(Peer { address: stream.get_ref().0.peer_addr().ok(), session: stream.get_ref().1, shared }));
    let load = Load::default();
    let carried = load.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, carried) = (handler.clone(), carried.begin());
        async move { Ok::<_, Infallible>(carried.until_sent(handler.handle(request).await)) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(Gathered::new(stream, is_http2)), service));
    let mut is_ending = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                return ended.unwrap_or_else(|error| tracing::debug!(%error, "connection ended"));
            }
            () = drain.cancelled(), if !is_ending => (),
            () = load.none(), if !is_ending => (),
        }
        connection.as_mut().graceful_shutdown();
        is_ending = true;
    }
}
