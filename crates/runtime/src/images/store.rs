//! Which images exist: the index of names and ids, the small blobs, and the unpacked layers.
//!
//! On disk: `index.json`, `blobs/sha256/<hex>` (manifests and configurations) and `layers/<chain>/fs` (unpacked once, shared by every
//! image and container on the same chain). Layer archives are not kept.
//!
//! Invariants: every file is written whole, atomically and durably. A layer directory is renamed into place with its `layer.json`
//! once all of its content is on disk, and renamed away before its content is removed: one without a usable `layer.json` is not
//! complete, and is removed when the store is opened, as are images without their layers. Both can be pulled again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::limits::ImageLimits;
use super::manifest::{ImageConfig, ProcessConfig};
use super::reference::Reference;
use crate::disk;
use crate::record::{self, ReadError};

/// The record of a layer in its directory.
const LAYER_RECORD: &str = "layer.json";

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {step} in the image store: {source}")]
    Io { step: &'static str, source: io::Error },
    #[error("image {0} not found")]
    NotFound(String),
    #[error("cannot set up TLS for registries: {0}")]
    Tls(#[source] rustls::Error),
}

/// One image as the index keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredImage {
    /// Digest of the configuration.
    pub id: Digest,
    pub manifest: Digest,
    /// Whole names with tag: `docker.io/library/nginx:1.27`.
    pub tags: BTreeSet<String>,
    /// Whole names with digest: `docker.io/library/nginx@sha256:…`.
    pub digests: BTreeSet<String>,
    /// Chain digests, lowest layer first.
    pub layers: Vec<Digest>,
    /// Bytes of the configuration and of the unpacked layers.
    pub size: u64,
    pub config: ProcessConfig,
    /// Never garbage collected: made here, cannot be pulled again.
    pub pinned: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct Index {
    images: BTreeMap<Digest, StoredImage>,
    /// Unpacked bytes per layer, so that sizes need no walk.
    layer_sizes: BTreeMap<Digest, u64>,
}

/// `layer.json`.
#[derive(Serialize, Deserialize)]
struct LayerRecord {
    /// Of its files.
    bytes: u64,
}

struct Inner {
    index: Index,
    /// How many containers stand on each layer; such layers outlive their image.
    leases: BTreeMap<Digest, usize>,
}

/// The index and directories. Every method is one short critical section; unpacking happens outside of it.
pub(crate) struct Store {
    root: PathBuf,
    limits: ImageLimits,
    inner: Mutex<Inner>,
    /// Imports and pulls under way: their layers are not yet any image's, so nothing is collected meanwhile.
    busy: AtomicUsize,
}

/// How a layer is made durable.
#[derive(Clone, Copy)]
pub(crate) enum SyncScope {
    /// Each of its files: for a few. Waits for nothing else that the machine writes.
    Files,
    /// The whole file system: many times cheaper than a sync of each of many files.
    FileSystem,
}

/// A layer directory in the making: it is gone when dropped, unless it was committed.
pub(crate) struct NewLayer {
    path: PathBuf,
    /// Opened before anything is written, as a sync reports the failures since then.
    directory: File,
}

impl NewLayer {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NewLayer {
    fn drop(&mut self) {
        if let Err(error) = disk::remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "an unfinished layer is not removed before the next start");
        }
    }
}

