//! The signing keys of an OpenID Connect issuer, read from it or from a file, and read again for a key that is not known.
//!
//! Known keys are returned at once, whatever the issuer does: nothing is awaited under a lock. There is one refresh at a time,
//! which all tokens with an unknown key share, and a pause after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use serde_json::Value;

use super::{Key, OidcError};
use crate::outbound::Outbound;

/// The shortest time between two refreshes: tokens with keys that nobody has must not keep us asking.
const REFRESH_PAUSE: Duration = Duration::from_secs(10);
/// An issuer that does not answer within this time fails the tokens that wait for its keys.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(10);

type Refreshed = Result<(), Arc<OidcError>>;

pub(super) struct KeySet {
    source: Arc<Source>,
    refresh: Mutex<Refresh>,
}

#[derive(Default)]
struct Refresh {
    /// Shared by everyone who waits for it; whoever is left drives it on.
    running: Option<Shared<BoxFuture<'static, Refreshed>>>,
    ended: Option<Instant>,
}

/// Where the keys come from, and the ones read last.
struct Source {
    issuer: String,
    discovery: String,
    http: Outbound,
    /// Read instead of the issuer's published keys.
    file: Option<PathBuf>,
    known: ArcSwap<Vec<Key>>,
}

impl KeySet {
    /// Keys in a file are read at once, so that a file that cannot be used is refused.
    pub(super) fn new(
        issuer: &str,
        discovery: String,
        http: Outbound,
        file: Option<PathBuf>,
    ) -> Result<Self, OidcError> {
        let known = file.as_deref().map(from_file).transpose()?.unwrap_or_default();
        let known = ArcSwap::from_pointee(known);
        let source = Arc::new(Source { issuer: issuer.to_owned(), discovery, http, file, known });
        Ok(Self { source, refresh: Mutex::default() })
    }

    /// The keys that are known now, none before the first refresh.
    pub(super) fn known(&self) -> Arc<Vec<Key>> {
        self.source.known.load_full()
    }

    /// Reads the keys again, unless that happened just now, and returns them.
    ///
    /// # Errors
    /// The issuer cannot be reached, or publishes something else than keys. What was known stays.
    pub(super) async fn refreshed(&self) -> Result<Arc<Vec<Key>>, Arc<OidcError>> {
        if let Some(running) = self.begin() {
            let outcome = running.clone().await;
            self.end(&running);
            outcome?;
        }
        Ok(self.known())
    }

    /// The refresh to wait for; `None` if one has just ended.
    fn begin(&self) -> Option<Shared<BoxFuture<'static, Refreshed>>> {
        let mut refresh = self.refresh.lock();
        if let Some(running) = &refresh.running {
            return Some(running.clone());
        }
        if refresh.ended.is_some_and(|at| at.elapsed() < REFRESH_PAUSE) {
            return None;
        }
        let source = self.source.clone();
        let running = async move { source.refresh().await.map_err(Arc::new) }.boxed().shared();
        Some(refresh.running.insert(running).clone())
    }

    fn end(&self, ended: &Shared<BoxFuture<'static, Refreshed>>) {
        let mut refresh = self.refresh.lock();
        if refresh.running.as_ref().is_some_and(|running| running.ptr_eq(ended)) {
            *refresh = Refresh { running: None, ended: Some(Instant::now()) };
        }
    }
}

impl Source {
    async fn refresh(&self) -> Result<(), OidcError> {
        let keys = match &self.file {
            Some(path) => from_file(path)?,
            None => tokio::time::timeout(REFRESH_TIMEOUT, self.published()).await.map_err(|_| OidcError::Timeout)??,
        };
        self.known.store(Arc::new(keys));
        Ok(())
    }

    async fn published(&self) -> Result<Vec<Key>, OidcError> {
        let document = self.http.get(&self.discovery).await?;
        let text = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
        let (wanted, issuer) = (&self.issuer, text("issuer"));
        if issuer != wanted {
            return Err(OidcError::Discovery(format!(
                "issuer did not match the issuer returned by provider, expected {wanted:?} got {issuer:?}"
            )));
        }
        Ok(read(&self.http.get(text("jwks_uri")).await?))
    }
}

/// The keys of a JSON Web Key Set that are of a known type.
fn read(set: &Value) -> Vec<Key> {
    set.get("keys").and_then(Value::as_array).into_iter().flatten().filter_map(Key::read).collect()
}

/// A JSON Web Key Set; at least one of its keys must be of use.
fn from_file(path: &Path) -> Result<Vec<Key>, OidcError> {
    let refuse = |why: String| OidcError::File { path: path.to_owned(), why };
    let text = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let set: Value = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    let keys = read(&set);
    match keys.is_empty() {
        true => Err(refuse("none is of RSA, P-256, P-384 or P-521".into())),
        false => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::outbound::connect::Trust;

    /// An issuer that accepts connections and never answers.
    fn hanging_issuer() -> (TcpListener, KeySet) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let http = Outbound::new(&url, Trust::Anybody).unwrap();
        let keys = KeySet::new(&url, format!("{url}/.well-known/openid-configuration"), http, None).unwrap();
        (listener, keys)
    }

    #[tokio::test]
    async fn known_keys_are_returned_while_the_issuer_hangs() {
        let (_listener, keys) = hanging_issuer();
        let mut refreshing = Box::pin(keys.refreshed());
        assert!(futures::poll!(&mut refreshing).is_pending());
        // Would wait for ever if the refresh held a lock.
        assert!(keys.known().is_empty());
        assert!(keys.refresh.try_lock().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_with_an_unknown_key_share_one_refresh_and_its_failure() {
        let (listener, keys) = hanging_issuer();
        let (first, second) = tokio::join!(keys.refreshed(), keys.refreshed());
        let (first, second) = (first.err().unwrap(), second.err().unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        assert!(first.to_string().contains("timeout"), "{first}");
        listener.set_nonblocking(true).unwrap();
        let connections = std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(connections, 1);
        // Within the pause nobody asks again.
        assert!(keys.refreshed().await.is_ok());
        assert!(listener.accept().is_err());
    }

    /// A client that goes away while it drives the refresh leaves it to the others.
    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_does_not_end_the_refresh() {
        let (_listener, keys) = hanging_issuer();
        let mut gone = Box::pin(keys.refreshed());
        assert!(futures::poll!(&mut gone).is_pending());
        let mut waiting = Box::pin(keys.refreshed());
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(gone);
        assert!(waiting.await.is_err());
    }
}
