//! Follows Services and EndpointSlices and keeps the kernel in step with them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use client::{Change, Drain, Informer, Informers, Key};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::apply::{Applier, ProxyError};
use crate::plan::{Node, plan};
use crate::table::Table;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const BY_SERVICE: &str = "service";
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct ProxyConfig {
    pub node: Node,
    /// Changes closer together than this are written together. The first one after a quiet time is written at once.
    pub min_sync: Duration,
}

impl ProxyConfig {
    pub fn new(node: Node) -> Self {
        Self { node, min_sync: Duration::from_millis(10) }
    }
}

/// Services whose plan may have changed.
#[derive(Default)]
struct Dirty {
    services: Mutex<HashSet<Key>>,
    changed: Notify,
}

impl Dirty {
    fn mark(&self, service: Key) {
        self.services.lock().insert(service);
        self.changed.notify_one();
    }
}

/// Returns when `drain` fires; what is programmed stays, so that services outlive a restart. `ready` is called once all are programmed.
pub async fn run(
    config: ProxyConfig,
    informers: Informers,
    ready: impl FnOnce(),
    drain: Drain,
) -> Result<(), ProxyError> {
    let mut proxy = Proxy::new(&config, &informers)?;
    tokio::select! {
        outcome = proxy.follow(config.min_sync, ready) => outcome,
        () = drain.cancelled() => Ok(()),
    }
}

struct Proxy {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    dirty: Arc<Dirty>,
    node: Node,
    /// `None` while a worker has it.
    state: Option<(Table, Applier)>,
}

impl Proxy {
    fn new(config: &ProxyConfig, informers: &Informers) -> Result<Self, ProxyError> {
        let (services, slices) = (informers.of::<Service>(), informers.of::<EndpointSlice>());
        slices.add_index(BY_SERVICE, |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());
        let dirty = Arc::new(Dirty::default());
        services.subscribe({
            let dirty = dirty.clone();
            move |change| dirty.mark(Key::of(&**change.object()))
        });
        slices.subscribe({
            let dirty = dirty.clone();
            move |change| {
                let old = if let Change::Updated { old, .. } = change { service_of(old) } else { None };
                old.into_iter().chain(service_of(change.object())).for_each(|service| dirty.mark(service));
            }
        });
        let state = Some((Table::default(), Applier::open(config.node.clone())?));
        Ok(Self { services, slices, dirty, node: config.node.clone(), state })
    }

    async fn follow(&mut self, min_sync: Duration, ready: impl FnOnce()) -> Result<(), ProxyError> {
        self.services.synced().await;
        self.slices.synced().await;
        let mut ready = Some(ready);
        let mut retry = RETRY_MIN;
        loop {
            let started = Instant::now();
            match self.sync().await {
                Ok(()) => {
                    retry = RETRY_MIN;
                    if let Some(ready) = ready.take() {
                        ready();
                    }
                    self.dirty.changed.notified().await;
                    tokio::time::sleep_until(started + min_sync).await;
                }
                Err(error @ ProxyError::Panicked(_)) => return Err(error),
                Err(error) => {
                    tracing::error!(%error, cause = ?std::error::Error::source(&error), "services not programmed, trying again");
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
        }
    }

    async fn sync(&mut self) -> Result<(), ProxyError> {
        let dirty = std::mem::take(&mut *self.dirty.services.lock());
        let plans: Vec<_> = dirty.into_iter().map(|key| self.observe(key)).collect();
        let Some((mut table, mut applier)) = self.state.take() else { return Ok(()) };
        let node = self.node.clone();
        // A large table takes the kernel a while; the async threads have other things to do.
        let worker = tokio::task::spawn_blocking(move || {
            for (key, service, slices) in plans {
                let plan = service.map(|service| plan(&service, &slices, &node)).unwrap_or_default();
                table.set(&key, plan);
            }
            let outcome = applier.sync(&mut table);
            (table, applier, outcome)
        });
        let (table, applier, outcome) = worker.await.map_err(ProxyError::Panicked)?;
        self.state = Some((table, applier));
        outcome
    }

    fn observe(&self, key: Key) -> (Key, Option<Arc<Service>>, Vec<Arc<EndpointSlice>>) {
        let service = self.services.get(&key);
        let slices = self.slices.by_index(BY_SERVICE, &key.to_string());
        (key, service, slices)
    }
}

fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name))
}
