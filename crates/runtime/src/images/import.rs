//! Reads images from archives: OCI layouts (`index.json`) and `docker save` files (`manifest.json`), plain or compressed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::digest::{Digest, DigestError};
use super::limits::{DOCUMENT_MAX_BYTES, ENTRY_HEADERS_MAX_BYTES, ImageLimits, LimitError, MAX_LAYERS, Meter, Metered};
use super::manifest::{Descriptor, Document, ImageConfig, Manifest, ManifestError, Platform};
use super::reference::{Reference, ReferenceError};
use super::store::{NewImage, Store, StoreError, StoredImage, SyncScope};
use super::unpack::{UnpackError, decompress, unpack};
use crate::disk;

/// Images of one archive.
const MAX_IMAGES: usize = 1000;
/// The headers of all files of an archive: their names are kept while it is read.
const HEADERS_MAX_BYTES: u64 = 64 << 20;
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("cannot read {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("{0} holds neither an OCI layout (index.json) nor a docker archive (manifest.json)")]
    NoImage(PathBuf),
    #[error("the archive names {0}, but does not hold it")]
    Missing(String),
    #[error("{name} in the archive cannot be used: {source}")]
    Malformed { name: String, source: ManifestError },
    #[error("{name} in the archive is larger than {DOCUMENT_MAX_BYTES} bytes")]
    TooLarge { name: String },
    #[error("{name} in the archive does not match its digest")]
    Corrupt { name: String },
    #[error("{name} in the archive does not have the size that its descriptor says")]
    Size { name: String },
    #[error(
        "the headers of {0} are larger than {ENTRY_HEADERS_MAX_BYTES} bytes for one file, or {HEADERS_MAX_BYTES} together"
    )]
    Headers(PathBuf),
    #[error("the archive has {0} images, more than {MAX_IMAGES}")]
    Images(usize),
    #[error(
        "the archive is larger than {0} bytes uncompressed: decompress it yourself, or raise --image-layer-max-size"
    )]
    Compressed(u64),
    #[error("the archive has no image for {0}")]
    Platform(String),
    #[error("the image has {layers} layers, its configuration {diff_ids}")]
    LayerCount { layers: usize, diff_ids: usize },
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Imports every image of an archive. Blocks.
pub(crate) fn import(store: &Store, path: &Path) -> Result<Vec<StoredImage>, ImportError> {
    let scratch = store.temporary();
    let outcome = Files::open(path, &scratch, store.limits()).and_then(|files| import_files(store, &files, path));
    disk::remove(&scratch).map_err(super::store::io_error("clean up"))?;
    outcome
}

fn import_files(store: &Store, files: &Files, path: &Path) -> Result<Vec<StoredImage>, ImportError> {
    // A newer `docker save` writes both; the OCI index carries digests, so it is the better source.
    if files.has("index.json") {
        return import_layout(store, files);
    }
    if files.has("manifest.json") {
        return import_docker(store, files);
    }
    Err(ImportError::NoImage(path.to_owned()))
}