/// Held while layers are being added.
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(&self.busy)
    }

    pub(crate) fn open(root: &Path, limits: ImageLimits) -> Result<Self, StoreError> {
        for directory in ["blobs/sha256", "layers", "tmp"] {
            fs::create_dir_all(root.join(directory)).map_err(io_error("create directories"))?;
        }
        // Whatever a crash left half-made.
        disk::empty(&root.join("tmp")).map_err(io_error("clean up"))?;
        let path = root.join("index.json");
        let index = match record::read(&path) {
            Ok(index) => index,
            Err(ReadError::Damaged(reason)) => {
                let moved_to = disk::set_aside(&path, &root.join("damaged"), "index.json");
                let moved_to = moved_to.map_err(io_error("move a damaged index aside"))?;
                tracing::warn!(
                    file = %path.display(), moved_to = %moved_to.display(), reason,
                    "the index of images is damaged and was moved aside: images are pulled again"
                );
                Index::default()
            }
            Err(error) if error.is_not_found() => Index::default(),
            Err(ReadError::Io(source)) => return Err(io_error("read the index")(source)),
        };
        let store = Self {
            root: root.to_owned(),
            limits,
            inner: Mutex::new(Inner { index, leases: BTreeMap::new() }),
            busy: AtomicUsize::new(0),
        };
        store.drop_incomplete()?;
        Ok(store)
    }

    /// Removes layers that are not complete, and images that lack one.
    fn drop_incomplete(&self) -> Result<(), StoreError> {
        let index = &mut self.inner.lock().index;
        let recorded = std::mem::take(&mut index.layer_sizes);
        for entry in fs::read_dir(self.root.join("layers")).map_err(io_error("list layers"))? {
            let path = entry.map_err(io_error("list layers"))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let chain = format!("sha256:{name}").parse::<Digest>().ok();
            let record = record::read::<LayerRecord>(&path.join(LAYER_RECORD)).map(|record| record.bytes);
            let bytes = match (&chain, record) {
                (Some(chain), Err(error)) if error.is_not_found() => {
                    // The first version kept its records in the index.
                    recorded.get(chain).copied().ok_or(error)
                }
                (_, record) => record,
            };
            match (chain, bytes) {
                (Some(chain), Ok(bytes)) if path.join("fs").is_dir() => drop(index.layer_sizes.insert(chain, bytes)),
                (_, bytes) => {
                    let reason = bytes.err().map(|error| error.to_string());
                    tracing::warn!(layer = %path.display(), reason, "a layer is not complete: it is removed");
                    self.remove_layer(&path)?;
                }
            }
        }
        let layers = &index.layer_sizes;
        index.images.retain(|id, image| {
            let is_whole = image.layers.iter().all(|layer| layers.contains_key(layer));
            if !is_whole {
                tracing::warn!(image = %id, names = ?image.tags, "an image lacks layers: it must be pulled again");
            }
            is_whole
        });
        Ok(())
    }

    /// In two steps, so that what is left in its place is never half of it.
    fn remove_layer(&self, path: &Path) -> Result<(), StoreError> {
        let away = self.temporary();
        fs::rename(path, &away).and_then(|()| disk::remove(&away)).map_err(io_error("remove a layer"))
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.root.join("tmp").join(uuid::Uuid::new_v4().simple().to_string())
    }

    pub(crate) fn limits(&self) -> ImageLimits {
        self.limits
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn layer(&self, chain: &Digest) -> PathBuf {
        self.root.join("layers").join(chain.hex()).join("fs")
    }

    pub(crate) fn has_layer(&self, chain: &Digest) -> bool {
        self.layer(chain).is_dir()
    }

    /// A directory in which to make a layer.
    pub(crate) fn new_layer(&self) -> Result<NewLayer, StoreError> {
        let path = self.temporary();
        let opened = fs::create_dir(&path).and_then(|()| File::open(&path));
        Ok(NewLayer { directory: opened.map_err(io_error("make a layer"))?, path })
    }

    /// Makes an unpacked directory (holding `fs`) the layer `chain`. If somebody was faster, theirs stays.
    pub(crate) fn commit_layer(
        &self,
        chain: &Digest,
        layer: &NewLayer,
        bytes: u64,
        scope: SyncScope,
    ) -> Result<(), StoreError> {
        let layers = self.root.join("layers");
        let written = || -> io::Result<()> {
            fs::write(layer.path.join(LAYER_RECORD), record::encode(&LayerRecord { bytes })?)?;
            match scope {
                SyncScope::FileSystem => Ok(rustix::fs::syncfs(&layer.directory)?),
                SyncScope::Files => disk::sync_tree(&layer.path),
            }
        };
        written().map_err(io_error("write a layer to disk"))?;
        let mut inner = self.inner.lock();
        match fs::rename(&layer.path, layers.join(chain.hex())) {
            Ok(()) => {
                inner.index.layer_sizes.insert(chain.clone(), bytes);
            }
            Err(_) if self.has_layer(chain) => return Ok(()),
            Err(source) => return Err(io_error("commit a layer")(source)),
        }
        disk::sync_directory(&layers).map_err(io_error("commit a layer"))
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    pub(crate) fn write_blob(&self, bytes: &[u8]) -> Result<Digest, StoreError> {
        let digest = Digest::of(bytes);
        if fs::read(self.blob(&digest)).is_ok_and(|there| there == bytes) {
            return Ok(digest);
        }
        disk::write_durably(&self.blob(&digest), bytes).map_err(io_error("write a blob"))?;
        Ok(digest)
    }

    /// Adds an image, or names to one. A tag moves from whatever image had it.
    pub(crate) fn add(&self, image: NewImage<'_>) -> Result<StoredImage, StoreError> {
        let config_bytes = serde_json::to_vec(&image.config.config).map(|b| b.len()).unwrap_or_default();
        let mut inner = self.inner.lock();
        if let Some(tag) = image.reference.and_then(Reference::tagged) {
            for other in inner.index.images.values_mut() {
                other.tags.remove(&tag);
            }
        }
        let unpacked: u64 = image.layers.iter().filter_map(|layer| inner.index.layer_sizes.get(layer)).sum();
        let stored = inner.index.images.entry(image.id.clone()).or_insert_with(|| StoredImage {
            id: image.id.clone(),
            manifest: image.manifest.clone(),
            tags: BTreeSet::new(),
            digests: BTreeSet::new(),
            layers: image.layers.clone(),
            size: unpacked + config_bytes as u64,
            config: image.config.config.clone(),
            pinned: image.pinned,
        });
        if let Some(reference) = image.reference {
            stored.tags.extend(reference.tagged());
            stored.digests.insert(format!("{}@{}", reference.name(), image.top));
        }
        let stored = stored.clone();
        // An image that just lost its last tag to this one is kept only if a digest still names it.
        inner.index.images.retain(|_, i| !i.tags.is_empty() || !i.digests.is_empty());
        self.save(&inner.index)?;
        Ok(stored)
    }

    pub(crate) fn list(&self) -> Vec<StoredImage> {
        self.inner.lock().index.images.values().cloned().collect()
    }

    /// Finds by id (`sha256:…`, bare hex, or a prefix of at least 12 digits) or by name.
    pub(crate) fn find(&self, name: &str) -> Option<StoredImage> {
        find(&self.inner.lock().index, name).cloned()
    }

    /// Drops a name, or by id the whole image, and then every layer nobody needs.
    pub(crate) fn remove(&self, name: &str) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let Some(image) = find(&inner.index, name) else {
            return Err(StoreError::NotFound(name.to_owned()));
        };
        let id = image.id.clone();
        let whole = name.parse::<Reference>().ok();
        if let Some(image) = inner.index.images.get_mut(&id) {
            let by_tag = whole.as_ref().and_then(Reference::tagged).is_some_and(|tag| image.tags.remove(&tag));
            if !by_tag || image.tags.is_empty() {
                inner.index.images.remove(&id);
            }
        }
        self.collect(&mut inner)
    }

    /// Keeps `layers` on disk until the matching [`Store::release`].
    pub(crate) fn lease(&self, layers: &[Digest]) {
        let mut inner = self.inner.lock();
        for layer in layers {
            *inner.leases.entry(layer.clone()).or_default() += 1;
        }
    }

    pub(crate) fn release(&self, layers: &[Digest]) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        for layer in layers {
            if let Some(count) = inner.leases.get_mut(layer) {
                *count = count.saturating_sub(1);
            }
        }
        inner.leases.retain(|_, count| *count > 0);
        let needed = needed_layers(&inner);
        match layers.iter().all(|layer| needed.contains(layer)) {
            true => Ok(()),
            false => self.collect(&mut inner),
        }
    }

    /// Removes layers and blobs that no image and no container needs.
    fn collect(&self, inner: &mut Inner) -> Result<(), StoreError> {
        if self.busy.load(Ordering::SeqCst) > 0 {
            // The next removal finds what is left now.
            return self.save(&inner.index);
        }
        let needed = needed_layers(inner);
        let blobs: BTreeSet<_> = inner.index.images.values().flat_map(|i| [i.id.clone(), i.manifest.clone()]).collect();
        let keep_blob = |hex: &str| blobs.iter().any(|blob| blob.hex() == hex);
        inner.index.layer_sizes.retain(|layer, _| needed.contains(layer));
        self.save(&inner.index)?;
        for entry in fs::read_dir(self.root.join("layers")).map_err(io_error("list layers"))? {
            let entry = entry.map_err(io_error("list layers"))?;
            if !needed.iter().any(|layer| entry.file_name() == layer.hex()) {
                self.remove_layer(&entry.path())?;
            }
        }
        disk::prune(&self.root.join("blobs/sha256"), keep_blob).map_err(io_error("remove blobs"))
    }

    fn save(&self, index: &Index) -> Result<(), StoreError> {
        let written =
            record::encode(index).and_then(|bytes| disk::write_durably(&self.root.join("index.json"), &bytes));
        written.map_err(io_error("write the index"))
    }

    /// Unpacked bytes of all layers.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.inner.lock().index.layer_sizes.values().sum()
    }
}

