//! The store beside etcd: both started here, on the same disk, asked by the same client.

pub(crate) mod ours;
pub(crate) mod peer;
pub(crate) mod process;

mod client;
mod idle;
mod objects;
mod puts;
mod watchers;
mod wire;

use std::path::Path;

use anyhow::{Result, ensure};

use self::{client::Client, process::Process};
use crate::report::{Report, say};

/// Both of them, each with an empty directory.
struct Pair {
    ours: Process,
    peer: Process,
}

impl Pair {
    async fn start(dir: &Path) -> Result<Pair> {
        Ok(Pair { ours: ours::start(&dir.join("ferry")).await?, peer: peer::start(&dir.join("etcd")).await? })
    }

    async fn clients(&self) -> Result<(Client, Client)> {
        Ok((Client::connect(&self.ours.url).await?, Client::connect(&self.peer.url).await?))
    }
}

pub(crate) async fn run(only: &[&str]) -> Result<()> {
    const ALL: [&str; 4] = ["puts", "objects", "watchers", "idle"];
    for name in only {
        ensure!(ALL.contains(name), "there is no bench {name:?}; there are {ALL:?}");
    }
    let mut report = Report::default();
    say(&format!("{} against {}", ours::version(), peer::version()?));
    for name in ALL.into_iter().filter(|name| only.is_empty() || only.contains(name)) {
        let dir = tempfile::Builder::new().prefix("ferry-bench-").tempdir()?;
        match name {
            "puts" => puts::run(dir.path(), &mut report).await?,
            "objects" => objects::run(dir.path(), &mut report).await?,
            "watchers" => watchers::run(dir.path(), &mut report).await?,
            _ => idle::run(dir.path(), &mut report).await?,
        }
    }
    report.finish()
}
