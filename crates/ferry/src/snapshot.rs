//! `ferry snapshot`: a cluster's state in a file, and back.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::TryStreamExt as _;
use store::etcd::{Client, EtcdConfig};
use store::snapshot::{SnapshotError, Summary, restore, status};
use store::{OpenError, Store};

use crate::cli::state::{Output, Snapshot, SnapshotCommand};

pub(crate) async fn run(options: Snapshot) -> Result<()> {
    match options.command {
        SnapshotCommand::Save { file, data_dir, endpoints, cacert, cert, key } => {
            let source: Arc<dyn Store> = match endpoints.is_empty() {
                true => of_cluster(&data_dir).await?,
                false => Arc::new(Client::connect(EtcdConfig { endpoints, ca: cacert, cert, key }).await?),
            };
            let saved = save(source.as_ref(), &file).await?;
            say(&format!("Saved {} at revision {}: {}", file.display(), saved.revision, amount(&saved)))
        }
        SnapshotCommand::Status { file, output } => {
            let summary = status(&file)?;
            say(&match output {
                Output::Table => table(&summary),
                Output::Json => json(&summary).to_string(),
            })
        }
        SnapshotCommand::Restore { file, data_dir, bump_revision } => {
            let restored = restore_into(&file, &data_dir, bump_revision)?;
            let dir = data_dir.display();
            say(&format!("Restored {} into {dir}: `ferry up --data-dir {dir}` starts from it", amount(&restored)))
        }
    }
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// The store of a cluster: asked through its socket if it runs, opened if it does not.
async fn of_cluster(data_dir: &Path) -> Result<Arc<dyn Store>> {
    let dir = data_dir.join("store");
    anyhow::ensure!(dir.is_dir(), "there is no cluster in {}: name its --data-dir, or --endpoints", data_dir.display());
    match store::Embedded::open(&dir, store::Options::default()) {
        Ok(store) => Ok(Arc::new(store)),
        Err(OpenError::Locked { .. }) => {
            let socket = data_dir.join("run/etcd.sock");
            let endpoints = vec![format!("unix://{}", socket.display())];
            Ok(Arc::new(Client::connect(EtcdConfig { endpoints, ..EtcdConfig::default() }).await?))
        }
        Err(error) => Err(error.into()),
    }
}

/// Written beside, verified, and then moved to its name: what is there is whole.
async fn save(source: &dyn Store, file: &Path) -> Result<Summary> {
    let draft = PathBuf::from(format!("{}.part", file.display()));
    let saved = write(source, &draft).await.and_then(|()| match status(&draft) {
        Err(SnapshotError::Etcd { .. }) => {
            anyhow::bail!("these endpoints are etcd itself: save it with `etcdctl snapshot save`")
        }
        other => Ok(other?),
    });
    match saved {
        Ok(summary) => {
            std::fs::rename(&draft, file).with_context(|| format!("cannot write {}", file.display()))?;
            Ok(summary)
        }
        Err(error) => {
            let _ = std::fs::remove_file(&draft);
            Err(error)
        }
    }
}

async fn write(source: &dyn Store, draft: &Path) -> Result<()> {
    let mut chunks = source.snapshot().await?.chunks;
    let cannot = || format!("cannot write {}", draft.display());
    // It holds secrets.
    let options = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).to_owned();
    let mut out = options.open(draft).with_context(cannot)?;
    while let Some(chunk) = chunks.try_next().await? {
        out.write_all(&chunk).with_context(cannot)?;
    }
    out.sync_all().with_context(cannot)
}

fn restore_into(file: &Path, data_dir: &Path, bump_revision: i64) -> Result<Summary> {
    crate::pki::make_private(data_dir)?;
    Ok(restore(file, &data_dir.join("store"), bump_revision)?)
}

fn amount(summary: &Summary) -> String {
    format!("{} keys, {}", summary.keys, human(summary.bytes))
}

fn human(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// As etcdctl draws it.
fn table(summary: &Summary) -> String {
    let short = summary.hash.get(..8).unwrap_or_default().to_owned();
    let columns = [
        ("HASH", short),
        ("REVISION", summary.revision.to_string()),
        ("TOTAL KEYS", summary.keys.to_string()),
        ("TOTAL SIZE", human(summary.bytes)),
    ];
    let width = |(name, value): &(&str, String)| name.len().max(value.len());
    let rule: String = columns.iter().map(|column| format!("+{}", "-".repeat(width(column) + 2))).collect();
    let names: String = columns.iter().map(|column| format!("| {:^1$} ", column.0, width(column))).collect();
    let values: String = columns.iter().map(|column| format!("| {:>1$} ", column.1, width(column))).collect();
    format!("{rule}+\n{names}|\n{rule}+\n{values}|\n{rule}+")
}

fn json(summary: &Summary) -> serde_json::Value {
    serde_json::json!({
        "hash": summary.hash, "revision": summary.revision, "totalKey": summary.keys, "totalSize": summary.bytes,
        "compactedRevision": summary.compacted_revision, "leases": summary.leases,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_reads_like_etcdctls() {
        let summary =
            Summary { hash: "0123456789abcdef".into(), revision: 7, keys: 12, bytes: 20_512, ..Summary::default() };
        let drawn = "+----------+----------+------------+------------+\n\
                     |   HASH   | REVISION | TOTAL KEYS | TOTAL SIZE |\n\
                     +----------+----------+------------+------------+\n\
                     | 01234567 |        7 |         12 |    20.5 kB |\n\
                     +----------+----------+------------+------------+";
        assert_eq!(table(&summary), drawn);
        assert_eq!(json(&summary)["totalKey"], 12);
    }
}
