//! The store under etcd's API: in front of the embedded engine, and behind an API server of its own.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rand::seq::SliceRandom as _;
use rustls::ServerConfig;
use store::etcd::{Client, EtcdConfig, Listener};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::alone::{authorities, identity, until_signalled};
use crate::pki::{Pki, good_for, make_private};
use crate::renewal::{Renewal, Shown};
use crate::{cli, control_plane};

/// How long history is kept on an etcd that nobody else compacts, as upstream's API server does it.
const COMPACT_EVERY: Duration = Duration::from_secs(5 * 60);

pub(crate) async fn run(options: cli::Store) -> Result<()> {
    let tls = match (&options.cert_file, &options.key_file) {
        (Some(certificate), Some(key)) => {
            let clients = options.trusted_ca_file.as_deref().map(authorities).transpose()?.unwrap_or_default();
            Some(control_plane::serving_tls(&clients, Shown::new(&identity(certificate, key)?)?, &[b"h2"])?)
        }
        _ => None,
    };
    let listeners = listeners(&options.listen_client_urls, tls).await?;
    let store = control_plane::open_store(&options.data_dir)?;
    let drain = until_signalled()?;
    store::etcd::serve(store.clone(), listeners, drain).await?;
    store.close().await;
    Ok(())
}

/// What `ferry up` serves etcd's API on: a socket, and what else it was asked for. Whoever reaches the store is above all
/// rules, so the certificates are of an authority of its own.
pub(crate) async fn beside(
    socket: &Path,
    urls: &[String],
    pki: &Path,
    host: IpAddr,
) -> Result<(Vec<Listener>, Option<Renewal>)> {
    let mut renewal: Option<Renewal> = None;
    let mut all = vec![unix(socket)?];
    if let Some(open) = urls.iter().find(|url| url.starts_with("http://")) {
        bail!("{open} would let everybody change the cluster's state: use https");
    }
    if !urls.is_empty() {
        let pki = Pki::open(pki)?;
        let make = move |pki: &Pki| {
            let serving = pki.server("server", "etcd", &["localhost"], &[Ipv4Addr::LOCALHOST.into(), host])?;
            Ok::<_, anyhow::Error>((serving, pki.client("client", "etcdctl", &[])?))
        };
        let shown = Shown::new(&make(&pki)?.0)?;
        let tls = control_plane::serving_tls(&pki.authorities()?, shown.clone(), &[b"h2"])?;
        all.extend(listeners(urls, Some(tls)).await?);
        renewal = Some(Box::new(move || {
            let (serving, client) = make(&pki)?;
            shown.show(&serving)?;
            good_for(&[&serving, &client])
        }));
    }
    Ok((all, renewal))
}

async fn listeners(urls: &[String], tls: Option<Arc<ServerConfig>>) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for url in urls {
        listeners.push(listener(url, tls.clone()).await.with_context(|| format!("cannot listen on {url}"))?);
    }
    Ok(listeners)
}

async fn listener(url: &str, tls: Option<Arc<ServerConfig>>) -> Result<Listener> {
    if let Some(path) = url.strip_prefix("unix://") {
        return unix(Path::new(path));
    }
    let (secure, address) = match url.split_once("://") {
        Some(("http", address)) => (false, address),
        Some(("https", address)) => (true, address),
        _ => bail!("{url} is none of http://, https:// and unix://"),
    };
    let address = address.to_socket_addrs()?.next().context("the host has no address")?;
    let socket = TcpListener::bind(address).await?;
    match tls {
        _ if !secure => Ok(Listener::Tcp(socket)),
        Some(tls) => Ok(Listener::Tls(socket, tls)),
        None => bail!("https needs --cert-file and --key-file"),
    }
}

/// Only root reaches the socket.
pub(crate) fn unix(path: &Path) -> Result<Listener> {
    if let Some(parent) = path.parent() {
        make_private(parent)?;
    }
    let _ = std::fs::remove_file(path);
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(Listener::Unix(socket))
}

/// An etcd cluster as a store.
pub(crate) async fn client(options: &cli::state::Etcd) -> Result<Client> {
    // Servers with the same flags begin at different members, so that not all of them suffer when one goes.
    let mut endpoints = options.etcd_servers.clone();
    endpoints.shuffle(&mut rand::rng());
    let config = EtcdConfig {
        endpoints,
        ca: options.etcd_cafile.clone(),
        cert: options.etcd_certfile.clone(),
        key: options.etcd_keyfile.clone(),
    };
    Ok(Client::connect(config).await?)
}

/// The store an API server is told to use.
pub(crate) async fn connect(options: &cli::state::Etcd, drain: CancellationToken) -> Result<Arc<dyn store::Store>> {
    let client: Arc<dyn store::Store> = Arc::new(client(options).await?);
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
