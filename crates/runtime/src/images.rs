//! Images on this machine: found, listed, imported, pulled, made from host files, removed.

mod builtin;
mod digest;
pub(crate) mod fuzzing;
mod import;
mod limits;
mod manifest;
mod pull;
mod reference;
mod registry;
mod store;
mod unpack;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

pub use digest::Digest;
pub use import::ImportError;
pub use limits::{ImageLimits, LimitError};
pub use manifest::{ManifestError, ProcessConfig};
pub use pull::PullError;
pub use reference::{Reference, ReferenceError};
pub use registry::Credentials;
pub use store::{StoreError, StoredImage};
pub use unpack::UnpackError;

use registry::Client;
use store::Store;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the image worker panicked")]
    Worker,
}

/// The image store and its ways in and out.
pub struct Images {
    store: Arc<Store>,
    client: Client,
    /// Pods often ask for the same image at once: one pull serves them all.
    pulling: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Images {
    pub(crate) fn open(root: &Path, extra_ca: Option<&Path>, limits: ImageLimits) -> Result<Self, StoreError> {
        let client = Client::new(extra_ca).map_err(StoreError::Tls)?;
        Ok(Self { store: Arc::new(Store::open(root, limits)?), client, pulling: Mutex::default() })
    }

    /// By id, `name:tag` or `name@digest`, with the usual defaults.
    pub fn find(&self, name: &str) -> Option<StoredImage> {
        self.store.find(name)
    }

    pub fn list(&self) -> Vec<StoredImage> {
        self.store.list()
    }

    /// Removes a tag; the image goes with its last one. By id or digest it goes at once.
    ///
    /// # Errors
    /// There is no such image, or its files cannot be removed.
    pub async fn remove(&self, name: &str) -> Result<(), ImageError> {
        let (store, name) = (self.store.clone(), name.to_owned());
        blocking(move || Ok(store.remove(&name)?)).await
    }

    /// Imports every image of an OCI or docker archive.
    ///
    /// # Errors
    /// The archive cannot be read, is malformed, or does not match its digests.
    pub async fn import(&self, archive: &Path) -> Result<Vec<StoredImage>, ImageError> {
        let (store, archive) = (self.store.clone(), archive.to_owned());
        blocking(move || {
            let _busy = store.busy();
            Ok(import::import(&store, &archive)?)
        })
        .await
    }

    /// Makes `name:tag` an image of host files (`(on the host, in the image)`). Cheap when the files did not change.
    ///
    /// # Errors
    /// A file cannot be read, or the store cannot be written.
    pub async fn add_builtin(
        &self,
        name: &str,
        tag: &str,
        files: &[(PathBuf, PathBuf)],
        config: ProcessConfig,
    ) -> Result<StoredImage, ImageError> {
        let reference: Reference = format!("{name}:{tag}").parse()?;
        let (store, files) = (self.store.clone(), files.to_vec());
        blocking(move || {
            let _busy = store.busy();
            Ok(builtin::add(&store, &reference, &files, config)?)
        })
        .await
    }

    /// Pulls an image, even if it is here already (its tag may have moved); what is already unpacked is not fetched again.
    ///
    /// # Errors
    /// The registry does not have it, does not allow it, cannot be reached, or sent something else than it promised.
    pub async fn pull(&self, name: &str, credentials: Option<&Credentials>) -> Result<StoredImage, ImageError> {
        let reference: Reference = name.parse()?;
        let gate = self.pulling.lock().entry(reference.to_string()).or_default().clone();
        let _one_at_a_time = gate.lock().await;
        let _busy = self.store.busy();
        let pulled = pull::pull(&self.store, &self.client, &reference, credentials).await;
        let mut pulling = self.pulling.lock();
        // The last one out takes the gate away.
        if Arc::strong_count(&gate) == 2 {
            pulling.remove(&reference.to_string());
        }
        Ok(pulled?)
    }

    pub(crate) fn lease(&self, layers: &[Digest]) {
        self.store.lease(layers);
    }

    pub(crate) fn release(&self, layers: &[Digest]) {
        if let Err(error) = self.store.release(layers) {
            tracing::warn!(%error, "unused layers were not removed");
        }
    }

    pub(crate) fn layer(&self, chain: &Digest) -> PathBuf {
        self.store.layer(chain)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.store.used_bytes()
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ImageError::Worker)?
}
