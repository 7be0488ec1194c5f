//! The servers that are measured.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    NAMESPACE,
    client::{Client, Trust},
};
use crate::store::{
    peer,
    process::{Process, free_url},
};

const START: Duration = Duration::from_secs(30);

/// A server, and how it is reached.
pub(super) struct Server {
    pub(super) process: Process,
    pub(super) trust: Arc<Trust>,
    /// What it stands on, if that is a process of its own.
    _beneath: Option<Process>,
}

pub(super) struct Servers {
    pub(super) ours: Server,
    pub(super) peer: Server,
    pub(super) versions: String,
}

impl Servers {
    pub(super) async fn start(dir: &Path) -> Result<Servers> {
        let (ours, peer) = (Server::start(&dir.join("ferry")).await?, Server::stock(&dir.join("stock")).await?);
        let mut versions = Vec::new();
        for server in [&ours, &peer] {
            let version = server.client().await?.get_json("/version").await?;
            let version = version.get("gitVersion").and_then(Value::as_str);
            versions.push(version.context("a version without a name")?.to_owned());
        }
        Ok(Servers { ours, peer, versions: versions.join(" against stock ") })
    }
}

impl Server {
    /// Ours, ready to be asked.
    pub(super) async fn start(dir: &Path) -> Result<Server> {
        let server = ours(dir).await?;
        server.prepare().await?;
        Ok(server)
    }

    /// The peer, ready to be asked.
    pub(super) async fn stock(dir: &Path) -> Result<Server> {
        let server = stock(dir).await?;
        server.prepare().await?;
        Ok(server)
    }

    pub(super) async fn client(&self) -> Result<Client> {
        Client::connect(&self.process.url, &self.trust).await
    }

    pub(super) async fn clients(&self, count: usize) -> Result<Vec<Client>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.client().await?);
        }
        Ok(clients)
    }

    async fn ready(&self) -> Result<()> {
        self.client().await?.get("/readyz", "*/*").await.map(drop)
    }

    /// Waits until it is ready, and makes what pods need.
    async fn prepare(&self) -> Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.ready().await {
            ensure!(begun.elapsed() < START, "{} does not get ready: {error:#}", self.process.url);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut client = self.client().await?;
        client.post("/api/v1/namespaces", &json!({"metadata": {"name": "bench"}})).await?;
        client.post(&format!("{NAMESPACE}/serviceaccounts"), &json!({"metadata": {"name": "default"}})).await
    }
}

/// The `ferry` that was built with this.
fn ferry() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("ferry");
    ensure!(path.exists(), "{} is not built", path.display());
    Ok(path)
}

/// Certificates for a server at `url`.
fn certificates(dir: &Path, url: &str) -> Result<(String, Arc<Trust>)> {
    let mut command = Command::new(ferry()?);
    command.arg("certs").arg(dir).args(["--server", url, "--node-name", "node"]);
    let done = command.output()?;
    ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok((dir.join("pki").display().to_string(), Arc::new(Trust::read(&dir.join("admin.conf"))?)))
}

fn port(url: &str) -> Result<&str> {
    Ok(url.rsplit_once(':').context("a url without a port")?.1)
}

/// What both are told about their certificates.
fn flags(command: &mut Command, url: &str, pki: &str) -> Result<()> {
    command.args(["--bind-address", "127.0.0.1", "--secure-port", port(url)?]);
    for (flag, file) in [
        ("--tls-cert-file", "apiserver.crt"),
        ("--tls-private-key-file", "apiserver.key"),
        ("--client-ca-file", "ca.crt"),
        ("--kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("--kubelet-client-key", "apiserver-kubelet-client.key"),
        ("--service-account-signing-key-file", "sa.key"),
    ] {
        command.arg(flag).arg(format!("{pki}/{file}"));
    }
    Ok(())
}

async fn ours(dir: &Path) -> Result<Server> {
    let url = free_url()?.replace("http:", "https:");
    let (pki, trust) = certificates(dir, &url)?;
    let mut command = Command::new(ferry()?);
    command.arg("apiserver").arg("--store-dir").arg(dir.join("store"));
    flags(&mut command, &url, &pki)?;
    Ok(Server { process: Process::spawn(command, url)?, trust, _beneath: None })
}

async fn stock(dir: &Path) -> Result<Server> {
    let url = free_url()?.replace("http:", "https:");
    let (pki, trust) = certificates(dir, &url)?;
    let etcd = peer::start(&dir.join("etcd")).await?;
    let binary = std::env::var("KUBE_APISERVER").unwrap_or_else(|_| "kube-apiserver".to_owned());
    let mut command = Command::new(&binary);
    flags(&mut command, &url, &pki)?;
    command.args(["--etcd-servers", &etcd.url, "--advertise-address", "127.0.0.1", "--authorization-mode", "RBAC"]);
    command.args(["--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes"]);
    // It reads no public key out of our private one; nobody shows it a token here.
    command.arg("--service-account-key-file").arg(format!("{pki}/apiserver.crt"));
    let process = Process::spawn(command, url).context("set KUBE_APISERVER to a stock kube-apiserver")?;
    Ok(Server { process, trust, _beneath: Some(etcd) })
}
