//! All that a store holds at one revision, and a hash by which two stores are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use sha2::{Digest as _, Sha256};
use store::{KeyValue, Lease, Range, Revision, Store};

/// Keys of one question: enough to be quick, few enough for one answer.
const PAGE: usize = 500;
/// Which API servers run now. It is nothing to be moved.
const SERVERS: &[u8] = b"/registry/masterleases/";

pub(super) struct Picture {
    pub(super) revision: Revision,
    /// In key order.
    pub(super) keys: Vec<Arc<KeyValue>>,
    /// Granted seconds by id, of the leases that keys hang on.
    pub(super) leases: BTreeMap<i64, i64>,
    /// The addresses of API servers that run on the store.
    pub(super) servers: Vec<String>,
}

impl Picture {
    /// Reads everything as of one revision (0: now), but for the key `except`.
    pub(super) async fn take(store: &dyn Store, mut revision: Revision, except: &[u8]) -> Result<Picture> {
        let mut keys: Vec<Arc<KeyValue>> = Vec::new();
        let mut range = Range { limit: PAGE, revision, ..Range::prefix("") };
        loop {
            let page = store.range(range.clone()).await?;
            if revision == 0 {
                revision = page.revision;
                range.revision = revision;
            }
            if let Some(last) = page.kvs.last() {
                range.start = [&last.key, &[0][..]].concat().into();
            }
            keys.extend(page.kvs);
            if !page.more {
                break;
            }
        }
        let servers = keys.iter().filter_map(|kv| kv.key.strip_prefix(SERVERS));
        let servers = servers.map(|address| String::from_utf8_lossy(address).into_owned()).collect();
        keys.retain(|kv| kv.key != except && !kv.key.starts_with(SERVERS));
        let ids: BTreeSet<i64> = keys.iter().map(|kv| kv.lease).filter(|id| *id != 0).collect();
        let mut leases = BTreeMap::new();
        for id in ids {
            leases.insert(id, store.lease_time_to_live(id).await?.granted_ttl_seconds);
        }
        Ok(Picture { revision, keys, leases, servers })
    }

    /// What must be the same on both sides: keys, values, and how long they live.
    pub(super) fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for kv in &self.keys {
            for bytes in [&kv.key, &kv.value] {
                hash.update((bytes.len() as u64).to_le_bytes());
                hash.update(bytes);
            }
            hash.update(self.leases.get(&kv.lease).copied().unwrap_or(0).to_le_bytes());
        }
        hex::encode(hash.finalize())
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = Lease> {
        self.leases.iter().map(|(id, ttl_seconds)| Lease { id: *id, ttl_seconds: *ttl_seconds })
    }
}
