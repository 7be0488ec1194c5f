//! Opens connections to others: TCP, TLS where it is spoken, HTTP/1.1. All that the server asks of others goes over these.

use std::io::{self, ErrorKind};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::OutboundError;
use super::line::Line;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Where systems keep the authorities they believe.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Either kind of stream: what is above is compiled once.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Whom to believe.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Whom these authorities vouch for, in PEM.
    Authorities(Vec<u8>),
    /// Whom the system's authorities vouch for.
    System,
    Anybody,
}

/// A connection that HTTP is spoken on from here; `tls` is how, and the name that the certificate must have.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    tls: Option<(&Arc<ClientConfig>, &str)>,
) -> Result<Line, OutboundError> {
    let refused = |why: String| OutboundError::Dial(format!("{host}:{port}"), why);
    let opened = tokio::time::timeout(CONNECT_TIMEOUT, async {
        let stream = TcpStream::connect((host, port)).await.map_err(|error| refused(dialled(&error)))?;
        let _ = stream.set_nodelay(true);
        let Some((config, name)) = tls else { return Ok::<_, OutboundError>(Box::new(stream) as Box<dyn Stream>) };
        let name = ServerName::try_from(name.to_owned()).map_err(|error| OutboundError::Tls(error.to_string()))?;
        let stream = TlsConnector::from(config.clone()).connect(name, stream).await;
        Ok(Box::new(stream.map_err(|error| OutboundError::Tls(shaken(&error)))?) as Box<dyn Stream>)
    });
    let stream = opened.await.map_err(|_| refused("i/o timeout".into()))??;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    Ok(Line::new(sender, Box::pin(connection.with_upgrades())))
}

/// As upstream tells it.
fn dialled(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connect: connection refused".into(),
        ErrorKind::HostUnreachable => "connect: no route to host".into(),
        ErrorKind::TimedOut => "i/o timeout".into(),
        _ => error.to_string(),
    }
}

fn shaken(error: &io::Error) -> String {
    let why = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(why)) => why,
        _ => return error.to_string(),
    };
    let told = match why {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "certificate has expired or is not yet valid".to_owned()
        }
        other => other.to_string(),
    };
    format!("failed to verify certificate: x509: {told}")
}

/// The authorities in PEM; at least one.
pub(crate) fn authorities(pem: &[u8]) -> Result<RootCertStore, OutboundError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| OutboundError::Authorities)?;
        roots.add(certificate).map_err(|_| OutboundError::Authorities)?;
    }
    if roots.is_empty() { Err(OutboundError::Authorities) } else { Ok(roots) }
}

fn system_roots() -> RootCertStore {
    let pem = SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default();
    let mut roots = RootCertStore::empty();
    // A system's list may hold one that this library does not understand.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
    roots
}

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

/// How to speak TLS with somebody, as nobody in particular.
pub(crate) fn tls(trust: &Trust) -> Result<ClientConfig, OutboundError> {
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| OutboundError::Tls(error.to_string()))?;
    let roots = match trust {
        Trust::Authorities(pem) => authorities(pem)?,
        Trust::System => system_roots(),
        Trust::Anybody => {
            let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate));
            return Ok(builder.with_no_client_auth());
        }
    };
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// How to speak with those whom nobody vouches for, and who are not shown who we are.
pub(crate) fn anybody() -> Result<&'static Arc<ClientConfig>, OutboundError> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    match CONFIG.get() {
        Some(known) => Ok(known),
        None => tls(&Trust::Anybody).map(|config| CONFIG.get_or_init(|| Arc::new(config))),
    }
}

/// The same, without looking at who the other one is.
pub(crate) fn unverified(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.dangerous().set_certificate_verifier(Arc::new(AnyCertificate));
    Arc::new(config)
}

/// Where the user said that the certificate is not to be looked at.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &PROVIDER.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &PROVIDER.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        PROVIDER.signature_verification_algorithms.supported_schemes()
    }
}