fn import_layout(store: &Store, files: &Files) -> Result<Vec<StoredImage>, ImportError> {
    let name = || "index.json".to_owned();
    let parsed = Document::parse(&files.document("index.json")?, "");
    let index = match parsed.map_err(|source| ImportError::Malformed { name: name(), source })? {
        Document::Index(index) => index,
        Document::Manifest(_) => return Err(ImportError::Malformed { name: name(), source: ManifestError::Neither }),
    };
    if index.manifests.len() > MAX_IMAGES {
        return Err(ImportError::Images(index.manifests.len()));
    }
    let mut images = Vec::new();
    for entry in &index.manifests {
        let name = entry.annotations.get(CONTAINERD_NAME).or_else(|| entry.annotations.get(REF_NAME));
        let reference = name.map(|name| name.parse::<Reference>()).transpose()?;
        let (manifest_digest, manifest) = files.manifest(entry, 4)?;
        let config_bytes = files.verified(&manifest.config)?;
        let layers = manifest.layers.iter().map(|layer| files.sized(layer)).collect::<Result<Vec<_>, _>>()?;
        let names = ImageNames {
            manifest: manifest_digest,
            top: entry.digest.clone(),
            references: reference.into_iter().collect(),
        };
        store.write_blob(&files.document(&blob_name(&names.manifest))?)?;
        images.push(add(store, files, &config_bytes, &layers, &names)?);
    }
    Ok(images)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

fn import_docker(store: &Store, files: &Files) -> Result<Vec<StoredImage>, ImportError> {
    let malformed =
        |source: serde_json::Error| ImportError::Malformed { name: "manifest.json".to_owned(), source: source.into() };
    let listed: Vec<DockerImage> = serde_json::from_slice(&files.document("manifest.json")?).map_err(malformed)?;
    if listed.len() > MAX_IMAGES {
        return Err(ImportError::Images(listed.len()));
    }
    let mut images = Vec::new();
    for image in listed {
        let config_bytes = files.document(&image.config)?;
        // This format has no manifest of its own, so one is written that says the same.
        let manifest = Manifest {
            schema_version: 2,
            media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
            config: Descriptor {
                media_type: "application/vnd.oci.image.config.v1+json".to_owned(),
                digest: Digest::of(&config_bytes),
                size: config_bytes.len() as u64,
                platform: None,
                annotations: Default::default(),
            },
            layers: Vec::new(),
        };
        let manifest = store.write_blob(&serde_json::to_vec(&manifest).map_err(malformed)?)?;
        let references = image.repo_tags.unwrap_or_default().iter().map(|tag| tag.parse()).collect::<Result<_, _>>()?;
        let names = ImageNames { top: manifest.clone(), manifest, references };
        images.push(add(store, files, &config_bytes, &image.layers, &names)?);
    }
    Ok(images)
}

struct ImageNames {
    manifest: Digest,
    top: Digest,
    references: Vec<Reference>,
}

fn add(
    store: &Store,
    files: &Files,
    config_bytes: &[u8],
    layers: &[String],
    names: &ImageNames,
) -> Result<StoredImage, ImportError> {
    let malformed = |source| ImportError::Malformed { name: "the image configuration".to_owned(), source };
    let config: ImageConfig = serde_json::from_slice(config_bytes).map_err(|source| malformed(source.into()))?;
    let diff_ids = &config.rootfs.diff_ids;
    if diff_ids.len() > MAX_LAYERS {
        return Err(malformed(ManifestError::Layers(diff_ids.len())));
    }
    if diff_ids.len() != layers.len() {
        return Err(ImportError::LayerCount { layers: layers.len(), diff_ids: diff_ids.len() });
    }
    let mut chain: Vec<Digest> = Vec::new();
    for (diff_id, name) in diff_ids.iter().zip(layers) {
        unpack_layer(store, &mut chain, diff_id, || files.open_blob(name))?;
    }
    let id = store.write_blob(config_bytes)?;
    let mut references = names.references.iter().map(Some).collect::<Vec<_>>();
    if references.is_empty() {
        references.push(None);
    }
    let mut stored = None;
    for reference in references {
        // An image without a name in the archive is known by its digest.
        let unnamed = format!("{}/import@{}", super::reference::LOCAL_REGISTRY, names.top).parse()?;
        stored = Some(store.add(NewImage {
            id: id.clone(),
            manifest: names.manifest.clone(),
            top: names.top.clone(),
            reference: Some(reference.unwrap_or(&unnamed)),
            layers: chain.clone(),
            config: &config,
            pinned: false,
        })?);
    }
    stored.ok_or_else(|| ImportError::Missing("image".to_owned()))
}

/// Unpacks one layer on top of `chain` unless it is there already, and extends the chain.
pub(crate) fn unpack_layer<R: Read + Send, E: From<UnpackError> + From<StoreError>>(
    store: &Store,
    chain: &mut Vec<Digest>,
    diff_id: &Digest,
    open: impl FnOnce() -> Result<R, E>,
) -> Result<(), E> {
    let id = Digest::chain(chain.last(), diff_id);
    if !store.has_layer(&id) {
        let lower: Vec<PathBuf> = chain.iter().rev().map(|layer| store.layer(layer)).collect();
        let layer = store.new_layer()?;
        let bytes = unpack(open()?, diff_id, &lower, layer.path(), store.limits())?;
        for name in ["work", "merged"] {
            disk::remove(&layer.path().join(name)).map_err(super::store::io_error("clean up"))?;
        }
        store.commit_layer(&id, &layer, bytes, SyncScope::FileSystem)?;
    }
    chain.push(id);
    Ok(())
}

/// Where each file of the archive starts. A compressed archive is unpacked to a scratch file first.
struct Files {
    path: PathBuf,
    entries: HashMap<String, (u64, u64)>,
}

impl Files {
    fn open(path: &Path, scratch: &Path, limits: ImageLimits) -> Result<Self, ImportError> {
        let fail = |source| ImportError::Open { path: path.to_owned(), source };
        let mut start = [0; 4];
        let mut file = File::open(path).map_err(fail)?;
        let read = file.read(&mut start).map_err(fail)?;
        let compressed = read == 4 && (start.starts_with(&[0x1f, 0x8b]) || start == [0x28, 0xb5, 0x2f, 0xfd]);
        let mut source = path.to_owned();
        if compressed {
            file.rewind().map_err(fail)?;
            let mut plain = decompress(file).map_err(fail)?.take(limits.layer_max_bytes.saturating_add(1));
            let bytes = io::copy(&mut plain, &mut File::create(scratch).map_err(fail)?).map_err(fail)?;
            if bytes > limits.layer_max_bytes {
                return Err(ImportError::Compressed(limits.layer_max_bytes));
            }
            source = scratch.to_owned();
        }
        // Contents are passed over by seeking, so the meter counts headers alone.
        let meter = Meter::new(ImageLimits { layer_max_bytes: HEADERS_MAX_BYTES, layer_max_entries: u64::MAX });
        let mut archive = tar::Archive::new(Metered::new(File::open(&source).map_err(fail)?, meter.clone()));
        let mut entries = HashMap::new();
        let mut links = Vec::new();
        let mut listed = archive.entries_with_seek().map_err(fail)?;
        loop {
            meter.begin_headers();
            let Some(entry) = listed.next() else { break };
            let entry = entry.map_err(|source| match LimitError::of(&source) {
                Some(_) => ImportError::Headers(path.to_owned()),
                None => fail(source),
            })?;
            let name = clean(&entry.path().map_err(fail)?);
            match entry.link_name().map_err(fail)? {
                // `docker save` links a layer that several images share.
                Some(target) => {
                    links.push((name.clone(), clean(&Path::new(&name).parent().unwrap_or(Path::new("")).join(target))))
                }
                None => drop(entries.insert(name, (entry.raw_file_position(), entry.size()))),
            }
        }
        for (name, target) in links {
            if let Some(place) = entries.get(&target).copied() {
                entries.insert(name, place);
            }
        }
        Ok(Self { path: source, entries })
    }

    fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    fn open_blob(&self, name: &str) -> Result<io::Take<File>, ImportError> {
        let (offset, size) = self.entries.get(name).copied().ok_or_else(|| ImportError::Missing(name.to_owned()))?;
        let fail = |source| ImportError::Open { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(fail)?;
        file.seek(SeekFrom::Start(offset)).map_err(fail)?;
        Ok(file.take(size))
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImportError> {
        let mut bytes = Vec::new();
        self.open_blob(name)?
            .take(DOCUMENT_MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| ImportError::Open { path: self.path.clone(), source })?;
        match bytes.len() as u64 > DOCUMENT_MAX_BYTES {
            true => Err(ImportError::TooLarge { name: name.to_owned() }),
            false => Ok(bytes),
        }
    }

    /// The name of a blob, if the archive holds it in the size it should have.
    fn sized(&self, descriptor: &Descriptor) -> Result<String, ImportError> {
        let name = blob_name(&descriptor.digest);
        match self.entries.get(&name) {
            None => Err(ImportError::Missing(name)),
            Some((_, size)) if *size != descriptor.size => Err(ImportError::Size { name }),
            Some(_) => Ok(name),
        }
    }

    fn verified(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ImportError> {
        let name = self.sized(descriptor)?;
        let bytes = self.document(&name)?;
        match Digest::of(&bytes) == descriptor.digest {
            true => Ok(bytes),
            false => Err(ImportError::Corrupt { name }),
        }
    }

    /// Follows indexes (at most `depth` deep) to this platform's manifest.
    fn manifest(&self, entry: &Descriptor, depth: u8) -> Result<(Digest, Manifest), ImportError> {
        let here = Platform::here();
        let missing = || ImportError::Platform(format!("{}/{}", here.os, here.architecture));
        let parsed = Document::parse(&self.verified(entry)?, &entry.media_type)
            .map_err(|source| ImportError::Malformed { name: blob_name(&entry.digest), source })?;
        match parsed {
            Document::Manifest(manifest) => Ok((entry.digest.clone(), manifest)),
            Document::Index(_) if depth == 0 => Err(missing()),
            Document::Index(index) => self.manifest(index.select(&here).ok_or_else(missing)?, depth - 1),
        }
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn clean(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for component in path.components() {
        match component {
            std::path::Component::Normal(part) => parts.extend(part.to_str()),
            std::path::Component::ParentDir => drop(parts.pop()),
            _ => (),
        }
    }
    parts.join("/")
}
