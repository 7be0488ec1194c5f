//! Brings what services claim back in step with the services: for stores written before there were claims, or by hand.

use std::collections::{BTreeMap, BTreeSet};
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
    let snapshot = services.map(|cache| cache.snapshot());
    let mut wanted: BTreeMap<String, Bytes> = BTreeMap::new();
    for service in snapshot.iter().flat_map(|snapshot| snapshot.objects.values()) {
        wanted.extend(claims::of(&service.decode()));
    }
    let held = held(server).await.map_err(store_error)?;
    let present: BTreeSet<&str> = held.iter().map(|claim| claim.key.as_str()).collect();
    let missing = wanted.iter().filter(|(key, _)| !present.contains(key.as_str()));
    let adopt = missing.map(|(key, value)| Txn {
        compares: vec![Compare::ModRevision { key: key.clone().into(), is: 0 }],
        success: vec![Op::put(key.clone(), value.clone())],
        failure: vec![],
    });
    let orphans = held.iter().filter(|claim| !wanted.contains_key(&claim.key));
    let release = orphans.map(|claim| Txn {
        compares: vec![
            Compare::ModRevision { key: claim.key.clone().into(), is: claim.revision },
            Compare::ModRevision { key: format!("{}{}", claims::SERVICES, claim.holder).into(), is: 0 },
        ],
        success: vec![Op::delete(claim.key.clone())],
        failure: vec![],
    });
    for txn in adopt.chain(release) {
        server.store().txn(txn).await.map_err(store_error)?;
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
    key: String,
    revision: i64,
    /// The service's `namespace/name`.
    holder: String,
}

async fn held(server: &ApiServer) -> Result<Vec<Held>, StoreError> {
    let mut held = Vec::new();
    for prefix in [claims::ADDRESSES, claims::NODE_PORTS] {
        for kv in server.store().range(Range::prefix(prefix)).await?.kvs {
            let holder = match prefix {
                claims::ADDRESSES => serde_json::from_slice(&kv.value).ok().and_then(|object| claims::holder(&object)),
                _ => String::from_utf8(kv.value.to_vec()).ok(),
            };
            // An address without a service of ours belongs to whoever made it.
            let (Some(holder), Ok(key)) = (holder, String::from_utf8(kv.key.to_vec())) else { continue };
            held.push(Held { key, revision: kv.mod_revision, holder });
        }
    }
    Ok(held)
}
