//! Kubeconfig files: a context of ours merged into the user's, and one per component.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::pki::{self, Identity};

/// Where kubectl looks.
pub(crate) fn default_path() -> PathBuf {
    let from_environment = std::env::var("KUBECONFIG").ok();
    let first = from_environment.as_deref().and_then(|list| list.split(':').find(|p| !p.is_empty()));
    first.map_or_else(
        || PathBuf::from(std::env::var("HOME").unwrap_or_else(|_| "/root".into())).join(".kube/config"),
        PathBuf::from,
    )
}

/// A whole kubeconfig for one user of one cluster.
pub(crate) fn document(name: &str, server: &str, ca: &str, user: &Identity) -> Value {
    let user_name = format!("{name}-admin");
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(ca)}}],
        "users": [{"name": user_name, "user": {
            "client-certificate-data": STANDARD.encode(&user.certificate), "client-key-data": STANDARD.encode(&user.key),
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user_name}}],
    })
}

/// Puts `ours` into the file: entries of the same names are replaced, all others stay, ours becomes current.
pub(crate) fn merge(path: &Path, ours: &Value) -> Result<()> {
    let mut config = match std::fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => serde_saphyr::from_str::<Value>(&text).with_context(|| {
            format!("{} is not a kubeconfig; move it away or choose another with --kubeconfig", path.display())
        })?,
        _ => json!({"apiVersion": "v1", "kind": "Config", "preferences": {}}),
    };
    let map = config.as_object_mut().with_context(|| format!("{} is not a kubeconfig", path.display()))?;
    for section in ["clusters", "users", "contexts"] {
        let list = map.entry(section).or_insert(Value::Null);
        if !list.is_array() {
            *list = json!([]);
        }
        let additions = ours.get(section).and_then(Value::as_array).cloned().unwrap_or_default();
        if let Some(list) = list.as_array_mut() {
            list.retain(|entry| !additions.iter().any(|added| added.get("name") == entry.get("name")));
            list.extend(additions);
        }
    }
    map.insert("current-context".into(), ours.get("current-context").cloned().unwrap_or_default());
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    write(path, &config)
}

pub(crate) fn write(path: &Path, config: &Value) -> Result<()> {
    pki::write(path, &serde_saphyr::to_string(config).context("kubeconfig")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_merged_and_made_current() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, "apiVersion: v1\nkind: Config\nclusters:\n- name: other\n  cluster: {server: https://x}\n- name: ferry\n  cluster: {server: https://old}\ncurrent-context: other\n").unwrap();
        let user = Identity { certificate: "c".into(), key: "k".into() };
        merge(&path, &document("ferry", "https://new", "ca", &user)).unwrap();
        let merged: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(merged["current-context"], "ferry");
        let servers: Vec<&str> =
            merged["clusters"].as_array().unwrap().iter().map(|c| c["cluster"]["server"].as_str().unwrap()).collect();
        assert_eq!(servers, ["https://x", "https://new"]);
    }

    #[test]
    fn a_file_that_is_no_kubeconfig_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, "- just\n- a list\n").unwrap();
        let user = Identity { certificate: "c".into(), key: "k".into() };
        assert!(merge(&path, &document("ferry", "https://new", "ca", &user)).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "- just\n- a list\n");
    }
}
