//! What a cluster may not leave behind: interfaces, rules, mounts, cgroups, shims.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

/// The machine before the test; [`Leaks::none_since`] compares.
pub struct Leaks {
    before: BTreeSet<String>,
    dir: String,
}

impl Leaks {
    pub fn watch(dir: &Path) -> Self {
        let dir = dir.display().to_string();
        Self { before: seen(&dir), dir }
    }

    pub fn none_since(&self) -> Result<()> {
        let leaked: Vec<String> = seen(&self.dir).difference(&self.before).cloned().collect();
        ensure!(leaked.is_empty(), "left behind: {leaked:#?}");
        Ok(())
    }

    /// The shims that run now.
    pub fn shims(&self) -> Vec<String> {
        seen(&self.dir).into_iter().filter(|what| what.starts_with("shim ")).collect()
    }
}

fn seen(dir: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        found.insert(format!("interface {}", entry.file_name().to_string_lossy()));
    }
    let tables = Command::new("nft").args(["list", "tables"]).output().map(|output| output.stdout).unwrap_or_default();
    found.extend(String::from_utf8_lossy(&tables).lines().map(|line| format!("rules of {line}")));
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    found.extend(mounts.lines().filter(|line| line.contains(dir)).map(|line| format!("mount {line}")));
    cgroups(Path::new("/sys/fs/cgroup"), 0, &mut found);
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(" shim ") && words.contains(dir) {
            found.insert(format!("shim {}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

fn cgroups(dir: &Path, depth: usize, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if !path.is_dir() || depth > 6 {
            continue;
        }
        // A pod's own group; the parents of all pods stay, as upstream's do.
        if path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("pod")) {
            found.insert(format!("cgroup {}", path.display()));
        }
        cgroups(&path, depth + 1, found);
    }
}
