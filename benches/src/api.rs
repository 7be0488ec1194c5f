//! The API server beside stock kube-apiserver on etcd: both started here, on the same disk, with the same certificates, asked by the same
//! client over TLS.
//!
//! `KUBE_APISERVER` names the stock binary; it is looked for on the PATH otherwise.

mod admission;
mod client;
mod definitions;
mod fairness;
mod hostile;
mod lists;
mod servers;
mod watches;
mod writes;

use anyhow::{Result, ensure};

use self::servers::Servers;
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
        let servers = Servers::start(dir.path()).await?;
        say(&servers.versions);
        match name {
            "writes" => writes::run(&servers, &mut report).await?,
            "lists" => lists::run(&servers, &mut report).await?,
            "watches" => watches::run(&servers, &mut report).await?,
            "admission" => admission::run(&servers, &mut report).await?,
            "definitions" => definitions::run(servers.ours, &mut report).await?,
            "fairness" => fairness::run(servers.ours, &mut report).await?,
            _ => hostile::run(servers.ours, &mut report).await?,
        }
    }
    report.finish()
}
