//! The rules of the house that no compiler checks: layers, file headers and sizes, generated files, the tests that documents name.

mod cves;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use self::cves::CVES;
use crate::codegen;

/// A file longer than this has more than one job.
const MAX_LINES: usize = 800;

/// Who may know whom among our own crates.
const LAYERS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("store", &["threads"]),
    ("cri", &[]),
    ("disk_usage", &[]),
    ("nft", &[]),
    ("serving", &[]),
    ("spdy", &[]),
    ("threads", &[]),
    ("testkit", &[]),
    ("x509", &[]),
    ("network", &["nft"]),
    ("cel", &["api"]),
    ("client", &["api"]),
    ("apiserver", &["api", "cel", "serving", "spdy", "store", "threads", "x509"]),
    ("controllers", &["api", "cel", "client", "x509"]),
    ("scheduler", &["api", "client"]),
    ("kubelet", &["api", "client", "cri", "disk_usage", "serving", "x509"]),
    ("runtime", &["cri", "disk_usage", "spdy"]),
    ("proxy", &["api", "client", "nft"]),
    ("dns", &["api", "client"]),
];

pub(crate) fn run() -> Result<()> {
    let root = crate::root()?;
    let mut problems = Vec::new();
    layers(&root, &mut problems)?;
    for file in sources(&root)? {
        source(&root, &file, &mut problems)?;
    }
    let (tables, docs) = codegen::generate()?;
    for (path, wanted) in [(codegen::TABLES, tables.into_bytes()), (codegen::DOCS, docs)] {
        if std::fs::read(root.join(path)).unwrap_or_default() != wanted {
            problems.push(format!("{path} is not what `cargo xtask codegen` writes: run it"));
        }
    }
    problems.extend(cves::problems(&std::fs::read_to_string(root.join(CVES)).context(CVES)?, &tests(&root)?));
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

fn layers(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join("crates"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        if name == "ferry" {
            continue; // The only one that joins them.
        }
        let Some((_, allowed)) = LAYERS.iter().find(|(known, _)| *known == name) else {
            problems.push(format!("crates/{name} has no place in the layers: add it to xtask/src/tidy.rs"));
            continue;
        };
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).context("manifest")?;
        let product = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for (other, _) in LAYERS.iter().filter(|(other, _)| *other != name) {
            let depends = product
                .lines()
                .any(|line| line.starts_with(&format!("{other}.")) || line.starts_with(&format!("{other} =")));
            if depends && !allowed.contains(other) {
                problems.push(format!("crates/{name} must not know crates/{other}"));
            }
        }
    }
    Ok(())
}

fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = ["crates", "xtask/src", "tests", "benches"].map(|folder| root.join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// The names of all tests.
fn tests(root: &Path) -> Result<HashSet<String>> {
    let mut found = HashSet::new();
    for file in sources(root)? {
        found.extend(cves::tests(&std::fs::read_to_string(file)?));
    }
    Ok(found)
}

fn source(root: &Path, path: &Path, problems: &mut Vec<String>) -> Result<()> {
    let shown = path.strip_prefix(root).unwrap_or(path).display();
    let text = std::fs::read_to_string(path)?;
    if !text.starts_with("//!") {
        problems.push(format!("{shown} does not open with a //! line that says its one job"));
    }
    let generated = path.file_name().is_some_and(|name| name == "generated.rs");
    let lines = text.lines().count();
    if lines > MAX_LINES && !generated {
        problems.push(format!("{shown} has {lines} lines: split it"));
    }
    // What several integration tests share cannot be named otherwise.
    let shared_by_tests = path.components().any(|part| part.as_os_str() == "tests");
    if path.file_name().is_some_and(|name| name == "mod.rs") && !shared_by_tests {
        problems.push(format!("{shown}: name the module's file after the module"));
    }
    Ok(())
}
