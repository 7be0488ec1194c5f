//! Renews a certificate while it is in use, through the API.

use std::time::Duration;

use client::Drain;
use jiff::Timestamp;
use rcgen::KeyPair;

use super::leaf::Leaf;
use super::request::{RequestError, Template};
use super::store::{CertificateStore, StoreError};

/// A machine that slept has a clock that went on: the calendar is looked at every day.
const MOST_SLEEP: Duration = Duration::from_secs(24 * 3600);
/// How long a request is waited for before another one is made.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// The first pause after a renewal that failed, doubled up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(300);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Takes a chain and its key, in PEM, into use.
pub type Show = Box<dyn Fn(&str) -> Result<(), BoxError> + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    #[error("the client certificate ended at {until} and is not renewed: {refused}")]
    Over { until: Timestamp, refused: RequestError },
}

#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the new certificate cannot be used: {0}")]
    Use(BoxError),
}

/// One certificate, and what it is renewed with.
pub struct Rotation {
    /// Asks for it.
    pub client: kube::Client,
    pub template: Template,
    pub store: CertificateStore,
    /// What is in use; without anything, a certificate is asked for at once.
    pub current: Option<Leaf>,
    /// Is given each new one.
    pub show: Show,
    /// Whether `client` shows this very certificate: once it has ended, nothing can be asked for any more.
    pub is_own: bool,
}

impl Rotation {
    /// Runs until drained.
    ///
    /// # Errors
    /// The certificate has ended, and the server does not accept it for a renewal: only a new start can help.
    pub async fn run(mut self, drain: Drain) -> Result<(), RotationError> {
        drain.run_until_cancelled(self.renewals()).await.unwrap_or(Ok(()))
    }

    async fn renewals(&mut self) -> Result<(), RotationError> {
        let (mut issued, mut retry) = (None, RETRY_MIN);
        loop {
            if let Some(leaf) = self.current.as_ref().filter(|leaf| self.template.is_met_by(leaf)) {
                wait_until(due(leaf, issued, rand::random())).await;
            }
            match self.renew().await {
                Ok(leaf) => {
                    tracing::info!(name = leaf.common_name, until = leaf.until, "a new certificate is in use");
                    (self.current, issued, retry) = (Some(leaf), Some(Timestamp::now().as_second()), RETRY_MIN);
                    continue;
                }
                Err(RenewError::Request(refused @ RequestError::Refused(_))) if self.has_ended() => {
                    let until = self.current.as_ref().and_then(|leaf| Timestamp::from_second(leaf.until).ok());
                    return Err(RotationError::Over { until: until.unwrap_or_default(), refused });
                }
                Err(error) => tracing::warn!(%error, "the certificate could not be renewed"),
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    fn has_ended(&self) -> bool {
        self.is_own && self.current.as_ref().is_some_and(|leaf| leaf.is_over(Timestamp::now()))
    }

    async fn renew(&self) -> Result<Leaf, RenewError> {
        let key = KeyPair::generate().map_err(RequestError::Make)?;
        let pem = self.template.ask(&self.client, None, &key, PATIENCE).await?;
        self.store.update(&pem, Timestamp::now())?;
        (self.show)(&pem).map_err(RenewError::Use)?;
        Ok(Leaf::read(pem.as_bytes()).ok_or(RequestError::Foreign)?)
    }
}

/// When to renew: at 70 to 90 % of its life, as `jitter` between 0 and 1 says, so that nodes that came together do not ask
/// together. Authorities date back, so that a short life may be that far gone when it begins: of one `issued` just now, half of what
/// was left is used at least.
fn due(leaf: &Leaf, issued: Option<i64>, jitter: f64) -> i64 {
    let life = (leaf.until - leaf.from).max(0) as f64;
    let due = leaf.from + (life * (0.7 + 0.2 * jitter)).round() as i64;
    issued.map_or(due, |issued| due.max(issued + (leaf.until - issued) / 2))
}

async fn wait_until(due: i64) {
    while let Some(left) = u64::try_from(due - Timestamp::now().as_second()).ok().filter(|left| *left > 0) {
        tokio::time::sleep(Duration::from_secs(left).min(MOST_SLEEP)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::super::testing::Authority;
    use super::*;

    #[test]
    fn a_certificate_is_renewed_at_70_to_90_percent_of_its_life() {
        check((0, 1000), None, 0.0, 700);
        check((0, 1000), None, 0.5, 800);
        check((0, 1000), None, 1.0, 900);
        check((-300, 700), None, 0.0, 400);
        // Dated back by more than it lasts: over 90 % are gone when it is issued, yet it is not renewed at once.
        check((-300, 20), None, 1.0, -12);
        check((-300, 20), Some(0), 1.0, 10);
        // What lasts is not touched by that.
        check((-300, 31_536_000), Some(0), 0.0, 22_075_110);
        check((5, 5), None, 0.3, 5);
    }

    #[track_caller]
    fn check((from, until): (i64, i64), issued: Option<i64>, jitter: f64, want: i64) {
        let leaf = Leaf { from, until, ..Leaf::default() };
        assert_eq!(due(&leaf, issued, jitter), want);
    }

    fn rotation(authority: &Arc<Authority>, folder: &std::path::Path) -> (Rotation, Arc<Mutex<Vec<String>>>) {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let keep = shown.clone();
        let rotation = Rotation {
            client: authority.client(),
            template: Template::client("n"),
            store: CertificateStore::client(folder),
            current: None,
            show: Box::new(move |pem| {
                keep.lock().push(pem.to_owned());
                Ok(())
            }),
            is_own: true,
        };
        (rotation, shown)
    }

    #[tokio::test]
    async fn short_lives_follow_each_other_and_each_is_kept_and_shown() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::signing(2));
        let (rotation, shown) = rotation(&authority, folder.path());
        let (store, drain) = (rotation.store.clone(), Drain::new());
        let running = tokio::spawn(rotation.run(drain.clone()));
        authority.until_asked(3).await;
        drain.cancel();
        running.await.unwrap().unwrap();
        let shown = shown.lock().clone();
        assert!(shown.len() >= 2);
        assert_eq!(store.current().unwrap().as_ref(), shown.last());
        let leaves: Vec<Leaf> = shown.iter().map(|pem| Leaf::read(pem.as_bytes()).unwrap()).collect();
        assert_ne!(leaves[0].public_key, leaves[1].public_key, "each has a key of its own");
        assert!(leaves[1].until > leaves[0].until);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_ended_and_is_refused_ends_the_kubelet() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::refusing());
        let (mut rotation, _) = rotation(&authority, folder.path());
        let now = Timestamp::now().as_second();
        rotation.current = Some(Leaf { from: now - 100, until: now - 1, ..Leaf::default() });
        let ended = rotation.run(Drain::new()).await.unwrap_err().to_string();
        assert!(ended.contains("is not renewed") && ended.contains("401"), "{ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_ended_is_asked_for_again() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::refusing());
        let (mut rotation, _) = rotation(&authority, folder.path());
        let now = Timestamp::now().as_second();
        rotation.current = Some(Leaf { from: now - 100, until: now + 3600, ..Leaf::default() });
        let drain = Drain::new();
        let running = tokio::spawn(rotation.run(drain.clone()));
        authority.until_asked(4).await;
        drain.cancel();
        running.await.unwrap().unwrap();
    }
}
