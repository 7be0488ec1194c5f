//! The API server beside stock kube-apiserver on etcd: both started here, on the same disk, with the same certificates, asked by the same
//! client over TLS.
//!
//! `KUBE_APISERVER` names the stock binary; it is looked for on the PATH otherwise. What is compared with ourselves alone does without it.

mod admission;
mod apart;
mod client;
mod definitions;
mod fairness;
mod hostile;
mod lists;
mod records;
mod servers;
mod watches;
mod writes;

use anyhow::{Result, ensure};

use self::servers::{Server, Servers};
use crate::report::{Report, say};

/// How many ask at once.
const CLIENTS: usize = 64;
const NAMESPACE: &str = "/api/v1/namespaces/bench";

pub(crate) async fn run(only: &[&str]) -> Result<()> {
    const ALL: [&str; 7] = ["writes", "lists", "watches", "admission", "definitions", "hostile", "fairness"];
    for name in only {
        ensure!(ALL.contains(name), "there is no bench {name:?}; there are {ALL:?}");
    }
    let mut report = Report::default();
    for name in ALL.into_iter().filter(|name| only.is_empty() || only.contains(name)) {
        let dir = tempfile::Builder::new().prefix("ferry-bench-").tempdir()?;
        let alone = async || Server::start(dir.path()).await;
        match name {
            "admission" => admission::run(dir.path(), &mut report).await?,
            "definitions" => definitions::run(alone().await?, &mut report).await?,
            "fairness" => fairness::run(alone().await?, &mut report).await?,
            "hostile" => hostile::run(alone().await?, &mut report).await?,
            _ => beside(name, &Servers::start(dir.path()).await?, &mut report).await?,
        }
    }
    report.finish()
}

async fn beside(name: &str, servers: &Servers, report: &mut Report) -> Result<()> {
    say(&servers.versions);
    match name {
        "writes" => writes::run(servers, report).await,
        "lists" => lists::run(servers, report).await,
        _ => watches::run(servers, report).await,
    }
}
