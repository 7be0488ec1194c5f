//! Images made of files of this machine: the binary that runs is also an image, so a cluster without registry can run something.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use super::digest::{Digest, Hashing};
use super::manifest::{Descriptor, ImageConfig, Manifest, Platform, ProcessConfig, RootFs};
use super::reference::Reference;
use super::store::{NewImage, Store, StoreError, StoredImage, SyncScope, io_error};
use crate::disk;

const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Blocks; some milliseconds when the files are unchanged, else as long as one read of them takes.
pub(super) fn add(
    store: &Store,
    reference: &Reference,
    files: &[(PathBuf, PathBuf)],
    config: ProcessConfig,
) -> Result<StoredImage, StoreError> {
    let mut known = Known::load(store.root());
    // There is no archive to hash: the layer is named by the content and place of its files.
    let mut content = String::new();
    for (host, inside) in files {
        let digest = known.digest(host).map_err(io_error("read a file for an image"))?;
        content.push_str(&format!("{} {digest}\n", inside.display()));
    }
    let diff_id = Digest::of(content.as_bytes());
    let chain = Digest::chain(None, &diff_id);
    if !store.has_layer(&chain) {
        let layer = store.new_layer()?;
        let bytes = lay_out(&layer.path().join("fs"), files).map_err(io_error("copy files into an image"))?;
        store.commit_layer(&chain, &layer, bytes, SyncScope::Files)?;
    }
    known.save(store.root()).map_err(io_error("write digests"))?;
    let platform = Platform::here();
    let config = ImageConfig {
        architecture: platform.architecture,
        os: platform.os,
        config,
        rootfs: RootFs { kind: "layers".to_owned(), diff_ids: vec![diff_id] },
    };
    let id = store.write_blob(&json(&config)?)?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
        config: Descriptor {
            media_type: "application/vnd.oci.image.config.v1+json".to_owned(),
            digest: id.clone(),
            size: 0,
            platform: None,
            annotations: BTreeMap::new(),
        },
        layers: Vec::new(),
    };
    let manifest = store.write_blob(&json(&manifest)?)?;
    let image = NewImage {
        id,
        top: manifest.clone(),
        manifest,
        reference: Some(reference),
        layers: vec![chain],
        config: &config,
        pinned: true,
    };
    store.add(image)
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|e| io_error("encode an image")(e.into()))
}

fn lay_out(root: &Path, files: &[(PathBuf, PathBuf)]) -> io::Result<u64> {
    fs::create_dir_all(root.join("tmp"))?;
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    fs::create_dir_all(root.join("etc"))?;
    fs::write(root.join("etc/passwd"), PASSWD)?;
    fs::write(root.join("etc/group"), GROUP)?;
    let mut bytes = 0;
    for (host, inside) in files {
        let relative: PathBuf = inside.components().filter(|c| matches!(c, Component::Normal(_))).collect();
        let target = root.join(relative);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        bytes += place(host, &target)?;
    }
    Ok(bytes)
}

/// A link to the same inode shares memory between the host's process and every container that runs it. It must then be a file
/// any user may run and nobody but root may change.
fn place(host: &Path, target: &Path) -> io::Result<u64> {
    let host = fs::canonicalize(host)?;
    let metadata = fs::metadata(&host)?;
    let shareable = metadata.mode() & 0o7777 == 0o755 && metadata.uid() == 0;
    if !shareable || fs::hard_link(&host, target).is_err() {
        fs::copy(&host, target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(0o755))?;
    }
    Ok(metadata.len())
}

/// Digests of files by identity, so that an unchanged binary is not read again at every start.
struct Known {
    entries: BTreeMap<String, Digest>,
}

impl Known {
    fn load(root: &Path) -> Self {
        let entries = fs::read(root.join("builtin.json")).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self { entries: entries.unwrap_or_default() }
    }

    fn digest(&mut self, path: &Path) -> io::Result<Digest> {
        let m = fs::metadata(path)?;
        let identity = format!("{}:{}:{}:{}.{}", m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
        if let Some(digest) = self.entries.get(&identity) {
            return Ok(digest.clone());
        }
        let (digest, _) = Hashing::new(File::open(path)?).finish()?;
        // Only the newest identity of a file is worth keeping; the list is as short as the list of files.
        if self.entries.len() > 64 {
            self.entries.clear();
        }
        self.entries.insert(identity, digest.clone());
        Ok(digest)
    }

    fn save(&self, root: &Path) -> io::Result<()> {
        // Damaged it is empty, and the files are read again.
        disk::write_atomically(&root.join("builtin.json"), &serde_json::to_vec(&self.entries)?)
    }
}
