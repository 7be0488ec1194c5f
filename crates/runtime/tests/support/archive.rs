//! Builds image archives entry by entry, good ones and bad ones.
#![allow(dead_code, unreachable_pub, clippy::indexing_slicing)]

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use runtime::Digest;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

/// A layer archive under construction.
#[derive(Clone)]
pub struct Layer(Vec<u8>);

#[derive(Clone, Copy)]
pub enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Layer {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    fn entry(self, path: &str, kind: EntryType, mode: u32, owner: u64, data: &[u8], link: &str) -> Result<Self> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        // The library refuses the paths that the unpacker must survive, so the bytes are written by hand.
        let fields = header.as_gnu_mut().expect("a GNU header");
        fields.name[..path.len()].copy_from_slice(path.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.append(&header, data)
    }

    fn append(mut self, header: &Header, data: &[u8]) -> Result<Self> {
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        Ok(self)
    }

    pub fn file(self, path: &str, mode: u32, text: &str) -> Result<Self> {
        self.entry(path, EntryType::Regular, mode, 0, text.as_bytes(), "")
    }

    pub fn owned(self, path: &str, owner: u64, text: &str) -> Result<Self> {
        self.entry(path, EntryType::Regular, 0o644, owner, text.as_bytes(), "")
    }

    pub fn copy(self, path: &str, from: &Path) -> Result<Self> {
        self.entry(path, EntryType::Regular, 0o755, 0, &std::fs::read(from)?, "")
    }

    pub fn directory(self, path: &str, mode: u32) -> Result<Self> {
        self.entry(path, EntryType::Directory, mode, 0, &[], "")
    }

    pub fn symlink(self, path: &str, to: &str) -> Result<Self> {
        self.entry(path, EntryType::Symlink, 0o777, 0, &[], to)
    }

    pub fn hard_link(self, path: &str, to: &str) -> Result<Self> {
        self.entry(path, EntryType::Link, 0o644, 0, &[], to)
    }

    pub fn device(self, path: &str) -> Result<Self> {
        self.entry(path, EntryType::Char, 0o666, 0, &[], "")
    }

    /// A file with an extended attribute, by a PAX header.
    pub fn attributed(self, path: &str, name: &str, value: &[u8]) -> Result<Self> {
        self.extended(path, &format!("SCHILY.xattr.{name}"), value)
    }

    /// A file with a PAX header.
    pub fn extended(mut self, path: &str, key: &str, value: &[u8]) -> Result<Self> {
        let mut extended = Builder::new(Vec::new());
        extended.append_pax_extensions([(key, value)])?;
        self.0.extend_from_slice(extended.get_ref());
        self.file(path, 0o644, "x")
    }

    /// The content digest and the bytes to ship.
    pub fn pack(self, packing: Packing) -> Result<(Digest, Vec<u8>)> {
        let mut plain = self.0;
        plain.extend_from_slice(&[0; 1024]);
        let diff_id = Digest::of(&plain);
        let shipped = match packing {
            Packing::Plain => plain,
            Packing::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(&plain)?;
                encoder.finish()?
            }
            Packing::Zstd => zstd::encode_all(plain.as_slice(), 1)?,
        };
        Ok((diff_id, shipped))
    }
}

fn config(layers: &[(Digest, Vec<u8>)], process: Value) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|(diff_id, _)| diff_id.to_string()).collect();
    let config = json!({ "architecture": "amd64", "os": "linux", "config": process, "rootfs": { "type": "layers", "diff_ids": diff_ids } });
    config.to_string().into_bytes()
}

fn put(archive: &mut Builder<Vec<u8>>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    Ok(archive.append_data(&mut header, name, bytes)?)
}

fn blob(archive: &mut Builder<Vec<u8>>, bytes: &[u8]) -> Result<Value> {
    let digest = Digest::of(bytes);
    put(archive, &format!("blobs/sha256/{}", digest.hex()), bytes)?;
    Ok(json!({ "mediaType": "application/octet-stream", "digest": digest.to_string(), "size": bytes.len() }))
}

/// An OCI layout in a tar file, with an index for several platforms of which one is ours.
pub fn oci(name: &str, layers: &[(Digest, Vec<u8>)], process: Value) -> Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    let config = blob(&mut archive, &config(layers, process))?;
    let layers = layers.iter().map(|(_, bytes)| blob(&mut archive, bytes)).collect::<Result<Vec<_>>>()?;
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string();
    let mut ours = blob(&mut archive, manifest.as_bytes())?;
    ours["platform"] = json!({ "os": "linux", "architecture": "amd64" });
    let foreign = json!({ "digest": Digest::of(b"absent").to_string(), "size": 1, "platform": { "os": "linux", "architecture": "s390x" } });
    let index = json!({ "schemaVersion": 2, "manifests": [foreign, ours] }).to_string();
    let mut top = blob(&mut archive, index.as_bytes())?;
    top["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    put(&mut archive, "index.json", json!({ "schemaVersion": 2, "manifests": [top] }).to_string().as_bytes())?;
    put(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(archive.into_inner()?)
}

/// What `docker save` wrote before it learned OCI.
pub fn docker(name: &str, layers: &[(Digest, Vec<u8>)], process: Value) -> Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    let config = config(layers, process);
    let mut paths = Vec::new();
    for (n, (_, bytes)) in layers.iter().enumerate() {
        paths.push(format!("{n}/layer.tar"));
        put(&mut archive, &format!("{n}/layer.tar"), bytes)?;
    }
    put(&mut archive, "config.json", &config)?;
    let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": paths }]);
    put(&mut archive, "manifest.json", manifest.to_string().as_bytes())?;
    Ok(archive.into_inner()?)
}
