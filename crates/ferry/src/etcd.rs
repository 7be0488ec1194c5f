//! The store under etcd's API: in front of the embedded engine, and behind an API server of its own.

use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use store::etcd::{Client, EtcdConfig, Listener};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::alone::{authorities, identity, until_signalled};
use crate::{cli, control_plane};

/// How long history is kept on an etcd that nobody else compacts, as upstream's API server does it.
const COMPACT_EVERY: Duration = Duration::from_secs(5 * 60);

pub(crate) async fn run(options: cli::Store) -> Result<()> {
    let mut listeners = Vec::new();
    for url in &options.listen_client_urls {
        listeners.push(listener(url, &options).await.with_context(|| format!("cannot listen on {url}"))?);
    }
    let store = control_plane::open_store(&options.data_dir)?;
    let drain = until_signalled()?;
    store::etcd::serve(store.clone(), listeners, drain).await?;
    store.close().await;
    Ok(())
}

async fn listener(url: &str, options: &cli::Store) -> Result<Listener> {
    if let Some(path) = url.strip_prefix("unix://") {
        return unix(Path::new(path));
    }
    let (tls, address) = match url.split_once("://") {
        Some(("http", address)) => (false, address),
        Some(("https", address)) => (true, address),
        _ => bail!("{url} is none of http://, https:// and unix://"),
    };
    let address = address.to_socket_addrs()?.next().context("the host has no address")?;
    let socket = TcpListener::bind(address).await?;
    if !tls {
        return Ok(Listener::Tcp(socket));
    }
    let (Some(certificate), Some(key)) = (&options.cert_file, &options.key_file) else {
        bail!("https needs --cert-file and --key-file");
    };
    let clients = options.trusted_ca_file.as_deref().map(authorities).transpose()?.unwrap_or_default();
    Ok(Listener::Tls(socket, control_plane::serving_tls(&clients, &identity(certificate, key)?, &[b"h2"])?))
}

/// Only root reaches the socket.
pub(crate) fn unix(path: &Path) -> Result<Listener> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let _ = std::fs::remove_file(path);
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(Listener::Unix(socket))
}

/// The store an API server is told to use.
pub(crate) async fn connect(options: &cli::Apiserver, drain: CancellationToken) -> Result<Arc<dyn store::Store>> {
    let config = EtcdConfig {
        endpoints: options.etcd_servers.clone(),
        ca: options.etcd_cafile.clone(),
        cert: options.etcd_certfile.clone(),
        key: options.etcd_keyfile.clone(),
    };
    let client: Arc<dyn store::Store> = Arc::new(Client::connect(config).await?);
    tokio::spawn(compact(client.clone(), drain));
    Ok(client)
}

async fn compact(store: Arc<dyn store::Store>, drain: CancellationToken) {
    let mut before = None;
    while drain.run_until_cancelled(tokio::time::sleep(COMPACT_EVERY)).await.is_some() {
        if let Some(revision) = before
            && let Err(error) = store.compact(revision).await
        {
            // Another API server may have been faster.
            tracing::debug!(%error, "not compacted");
        }
        before = store.revision().await.ok();
    }
}
