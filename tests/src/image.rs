//! Images for tests: one static program in an archive.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{ferry_binary, run};

/// A one-layer OCI archive of the ferry binary that runs with `arguments`.
pub fn archive(dir: &Path, name: &str, arguments: &[&str]) -> Result<String> {
    archive_of(dir, name, &ferry_binary(), "ferry", arguments)
}

/// A one-layer OCI archive with the static `program` as `/{as_name}` and entrypoint, made with what every Debian has.
pub fn archive_of(dir: &Path, name: &str, program: &Path, as_name: &str, arguments: &[&str]) -> Result<String> {
    let dir = &dir.join(name.replace(['/', ':'], "-"));
    let layout = dir.join("layout");
    std::fs::create_dir_all(layout.join("blobs/sha256"))?;
    let root = dir.join("root");
    std::fs::create_dir_all(&root)?;
    std::fs::copy(program, root.join(as_name))?;
    let layer = dir.join("layer.tar");
    run("tar", &["-C", &text(&root)?, "-cf", &text(&layer)?, as_name])?;
    let blob = |path: &Path| -> Result<(String, u64)> {
        let sum = run("sha256sum", &[&text(path)?])?;
        let digest = sum.split(' ').next().context("sum")?.to_owned();
        let size = std::fs::metadata(path)?.len();
        std::fs::copy(path, layout.join("blobs/sha256").join(&digest))?;
        Ok((digest, size))
    };
    let (layer_digest, layer_size) = blob(&layer)?;
    let config = dir.join("config.json");
    std::fs::write(
        &config,
        format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"Entrypoint":["/{as_name}"],"Cmd":{arguments:?}}},"rootfs":{{"type":"layers","diff_ids":["sha256:{layer_digest}"]}}}}"#
        ),
    )?;
    let (config_digest, config_size) = blob(&config)?;
    let manifest = dir.join("manifest.json");
    std::fs::write(
        &manifest,
        format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:{config_digest}","size":{config_size}}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:{layer_digest}","size":{layer_size}}}]}}"#
        ),
    )?;
    let (manifest_digest, manifest_size) = blob(&manifest)?;
    std::fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    std::fs::write(
        layout.join("index.json"),
        format!(
            r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:{manifest_digest}","size":{manifest_size},"annotations":{{"org.opencontainers.image.ref.name":"{name}","io.containerd.image.name":"{name}"}}}}]}}"#
        ),
    )?;
    let out = text(&dir.join("image.tar"))?;
    run("tar", &["-C", &text(&layout)?, "-cf", &out, "."])?;
    Ok(out)
}

/// A path as an argument.
pub fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().context("UTF-8 path")?.to_owned())
}
