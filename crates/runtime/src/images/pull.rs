//! Pulls an image: manifest, configuration, and the layers that are not here yet, each verified while it arrives.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use super::digest::{Digest, Hasher};
use super::import::unpack_layer;
use super::limits::{DOCUMENT_MAX_BYTES, ImageLimits, LimitError};
use super::manifest::{ACCEPTED, Descriptor, Document, ImageConfig, Manifest, ManifestError, Platform};
use super::reference::{LOCAL_REGISTRY, Reference};
use super::registry::{Client, Credentials, Session};
use super::store::{NewImage, Store, StoreError, StoredImage, io_error};
use super::unpack::UnpackError;
use crate::disk;

const PARALLEL_LAYERS: usize = 3;
/// A transfer that stands still this long is given up; the kubelet tries again.
const STALL_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("image {0} not found")]
    NotFound(String),
    #[error("pull access denied for {reference}: {reason}: the repository does not exist or may require authorization")]
    Denied { reference: String, reason: String },
    #[error("cannot reach registry {registry}: {reason}")]
    Unreachable { registry: String, reason: String },
    #[error("registry {registry} answered with {answer}")]
    Protocol { registry: String, answer: String },
    #[error("{reference} has no image for {platform}")]
    Platform { reference: String, platform: String },
    #[error("{what} of {reference} does not match its digest")]
    Digest { reference: String, what: &'static str },
    #[error("{what} of {reference} cannot be used: {source}")]
    Malformed { reference: String, what: &'static str, source: ManifestError },
    #[error("{what} of {reference} is larger than {DOCUMENT_MAX_BYTES} bytes")]
    TooLarge { reference: String, what: &'static str },
    #[error("{what} of {reference} does not have the size that its descriptor says")]
    Size { reference: String, what: &'static str },
    #[error("the transfer of {reference} broke off: {reason}")]
    Transfer { reference: String, reason: String },
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the image worker panicked")]
    Worker,
}

impl PullError {
    /// With the innermost cause: "connection refused" is what the user must read, not that connecting failed.
    pub(super) fn unreachable(registry: String, error: impl std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            reason = inner.to_string();
            cause = inner.source();
        }
        Self::Unreachable { registry, reason }
    }
}

pub(super) async fn pull(
    store: &Arc<Store>,
    client: &Client,
    reference: &Reference,
    credentials: Option<&Credentials>,
) -> Result<StoredImage, PullError> {
    if reference.registry == LOCAL_REGISTRY {
        // What is made on this machine is as new as it can be: who always pulls has it.
        let missing = || format!("{reference} (images of {LOCAL_REGISTRY} are made on this machine)");
        return store.find(&reference.to_string()).ok_or_else(|| PullError::NotFound(missing()));
    }
    let pull = Pull { reference, session: client.session(reference, credentials) };
    let (top, manifest_bytes, manifest) = pull.manifest().await?;
    let config_path = format!("blobs/{}", manifest.config.digest);
    let config_bytes = pull.document(&config_path, &manifest.config, "the configuration").await?;
    let config: ImageConfig =
        serde_json::from_slice(&config_bytes).map_err(|e| pull.malformed("the configuration", e.into()))?;
    if config.rootfs.diff_ids.len() != manifest.layers.len() {
        return Err(pull.session_odd("a configuration that does not fit its layers"));
    }
    let layers = pull.layers(store, &manifest, &config).await?;
    let (store, reference) = (store.clone(), reference.clone());
    let added = tokio::task::spawn_blocking(move || {
        let id = store.write_blob(&config_bytes)?;
        let manifest = store.write_blob(&manifest_bytes)?;
        let reference = Some(&reference);
        Ok(store.add(NewImage { id, manifest, top, reference, layers, config: &config, pinned: false })?)
    });
    added.await.map_err(|_| PullError::Worker)?
}

struct Pull<'a> {
    reference: &'a Reference,
    session: Session<'a>,
}

impl Pull<'_> {
    /// The digest that names the image, and this platform's manifest behind it.
    async fn manifest(&self) -> Result<(Digest, Vec<u8>, Manifest), PullError> {
        let served = self.session.get(&format!("manifests/{}", self.reference.selector()), &ACCEPTED).await?;
        let content_type = served.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = content_type.to_owned();
        let bytes = self.bounded(served.into_body(), "the manifest").await?;
        let top = Digest::of(&bytes);
        if self.reference.digest.as_ref().is_some_and(|wanted| *wanted != top) {
            return Err(self.mismatch("the manifest"));
        }
        match self.parse(&bytes, &content_type)? {
            Document::Manifest(manifest) => Ok((top, bytes, manifest)),
            Document::Index(index) => {
                let here = Platform::here();
                let missing = || PullError::Platform {
                    reference: self.reference.to_string(),
                    platform: format!("{}/{}", here.os, here.architecture),
                };
                let entry = index.select(&here).ok_or_else(missing)?;
                let bytes = self.document(&format!("manifests/{}", entry.digest), entry, "the manifest").await?;
                match self.parse(&bytes, &entry.media_type)? {
                    Document::Manifest(manifest) => Ok((top, bytes, manifest)),
                    Document::Index(_) => Err(missing()),
                }
            }
        }
    }

    /// Fetches what is missing, a few at a time; unpacks in order, each layer on its parents.
    async fn layers(
        &self,
        store: &Arc<Store>,
        manifest: &Manifest,
        config: &ImageConfig,
    ) -> Result<Vec<Digest>, PullError> {
        let mut chain: Vec<Digest> = Vec::new();
        let mut ids = Vec::new();
        for diff_id in &config.rootfs.diff_ids {
            let id = Digest::chain(ids.last(), diff_id);
            ids.push(id);
        }
        let wanted = manifest.layers.iter().zip(&ids).map(|(layer, id)| async move {
            if store.has_layer(id) {
                return Ok(None);
            }
            let file = Scratch(store.temporary());
            self.fetch(layer, &file.0, store.limits()).await?;
            Ok::<_, PullError>(Some(file))
        });
        let mut fetched = stream::iter(wanted).buffered(PARALLEL_LAYERS).boxed();
        for diff_id in &config.rootfs.diff_ids {
            let file = fetched.try_next().await?.flatten();
            let (store, diff_id) = (store.clone(), diff_id.clone());
            let unpacked = tokio::task::spawn_blocking(move || {
                let open = || -> Result<std::fs::File, PullError> {
                    let path = file.as_ref().map(|scratch| scratch.0.clone()).ok_or(PullError::Worker)?;
                    Ok(std::fs::File::open(path).map_err(io_error("read a layer"))?)
                };
                unpack_layer::<_, PullError>(&store, &mut chain, &diff_id, open)?;
                Ok::<_, PullError>(chain)
            });
            chain = unpacked.await.map_err(|_| PullError::Worker)??;
        }
        Ok(chain)
    }

    /// Streams a layer to a file, counting and hashing as it comes.
    async fn fetch(&self, layer: &Descriptor, to: &Path, limits: ImageLimits) -> Result<(), PullError> {
        if layer.size > limits.layer_max_bytes {
            return Err(UnpackError::from(LimitError::LayerSize(limits.layer_max_bytes)).into());
        }
        let mut body = self.session.get(&format!("blobs/{}", layer.digest), &[]).await?.into_body();
        let mut file = std::fs::File::create(to).map_err(io_error("write a layer"))?;
        let (mut hash, mut size) = (Hasher::default(), 0u64);
        while let Some(frame) = self.within_patience(body.frame()).await? {
            let frame = frame.map_err(|e| self.broken(&e))?;
            let Some(data) = frame.data_ref() else { continue };
            size += data.len() as u64;
            if size > layer.size {
                return Err(self.wrong_size("a layer"));
            }
            hash.update(data);
            file.write_all(data).map_err(io_error("write a layer"))?;
        }
        if size != layer.size {
            return Err(self.wrong_size("a layer"));
        }
        if hash.finish() == layer.digest { Ok(()) } else { Err(self.mismatch("a layer")) }
    }

    async fn document(&self, path: &str, wanted: &Descriptor, what: &'static str) -> Result<Vec<u8>, PullError> {
        let bytes = self.bounded(self.session.get(path, &ACCEPTED).await?.into_body(), what).await?;
        if bytes.len() as u64 != wanted.size {
            return Err(self.wrong_size(what));
        }
        if Digest::of(&bytes) == wanted.digest { Ok(bytes) } else { Err(self.mismatch(what)) }
    }

    async fn bounded(&self, body: Incoming, what: &'static str) -> Result<Vec<u8>, PullError> {
        let limited = Limited::new(body, DOCUMENT_MAX_BYTES as usize);
        let collected = self.within_patience(limited.collect()).await?.map_err(|error| {
            let reference = self.reference.to_string();
            match error.is::<LengthLimitError>() {
                true => PullError::TooLarge { reference, what },
                false => PullError::Transfer { reference, reason: error.to_string() },
            }
        })?;
        Ok(collected.to_bytes().to_vec())
    }

    async fn within_patience<T>(&self, work: impl Future<Output = T>) -> Result<T, PullError> {
        tokio::time::timeout(STALL_PATIENCE, work)
            .await
            .map_err(|_| self.broken(&io::Error::from(io::ErrorKind::TimedOut)))
    }

    fn parse(&self, bytes: &[u8], media_type: &str) -> Result<Document, PullError> {
        Document::parse(bytes, media_type).map_err(|source| self.malformed("the manifest", source))
    }

    fn malformed(&self, what: &'static str, source: ManifestError) -> PullError {
        PullError::Malformed { reference: self.reference.to_string(), what, source }
    }

    fn wrong_size(&self, what: &'static str) -> PullError {
        PullError::Size { reference: self.reference.to_string(), what }
    }

    fn mismatch(&self, what: &'static str) -> PullError {
        PullError::Digest { reference: self.reference.to_string(), what }
    }

    fn broken(&self, error: &dyn std::error::Error) -> PullError {
        PullError::Transfer { reference: self.reference.to_string(), reason: error.to_string() }
    }

    fn session_odd(&self, answer: &str) -> PullError {
        PullError::Protocol { registry: self.reference.registry.clone(), answer: answer.to_owned() }
    }
}

/// A file that is gone when nobody needs it, however the pull ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = disk::remove(&self.0);
    }
}
