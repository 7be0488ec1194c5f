//! The secure port: TLS, HTTP/1.1 and HTTP/2, and who the certificate says the client is.

mod gathered;
mod tls;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use self::gathered::Gathered;
pub use self::tls::{ShownByName, TlsSettings, tls_config};
use crate::audit::ClientAddress;
use crate::auth::x509::Holder;
use crate::http::{Body, BoxError, held};
use crate::server::ApiServer;

/// How many connections there were that carry several requests at a time.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

const HTTP2: &[u8] = b"h2";
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// How long a connection may carry nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// From 8 KB on, glibc copies with one instruction of the processor, `rep movsb`. On AMD's that takes up to four times as long as vector
/// registers do, or not, depending on where in a page both sides begin: the same server was a third slower from one start to the next.
/// What is sent is copied in parts, and encrypted in records, that are smaller.
const COPIED_AT_ONCE: usize = 8000;
/// How long requests in flight may take once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection that a request came on, where it carries many at a time.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) u64);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the TLS configuration cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Flag(String),
    #[error("the client certificate authorities cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl ApiServer {
    /// Serves until drained; then no connection is accepted and those open get a moment to finish.
    ///
    /// A connection takes `tls` as it is when the connection begins.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: watch::Receiver<Arc<ServerConfig>>) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.drain.cancelled() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let acceptor = TlsAcceptor::from(tls.borrow().clone());
                    self.tasks.spawn(connection(self.clone(), acceptor, stream));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: give others time to close some.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(listener);
        self.tasks.close();
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, self.tasks.wait()).await;
    }
}

async fn connection(server: Arc<ApiServer>, acceptor: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let address = stream.get_ref().0.peer_addr().ok().map(|address| ClientAddress(address.ip()));
    let holder = stream.get_ref().1.peer_certificates();
    let holder = holder.map(|chain| Arc::new(Holder::new(chain, &server.certificates, UnixTime::now())));
    // What was agreed on is spoken; guessing by the first bytes would wait for them for ever.
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
    let shared = is_http2.then(|| Shared(CONNECTIONS.fetch_add(1, Ordering::Relaxed)));
    let (drain, load) = (server.drain.clone(), Load::default());
    let carried = load.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (server, holder, carried) = (server.clone(), holder.clone(), carried.begin());
        async move {
            let mut request = request.map(boxed);
            if let Some(address) = address {
                request.extensions_mut().insert(address);
            }
            if let Some(shared) = shared {
                request.extensions_mut().insert(shared);
            }
            if let Some(holder) = holder {
                request.extensions_mut().insert(holder.at(UnixTime::now(), &server.certificates));
            }
            let response = server.handle(request).await;
            // What is streamed is still carried when the answer has begun.
            let is_whole = response.body().size_hint().exact().is_some();
            Ok::<_, Infallible>(if is_whole { response } else { response.map(|body| held(body, carried)) })
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(250);
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

/// What a connection carries, and when that last changed.
#[derive(Clone)]
struct Load(Arc<Mutex<Instant>>);

/// One request, or its answer while it is streamed.
struct Carried(Load);

impl Default for Load {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Load {
    fn begin(&self) -> Carried {
        Carried(self.clone())
    }

    /// Waits until nothing was carried for [`IDLE_TIMEOUT`].
    async fn none(&self) {
        loop {
            // Beside this one, the service holds one.
            let is_none = || Arc::strong_count(&self.0) <= 2;
            let idle_since = if is_none() { *self.0.lock() } else { Instant::now() };
            tokio::time::sleep_until(idle_since + IDLE_TIMEOUT).await;
            if is_none() && self.0.lock().elapsed() >= IDLE_TIMEOUT {
                return;
            }
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        *self.0.0.lock() = Instant::now();
    }
}

fn boxed(body: Incoming) -> Body {
    body.map_frame(|frame| frame.map_data(Bytes::from)).map_err(BoxError::from).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_a_while_after_the_last_thing_it_carried() {
        let load = Load::default();
        let begun = Instant::now();
        let service = load.clone();
        let idle = tokio::spawn(async move {
            load.none().await;
            begun.elapsed().as_secs()
        });
        let step = Duration::from_secs(50);
        tokio::time::sleep(step).await;
        let watch = service.begin();
        tokio::time::sleep(4 * step).await;
        drop(watch);
        assert_eq!(idle.await.unwrap(), 250 + 90);
    }
}
