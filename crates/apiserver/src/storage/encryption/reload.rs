//! Takes over a changed configuration of encryption while the server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{EncryptionError, Rules, Sealing, config};
use crate::file_watch::Events;

/// After which a change that could not be taken over is tried again: its KMS plugin may have come.
const RETRY: Duration = Duration::from_secs(10);

pub(super) fn read(path: &Path) -> Result<Vec<u8>, EncryptionError> {
    let text = std::fs::read(path).map_err(|source| EncryptionError::Read { path: path.to_owned(), source })?;
    if text.is_empty() {
        return Err(EncryptionError::Config(format!("encryption provider configuration file {path:?} is empty")));
    }
    Ok(text)
}

/// Follows the file, `known` being what it said last, for as long as somebody has use for it.
pub(super) fn follow(rules: &Arc<Sealing>, events: Events, path: PathBuf, mut known: Vec<u8>) {
    let rules = Arc::downgrade(rules);
    tokio::spawn(async move {
        let mut failed = false;
        loop {
            let retry = async {
                match failed {
                    true => tokio::time::sleep(RETRY).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                seen = events.changed() => if seen.is_err() { return },
                () = retry => (),
            }
            let Some(rules) = rules.upgrade() else { return };
            let text = match read(&path) {
                Ok(text) if text == known => {
                    failed = false;
                    continue;
                }
                text => text,
            };
            match take_over(&rules, &path, text).await {
                Ok(text) => {
                    (known, failed) = (text, false);
                    rules.reloads[0].fetch_add(1, Ordering::Relaxed);
                    tracing::info!("the changed encryption configuration is in use");
                }
                Err(error) => {
                    failed = true;
                    rules.reloads[1].fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%error, "the changed encryption configuration cannot be used");
                }
            }
        }
    });
}

async fn take_over(
    rules: &Sealing,
    path: &Path,
    text: Result<Vec<u8>, EncryptionError>,
) -> Result<Vec<u8>, EncryptionError> {
    let text = text?;
    let new = Rules::build(config::parse(path, &text).map_err(EncryptionError::Config)?).await?;
    new.check().await.map_err(|error| EncryptionError::Config(error.to_string()))?;
    rules.current.store(Arc::new(new));
    if rules.unread.swap(false, Ordering::Relaxed) {
        rules.changed.swap(Arc::new(CancellationToken::new())).cancel();
    }
    Ok(text)
}
