//! Follows Services, EndpointSlices and Namespaces, and serves their names.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use client::{Change, Drain, Informers, Key};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::RwLock;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use crate::forward::resolv_conf;
use crate::health;
use crate::server::Server;
use crate::zone::{Records, Zone};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const BY_SERVICE: &str = "service";
/// What upstream's DNS gives cluster names by default: short, because pods come and go.
const DEFAULT_TTL: u32 = 5;

#[derive(Clone, Debug)]
pub struct DnsConfig {
    pub listen: SocketAddr,
    pub domain: String,
    pub ttl: u32,
    /// Resolvers for all other names; those of `/etc/resolv.conf` if empty.
    pub upstreams: Vec<SocketAddr>,
    /// Where `/health` and `/ready` are served, if anywhere.
    pub health: Option<SocketAddr>,
    pub readiness: Option<SocketAddr>,
}

impl DnsConfig {
    /// The ports of upstream's DNS.
    pub fn new(listen: SocketAddr, domain: &str) -> Self {
        let any = |port| Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        let (health, readiness) = (any(8080), any(8181));
        Self { listen, domain: domain.to_owned(), ttl: DEFAULT_TTL, upstreams: Vec::new(), health, readiness }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot go on serving")]
    Serve(#[source] io::Error),
}

/// Returns when `drain` fires. Names are served once all are known; `ready` is called then.
pub async fn run(config: DnsConfig, informers: Informers, ready: impl FnOnce(), drain: Drain) -> Result<(), DnsError> {
    let listen = |address: SocketAddr| move |source: io::Error| DnsError::Listen { address, source };
    let udp = UdpSocket::bind(config.listen).await.map_err(listen(config.listen))?;
    let tcp = TcpListener::bind(config.listen).await.map_err(listen(config.listen))?;
    let is_ready = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (address, path, good) in
        [(config.health, "/health", Arc::new(AtomicBool::new(true))), (config.readiness, "/ready", is_ready.clone())]
    {
        if let Some(address) = address {
            let listener = TcpListener::bind(address).await.map_err(listen(address))?;
            tasks.spawn(health::serve(listener, path, good));
        }
    }
    let zone = follow(&config, &informers);
    let synced = async {
        informers.synced().await;
        is_ready.store(true, Ordering::Release);
        ready();
    };
    if drain.run_until_cancelled(synced).await.is_none() {
        return Ok(());
    }
    let upstreams = upstreams(&config, &zone.read());
    let server = Server::new(zone, upstreams);
    tasks.spawn(server.clone().udp(udp));
    tasks.spawn(server.tcp(tcp));
    match drain.run_until_cancelled(tasks.join_next()).await {
        Some(Some(Ok(Err(error)))) => Err(DnsError::Serve(error)),
        Some(Some(Err(panicked))) => Err(DnsError::Serve(io::Error::other(panicked))),
        _ => Ok(()),
    }
}

fn upstreams(config: &DnsConfig, zone: &Zone) -> Vec<SocketAddr> {
    let mut upstreams = config.upstreams.clone();
    if upstreams.is_empty() {
        upstreams = resolv_conf(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    }
    // In a pod that is told to resolve through the cluster, questions would come back for ever.
    upstreams.retain(|upstream| {
        let ours = zone.is_service(upstream.ip());
        if ours {
            tracing::warn!(%upstream, "not used as an upstream resolver, it is a service of this cluster");
        }
        !ours
    });
    upstreams
}

/// A zone that changes as the informers' objects do.
fn follow(config: &DnsConfig, informers: &Informers) -> Arc<RwLock<Zone>> {
    let zone = Arc::new(RwLock::new(Zone::new(&config.domain, config.ttl)));
    let (services, slices) = (informers.of::<Service>(), informers.of::<EndpointSlice>());
    slices.add_index(BY_SERVICE, |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());
    let update = {
        let (zone, services, slices) = (zone.clone(), services.clone(), slices.clone());
        Arc::new(move |key: Key| {
            // Under the lock, so that of two updates at once the later state is not overwritten by the earlier.
            let mut zone = zone.write();
            let records =
                services.get(&key).map(|service| Records::of(&service, &slices.by_index(BY_SERVICE, &key.to_string())));
            zone.set_service(&key, records);
        })
    };
    services.subscribe({
        let update = update.clone();
        move |change| update(Key::of(&**change.object()))
    });
    slices.subscribe(move |change| {
        let old = if let Change::Updated { old, .. } = change { service_of(old) } else { None };
        old.into_iter().chain(service_of(change.object())).for_each(|key| update(key));
    });
    informers.of::<Namespace>().subscribe({
        let zone = zone.clone();
        move |change| {
            let name = Key::of(&**change.object()).name;
            zone.write().set_namespace(&name, !matches!(change, Change::Deleted(_)));
        }
    });
    zone
}

fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name))
}
