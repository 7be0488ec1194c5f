//! Certificates that are replaced while they are in use, long before they end.
//!
//! Whoever serves or calls shows what [`Shown`] holds at the moment of a handshake, so that a new certificate is for new
//! connections and the open ones go on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use arc_swap::ArcSwapOption;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use crate::pki::Identity;

/// A machine that slept has a clock that went on: the calendar is looked at every day.
const MOST_SLEEP: Duration = Duration::from_secs(24 * 3600);
/// After which a renewal that failed is tried again.
const RETRY: Duration = Duration::from_secs(600);

/// A certificate as it is shown now; while there is none, no handshake succeeds.
#[derive(Debug, Default)]
pub(crate) struct Shown(ArcSwapOption<CertifiedKey>);

impl Shown {
    pub(crate) fn new(identity: &Identity) -> Result<Arc<Self>> {
        Ok(Arc::new(Self(ArcSwapOption::new(Some(certified(identity)?)))))
    }

    /// From the next handshake on.
    pub(crate) fn show(&self, identity: &Identity) -> Result<()> {
        self.0.store(Some(certified(identity)?));
        Ok(())
    }
}

fn certified(identity: &Identity) -> Result<Arc<CertifiedKey>> {
    let key = rustls::crypto::ring::sign::any_supported_type(&identity.private_key()?).context("private key")?;
    let certified = CertifiedKey::new(identity.chain()?, key);
    certified.keys_match().context("the certificate does not belong to its key")?;
    Ok(Arc::new(certified))
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Renews what needs it, and answers how long all is good then.
pub(crate) type Renewal = Box<dyn Fn() -> Result<Duration> + Send>;

/// Calls `renew` whenever something must be renewed, until drained.
pub(crate) async fn keep(drain: CancellationToken, renew: Renewal) -> Result<()> {
    let mut time = Duration::ZERO;
    while drain.run_until_cancelled(tokio::time::sleep(time)).await.is_some() {
        time = pause(renew());
    }
    Ok(())
}

/// How long to leave it alone after a renewal.
fn pause(renewed: Result<Duration>) -> Duration {
    let failed = |error: anyhow::Error| {
        tracing::error!(error = format!("{error:#}"), "certificates could not be renewed");
        RETRY
    };
    renewed.unwrap_or_else(failed).min(MOST_SLEEP)
}

#[cfg(test)]
pub(crate) mod tests {
    use rustls::pki_types::{CertificateDer, ServerName};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

    use super::*;
    use crate::pki::Pki;

    /// A connection to a server that echoes, and the certificate it showed.
    pub(crate) async fn connect(
        server: Arc<rustls::ServerConfig>,
        authority: &[u8],
    ) -> (TlsStream<DuplexStream>, Vec<u8>) {
        let (near, far) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            let mut stream = TlsAcceptor::from(server).accept(far).await.unwrap();
            let mut byte = [0];
            while stream.read_exact(&mut byte).await.is_ok() {
                stream.write_all(&byte).await.unwrap();
            }
        });
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from(authority.to_vec())).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, near).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].as_ref().to_vec();
        (stream, shown)
    }

    #[tokio::test]
    async fn a_new_certificate_is_for_new_connections_and_open_ones_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path()).unwrap();
        let authority = pki.authorities().unwrap().remove(0);
        let first = pki.server("one", "x", &["localhost"], &[]).unwrap();
        let second = pki.server("two", "x", &["localhost"], &[]).unwrap();
        let shown = Shown::new(&first).unwrap();
        let tls = crate::control_plane::serving_tls(&[], shown.clone(), &[]).unwrap();
        let (mut open, seen) = connect(tls.clone(), &authority).await;
        assert_eq!(seen, first.chain().unwrap()[0].as_ref());
        shown.show(&second).unwrap();
        let (_, seen) = connect(tls, &authority).await;
        assert_eq!(seen, second.chain().unwrap()[0].as_ref());
        open.write_all(b"x").await.unwrap();
        assert_eq!(open.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn renewals_come_when_they_are_due_and_again_when_they_fail() {
        let (drain, (calls, mut called)) = (CancellationToken::new(), tokio::sync::mpsc::unbounded_channel());
        let renew = move || {
            calls.send(())?;
            Ok(Duration::from_millis(1))
        };
        let running = tokio::spawn(keep(drain.clone(), Box::new(renew)));
        for _ in 0..3 {
            called.recv().await.unwrap();
        }
        drain.cancel();
        running.await.unwrap().unwrap();
        assert_eq!(pause(Err(anyhow::anyhow!("the disk is full"))), RETRY);
        assert_eq!(pause(Ok(Duration::from_secs(5))), Duration::from_secs(5));
        assert_eq!(pause(Ok(Duration::from_secs(90 * 24 * 3600))), MOST_SLEEP);
    }
}
