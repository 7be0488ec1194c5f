//! Generates the schema tables of the built-in types from two published crates.
//!
//! `k8s-openapi` has JSON names, types, which fields are required, and documentation; `k8s-pb` has protobuf tags and, in
//! its field comments, the `+listType`, `+listMapKey`, `+patchMergeKey`, `+patchStrategy` and `+default` markers.

mod openapi;
mod protobuf;
mod render;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

/// Written by `cargo xtask codegen`; tidy checks that it is current.
pub(crate) const TABLES: &str = "crates/api/src/schema/generated.rs";
pub(crate) const DOCS: &str = "crates/api/src/schema/docs.zst";

pub(crate) fn run() -> Result<()> {
    let root = crate::root()?;
    let (tables, docs) = generate()?;
    std::fs::write(root.join(TABLES), tables)?;
    std::fs::write(root.join(DOCS), docs)?;
    Ok(())
}

/// The two files, as they should be.
pub(crate) fn generate() -> Result<(String, Vec<u8>)> {
    let mut types = openapi::read(&crate_source("k8s-openapi")?.join("src/v1_36"))?;
    protobuf::annotate(&mut types, &crate_source("k8s-pb")?.join("src"))?;
    Ok((render::tables(&types), zstd::encode_all(render::docs(&types).as_bytes(), 19)?))
}

/// Where cargo keeps the sources of a dependency.
fn crate_source(name: &str) -> Result<PathBuf> {
    let output = Command::new("cargo").args(["metadata", "--format-version=1"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata.get("packages").and_then(|p| p.as_array()).context("no packages")?;
    let manifest = packages
        .iter()
        .find(|p| p.get("name").and_then(|n| n.as_str()) == Some(name))
        .and_then(|p| p.get("manifest_path")?.as_str())
        .with_context(|| format!("{name} is not a dependency"))?;
    Ok(Path::new(manifest).parent().context("manifest has a folder")?.to_owned())
}