/// What [`Store::add`] records.
pub(crate) struct NewImage<'a> {
    pub id: Digest,
    pub manifest: Digest,
    /// What the reference's digest form names: the index if there was one, else the manifest.
    pub top: Digest,
    pub reference: Option<&'a Reference>,
    pub layers: Vec<Digest>,
    pub config: &'a ImageConfig,
    pub pinned: bool,
}

fn needed_layers(inner: &Inner) -> BTreeSet<Digest> {
    inner
        .index
        .images
        .values()
        .flat_map(|image| image.layers.iter().cloned())
        .chain(inner.leases.keys().cloned())
        .collect()
}

fn find<'a>(index: &'a Index, name: &str) -> Option<&'a StoredImage> {
    let hex = name.strip_prefix("sha256:").unwrap_or(name);
    if hex.len() >= 12 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        let mut fitting = index.images.values().filter(|image| image.id.hex().starts_with(hex));
        if let (Some(image), None) = (fitting.next(), fitting.next()) {
            return Some(image);
        }
    }
    let reference: Reference = name.parse().ok()?;
    let digest_form = reference.digest.as_ref().map(|digest| format!("{}@{digest}", reference.name()));
    let tagged = reference.tagged();
    index.images.values().find(|image| match (&digest_form, &tagged) {
        // The digest is the stronger promise; a tag beside it is a comment.
        (Some(digest), _) => image.digests.contains(digest),
        (None, Some(tag)) => image.tags.contains(tag),
        (None, None) => false,
    })
}

pub(super) fn io_error(step: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { step, source }
}
