//! Channels to the endpoints of a configuration: plain, TLS, unix socket.

use std::{path::Path, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{EtcdConfig, endpoints::Endpoints};
use crate::StoreError;

/// An endpoint that does not accept by then is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// etcd ends connections that ask for signs of life more often than every 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Large lists arrive in few round trips.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Why no client was made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no etcd endpoint is given")]
    NoEndpoints,
    #[error("{0:?} is not an etcd endpoint: write http://host:port, https://host:port or unix:///path")]
    Endpoint(String),
    #[error("{0} needs the CA certificate of the etcd servers")]
    NoCa(String),
    #[error("a client certificate and its key must be given together")]
    HalfIdentity,
    #[error("cannot read {path}: {error}")]
    Pem { path: String, error: rustls::pki_types::pem::Error },
    #[error("the TLS files cannot be used: {0}")]
    Tls(#[from] rustls::Error),
    #[error("none of the etcd endpoints {endpoints} answers: {error}")]
    NoAnswer { endpoints: String, error: StoreError },
}

pub(super) fn endpoints(config: &EtcdConfig) -> Result<Endpoints, ConnectError> {
    if config.endpoints.is_empty() {
        return Err(ConnectError::NoEndpoints);
    }
    let tls = tls(config)?;
    let channels = config.endpoints.iter().map(|text| Ok((text.clone(), channel(text, tls.as_ref())?)));
    Ok(Endpoints::new(channels.collect::<Result<_, ConnectError>>()?))
}

fn channel(text: &str, tls: Option<&TlsConnector>) -> Result<Channel, ConnectError> {
    let wrong = || ConnectError::Endpoint(text.to_owned());
    if let Some(path) = text.strip_prefix("unix://") {
        let path = Path::new(path).to_owned();
        // The name is only the HTTP/2 authority; gRPC servers on unix sockets expect this one.
        return Ok(open(Endpoint::from_static("http://localhost"), move || {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }));
    }
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(2379);
    let tcp = move || {
        let host = host.clone();
        async move {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            std::io::Result::Ok(stream)
        }
    };
    let endpoint = Endpoint::from(uri.clone());
    match uri.scheme_str() {
        Some("http") => Ok(open(endpoint, move || {
            let stream = tcp();
            async move { stream.await.map(TokioIo::new) }
        })),
        Some("https") => {
            let tls = tls.ok_or_else(|| ConnectError::NoCa(text.to_owned()))?.clone();
            let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(host).map_err(|_| wrong())?;
            Ok(open(endpoint, move || {
                let (stream, tls, name) = (tcp(), tls.clone(), name.clone());
                async move { tls.connect(name, stream.await?).await.map(TokioIo::new) }
            }))
        }
        _ => Err(wrong()),
    }
}

/// A channel that connects with its first request, and again whenever the connection is lost.
fn open<F, Connecting, Io>(endpoint: Endpoint, connect: F) -> Channel
where
    F: Fn() -> Connecting + Send + Sync + 'static,
    Connecting: Future<Output = std::io::Result<Io>> + Send + 'static,
    Io: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect_with_connector_lazy(tower::service_fn(move |_: Uri| connect()))
}

fn tls(config: &EtcdConfig) -> Result<Option<TlsConnector>, ConnectError> {
    let Some(ca) = &config.ca else { return Ok(None) };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut tls = match (&config.cert, &config.key) {
        (Some(cert), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
            builder.with_client_auth_cert(certificates(cert)?, secret)?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(ConnectError::HalfIdentity),
    };
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Some(TlsConnector::from(Arc::new(tls))))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    all.map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: rustls::pki_types::pem::Error) -> ConnectError {
    ConnectError::Pem { path: path.display().to_string(), error }
}
