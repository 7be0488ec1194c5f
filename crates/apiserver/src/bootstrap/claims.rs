//! Brings what services claim back in step with the services: for stores written before there were claims, or by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::ApiError;
use bytes::Bytes;
use store::{Compare, Op, Range, StoreError, Txn};

use crate::server::{ApiServer, store_error};
use crate::storage::claims;

/// Many addresses go when many services do: they are looked through once.
const SETTLE: Duration = Duration::from_secs(1);

/// Each step is conditional on what it was decided on, so other servers may do the same, or write, at the same time.
pub(super) async fn repair(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    server.feed.current().await.map_err(store_error)?;
    let services = server.registry.stored("", "services").and_then(|served| served.cache.as_ref());
    let Some(snapshot) = services.map(|cache| cache.snapshot()) else { return Ok(()) };
    let mut wanted: BTreeMap<String, BTreeMap<&str, Bytes>> = BTreeMap::new();
    for service in snapshot.objects.values() {
        for (key, value) in claims::of(&service.decode()) {
            wanted.entry(key).or_default().insert(&service.key, value);
        }
    }
    let held = held(server).await.map_err(store_error)?;
    let step = |key: &str, revision: i64, holder: &str, step: Op| {
        let service = snapshot.objects.get(holder).map_or(0, |service| service.revision);
        let is = |key: String, is: i64| Compare::ModRevision { key: key.into(), is };
        let compares = vec![is(key.to_owned(), revision), is(format!("{}{holder}", claims::SERVICES), service)];
        Txn { compares, success: vec![step], failure: vec![] }
    };
    let mut steps = Vec::new();
    for (key, services) in &wanted {
        let (revision, holder) = held.get(key).map_or((0, ""), |held| (held.revision, &held.holder));
        // Of several that have one address, the one it is held for is as good as any.
        if let Some((service, value)) = services.first_key_value().filter(|_| !services.contains_key(holder)) {
            steps.push(step(key, revision, service, Op::put(key.clone(), value.clone())));
        }
    }
    // An address that is for no service belongs to whoever made it.
    for (key, held) in held.iter().filter(|(key, held)| !wanted.contains_key(*key) && !held.holder.is_empty()) {
        steps.push(step(key, held.revision, &held.holder, Op::delete(key.clone())));
    }
    for step in steps {
        server.store().txn(step).await.map_err(store_error)?;
    }
    Ok(())
}

/// Claims again what is deleted by hand while its service lives.
pub(super) async fn keep(server: Arc<ApiServer>) {
    let addresses = server.registry.stored("networking.k8s.io", "ipaddresses").and_then(|served| served.cache.clone());
    let Some(addresses) = addresses else { return };
    loop {
        let Ok((mut place, _)) = addresses.watch_from(None) else { return };
        while let Ok(changes) = place.next().await {
            if changes.iter().any(|change| change.deleted) {
                tokio::time::sleep(SETTLE).await;
                if let Err(error) = repair(&server).await {
                    tracing::warn!(%error, "what services claim was not looked through");
                }
            }
        }
    }
}

/// A claim as it is stored.
struct Held {
    revision: i64,
    /// The service's `namespace/name`; empty if it is not for one.
    holder: String,
}

async fn held(server: &ApiServer) -> Result<BTreeMap<String, Held>, StoreError> {
    let mut held = BTreeMap::new();
    for prefix in [claims::ADDRESSES, claims::NODE_PORTS] {
        for kv in server.store().range(Range::prefix(prefix)).await?.kvs {
            let holder = match prefix {
                claims::ADDRESSES => serde_json::from_slice(&kv.value).ok().and_then(|object| claims::holder(&object)),
                _ => String::from_utf8(kv.value.to_vec()).ok(),
            };
            let Ok(key) = String::from_utf8(kv.key.to_vec()) else { continue };
            held.insert(key, Held { revision: kv.mod_revision, holder: holder.unwrap_or_default() });
        }
    }
    Ok(held)
}
