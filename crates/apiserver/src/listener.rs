//! The secure port: TLS, HTTP/1.1 and HTTP/2, and who the certificate says the client is.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::audit::ClientAddress;
use crate::auth::{ClientCertificate, x509};
use crate::http::{Body, BoxError};
use crate::server::ApiServer;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests in flight may take once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the TLS configuration cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("the client certificate authorities cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// A server that shows `chain` and asks clients for a certificate of `client_ca`, without insisting on one.
pub fn tls_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_ca: &[Vec<u8>],
) -> Result<Arc<ServerConfig>, ServeError> {
    let mut roots = RootCertStore::empty();
    for certificate in client_ca {
        roots.add(CertificateDer::from(certificate.clone()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl ApiServer {
    /// Serves until drained; then no connection is accepted and those open get a moment to finish.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: Arc<ServerConfig>) {
        let acceptor = TlsAcceptor::from(tls);
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.drain.cancelled() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    tokio::spawn(connection(self.clone(), acceptor.clone(), stream, graceful.watcher()));
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
        let ended = futures::future::join(graceful.shutdown(), self.tasks.wait());
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, ended).await;
    }
}

async fn connection(
    server: Arc<ApiServer>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let address = stream.get_ref().0.peer_addr().ok().map(|address| ClientAddress(address.ip()));
    let user = stream.get_ref().1.peer_certificates().and_then(|chain| x509::user(chain.first()?));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (server, user) = (server.clone(), user.clone());
        async move {
            let mut request = request.map(boxed);
            if let Some(address) = address {
                request.extensions_mut().insert(address);
            }
            if let Some(user) = user {
                request.extensions_mut().insert(ClientCertificate(user));
            }
            Ok::<_, Infallible>(server.handle(request).await)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(250);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "connection ended");
    }
}

fn boxed(body: Incoming) -> Body {
    body.map_frame(|frame| frame.map_data(Bytes::from)).map_err(BoxError::from).boxed_unsync()
}
