//! Where connections come from: TCP, TCP with TLS, a unix socket.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, UnixListener},
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use super::authority::Readdressed;

/// A peer that has not finished its TLS handshake by then is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failed accept, usually for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub enum Listener {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<rustls::ServerConfig>),
    Unix(UnixListener),
}

impl Listener {
    /// As clients write it.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Listener::Tcp(listener) => Some(format!("http://{}", listener.local_addr().ok()?)),
            Listener::Tls(listener, _) => Some(format!("https://{}", listener.local_addr().ok()?)),
            Listener::Unix(listener) => {
                Some(format!("unix://{}", listener.local_addr().ok()?.as_pathname()?.display()))
            }
        }
    }

    /// Accepts until nobody takes the connections any more.
    pub(super) async fn accept(self, connections: mpsc::Sender<Connection>) {
        let acceptor = self.acceptor();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept_one() => accepted,
                () = connections.closed() => return,
            };
            match (accepted, &acceptor) {
                (Ok(stream), Some(acceptor)) => {
                    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
                    let connections = connections.clone();
                    tokio::spawn(async move {
                        match handshake.await {
                            Ok(Ok(stream)) => drop(connections.send(Connection::new(Box::new(stream))).await),
                            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                            Err(_) => tracing::debug!("TLS handshake took too long"),
                        }
                    });
                }
                (Ok(stream), None) => drop(connections.send(Connection::new(stream)).await),
                (Err(error), _) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn acceptor(&self) -> Option<TlsAcceptor> {
        let Listener::Tls(_, config) = self else { return None };
        let mut config = rustls::ServerConfig::clone(config);
        // Go's gRPC refuses a server that does not name its protocol.
        config.alpn_protocols = vec![b"h2".to_vec()];
        Some(TlsAcceptor::from(Arc::new(config)))
    }

    async fn accept_one(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Listener::Tcp(listener) | Listener::Tls(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Listener::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An accepted connection, whatever it came through.
pub(super) struct Connection(Readdressed<Box<dyn Stream>>);

impl Connection {
    fn new(stream: Box<dyn Stream>) -> Connection {
        Connection(Readdressed::new(stream))
    }
}

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
