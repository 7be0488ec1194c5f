//! The addresses of the `kubernetes` service: every live API server, each vouched for by a lease in the store.
//!
//! A server puts its address under [`PREFIX`] on a lease that it keeps alive; one that dies or hangs is gone from there when
//! the lease ends. All servers watch the prefix and write what they find into the service's endpoints, as upstream's
//! lease reconciler does.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{ApiError, ObjectExt as _};
use futures::StreamExt as _;
use serde_json::json;
use store::{Keys, Op, Range, StoreError, Txn};
use tokio::time::Instant;

use crate::bootstrap::{ensure, publish_kubernetes_service, writer};
use crate::handlers::DeleteOptions;
use crate::server::{ApiServer, store_error};

const PREFIX: &str = "/registry/masterleases/";
/// Upstream's: a server that is silent for this long is not sent to any more.
const TTL_SECONDS: i64 = 15;
const RENEWAL: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(2);

/// This server's own entry.
struct Announced {
    server: Arc<ApiServer>,
    lease: i64,
}

/// Announces this server and keeps the endpoints true until it drains.
pub(crate) async fn start(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let mut announced = Announced { server: server.clone(), lease: 0 };
    announced.announce().await.map_err(store_error)?;
    // An address that must not be an endpoint (one of loopback) keeps others from finding this server, not it from serving.
    if let Err(error) = reconcile(server).await {
        tracing::warn!(%error, "the endpoints of the kubernetes service are not written");
    }
    server.tasks.spawn(announced.run());
    Ok(())
}

impl Announced {
    fn key(&self) -> String {
        format!("{PREFIX}{}", self.server.config.advertise_address)
    }

    async fn announce(&mut self) -> Result<(), StoreError> {
        let store = self.server.store();
        self.lease = store.lease_grant(TTL_SECONDS, 0).await?.id;
        let value = json!({
            "kind": "Endpoints", "apiVersion": "v1", "metadata": {},
            "subsets": [{"addresses": [{"ip": self.server.config.advertise_address.to_string()}]}],
        });
        let put = Op::Put { key: self.key().into(), value: value.to_string().into(), lease: self.lease };
        store.txn(Txn { success: vec![put], ..Txn::default() }).await.map(drop)
    }

    async fn renew(&mut self) -> Result<(), StoreError> {
        match self.server.store().lease_keep_alive(self.lease).await {
            // This process was stopped, or the store was away, for longer than the lease lasts.
            Err(StoreError::LeaseNotFound(_)) => self.announce().await,
            other => other.map(drop),
        }
    }

    async fn run(mut self) {
        let drain = self.server.drain.clone();
        let Some(()) = drain.run_until_cancelled(self.keep()).await else {
            let withdrawn = tokio::time::timeout(WITHDRAWAL_TIMEOUT, self.withdraw()).await;
            if !matches!(withdrawn, Ok(Ok(()))) {
                tracing::debug!("this server's address was not withdrawn; its lease will end");
            }
            return;
        };
    }

    /// Renews in time, and follows what the others do. Ends when the store is closed.
    async fn keep(&mut self) {
        loop {
            let Keys { start, end } = Keys::prefix(PREFIX.into());
            let mut watch = match self.server.store().watch(start, end, 0).await {
                Ok(watch) => watch,
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::debug!(%error, "API servers' leases are not watched");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let mut due = Instant::now();
            loop {
                if let Err(error) = reconcile(&self.server).await {
                    tracing::warn!(%error, "the endpoints of the kubernetes service are not up to date");
                }
                tokio::select! {
                    batch = watch.next() => if !matches!(batch, Some(Ok(_))) { break },
                    () = tokio::time::sleep_until(due) => {
                        due = Instant::now() + RENEWAL;
                        match self.renew().await {
                            Ok(()) => {}
                            Err(StoreError::Closed) => return,
                            Err(error) => {
                                tracing::warn!(%error, "this server's lease is not renewed");
                                due = Instant::now() + PAUSE;
                            }
                        }
                    }
                }
            }
        }
    }

    async fn withdraw(&self) -> Result<(), ApiError> {
        self.server.store().lease_revoke(self.lease).await.map_err(store_error)?;
        reconcile(&self.server).await
    }
}

/// Writes the live servers into the endpoints of the service, which is made if it is not there. Nothing is written if they are as they should be.
async fn reconcile(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let found = server.store().range(Range { keys_only: true, ..Range::prefix(PREFIX) }).await.map_err(store_error)?;
    let addresses = found.kvs.iter().filter_map(|kv| std::str::from_utf8(&kv.key).ok()?.strip_prefix(PREFIX));
    // In the order of their texts, as upstream has them.
    let addresses: BTreeMap<&str, IpAddr> = addresses.filter_map(|text| Some((text, text.parse().ok()?))).collect();
    if addresses.is_empty() {
        return Ok(()); // The last one to stop leaves what there was, as upstream does.
    }
    publish_kubernetes_service(server).await?;
    let port = server.config.secure_port;
    // While servers of both families are there, those of IPv6 are in the endpoints only, as upstream has it.
    let family = if addresses.values().all(IpAddr::is_ipv6) { "IPv6" } else { "IPv4" };
    let own = addresses.iter().filter(|(_, address)| api::addresses::family(**address) == family);
    let own = own.map(|(text, _)| json!({"addresses": [text], "conditions": {"ready": true}}));
    let slice = json!({
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family,
        "endpoints": own.collect::<Vec<_>>(),
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    let known = server.cached("discovery.k8s.io", "endpointslices", "default/kubernetes");
    if known.is_some_and(|known| known.text(&["addressType"]) != family) {
        let writer = writer(server, "discovery.k8s.io", "endpointslices", "")?;
        writer.delete("default", "kubernetes", &DeleteOptions::default()).await?;
        server.feed.current().await.map_err(store_error)?;
    }
    ensure(server, "discovery.k8s.io", "endpointslices", "default", slice).await?;
    let endpoints = json!({
        "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{
            "addresses": addresses.keys().map(|text| json!({"ip": text})).collect::<Vec<_>>(),
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }],
    });
    ensure(server, "", "endpoints", "default", endpoints).await
}
