//! Keeps every cache in step with the store: one watch over the whole registry feeds them all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use imbl::OrdMap;
use parking_lot::RwLock;
use store::{Batch, EventKind, Range, Store, StoreError};
use tokio::sync::watch;

use super::PREFIX;
use super::cache::Cache;
use super::encryption::SEALED;
use super::stored::{Change, Reading, Stored};

/// The caches by prefix, and how far they have come.
pub(crate) struct Feed {
    store: Arc<dyn Store>,
    caches: RwLock<HashMap<String, Arc<Cache>>>,
    applied: watch::Sender<i64>,
    event_ttl: Duration,
}

const EVENTS: &str = "/registry/events/";

impl Feed {
    pub(crate) fn new(store: Arc<dyn Store>, event_ttl: Duration) -> Arc<Self> {
        Arc::new(Self { store, caches: RwLock::default(), applied: watch::Sender::new(0), event_ttl })
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The cache of a prefix; resources that are stored together share it.
    pub(crate) fn cache(&self, prefix: &str, reading: Reading) -> Arc<Cache> {
        let mut caches = self.caches.write();
        let time_to_live = (prefix == EVENTS).then_some(self.event_ttl);
        let new = || Arc::new(Cache::new(prefix.to_owned(), reading).living(time_to_live));
        caches.entry(prefix.to_owned()).or_insert_with(new).clone()
    }

    /// A cache that comes while the feed runs, in place of any there was; answers it filled.
    pub(crate) async fn add(&self, prefix: &str, reading: Reading) -> Result<Arc<Cache>, StoreError> {
        let cache = Arc::new(Cache::to_be_filled(prefix.to_owned(), reading));
        self.caches.write().insert(prefix.to_owned(), cache.clone());
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = Range { start: prefix.to_owned().into(), end: Some(end.into()), ..Range::default() };
        let found = self.store.range(range).await?;
        let mut objects = OrdMap::new();
        for kv in found.kvs {
            let key = String::from_utf8_lossy(&kv.key);
            let key = key.strip_prefix(prefix).unwrap_or_default();
            match Stored::read(key, kv.mod_revision, kv.value.clone(), &cache.reading) {
                Ok(stored) => drop(objects.insert(stored.key.clone(), Arc::new(stored))),
                Err(error) => tracing::error!(%key, %error, "unreadable object"),
            }
        }
        // What is in the range must have been postponed, so that it is not applied on top of itself.
        self.reached(found.revision).await;
        cache.fill(objects, found.revision);
        Ok(cache)
    }

    /// Forgets a cache, unless another has taken its place.
    pub(crate) fn remove(&self, cache: &Arc<Cache>) {
        let mut caches = self.caches.write();
        if caches.get(&cache.prefix).is_some_and(|known| Arc::ptr_eq(known, cache)) {
            caches.remove(&cache.prefix);
        }
    }

    /// Loads everything; then [`Feed::run`] follows. At first, what is encrypted and cannot be read is an error: it must not
    /// seem to be gone.
    pub(crate) async fn load(&self, first: bool) -> Result<i64, StoreError> {
        let all =
            self.store.range(Range { start: PREFIX.into(), end: Some(after_prefix()), ..Range::default() }).await?;
        let mut loaded: HashMap<String, OrdMap<Arc<str>, Arc<Stored>>> = HashMap::new();
        for kv in all.kvs {
            let Some((cache, key)) = self.locate(&kv.key) else { continue };
            match Stored::read(&key, kv.mod_revision, kv.value.clone(), &cache.reading) {
                Ok(stored) => {
                    let stored = Arc::new(stored);
                    loaded.entry(cache.prefix.clone()).or_default().insert(stored.key.clone(), stored);
                }
                Err(_) if first && kv.value.starts_with(SEALED) => {
                    let key = String::from_utf8_lossy(&kv.key);
                    return Err(StoreError::Sealed(format!(
                        "{key} was written with an encryption that is not configured"
                    )));
                }
                Err(error) => tracing::error!(key = %String::from_utf8_lossy(&kv.key), %error, "unreadable object"),
            }
        }
        for cache in self.caches.read().values() {
            cache.reset(loaded.remove(&cache.prefix).unwrap_or_default(), all.revision);
        }
        self.applied.send_replace(all.revision);
        Ok(all.revision)
    }

    /// Follows the store until it closes; loads again where the watch broke off. It outlives the drain: whoever still
    /// writes while the server drains must see its writes.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let from = *self.applied.borrow() + 1;
            // Of every key, not only ours: on a store that is shared with others, each revision must still be seen to pass.
            let broken = match self.store.watch(EVERYTHING, Some(EVERYTHING), from).await {
                Ok(watch) => self.follow(watch).await,
                Err(error) => Some(error),
            };
            match broken {
                None | Some(StoreError::Closed) => return,
                Some(error) => tracing::warn!(%error, "store watch ended; loading again"),
            }
            while let Err(error) = self.load(false).await {
                if matches!(error, StoreError::Closed) {
                    return;
                }
                tracing::error!(%error, "the store cannot be read");
                tokio::time::sleep(RELOAD_PAUSE).await;
            }
        }
    }

    async fn follow(&self, mut watch: store::Watch) -> Option<StoreError> {
        while let Some(batch) = watch.next().await {
            match batch {
                Ok(batch) => self.apply(&batch),
                Err(error) => return Some(error),
            }
        }
        None
    }

    fn apply(&self, batch: &Batch) {
        let mut per_cache: Vec<(Arc<Cache>, Vec<Change>)> = Vec::with_capacity(1);
        for event in batch.events.iter() {
            let Some((cache, key)) = self.locate(&event.kv.key) else { continue };
            let read = |bytes| Stored::read(&key, batch.revision, bytes, &cache.reading).map(Arc::new);
            let previous = cache.get(&key);
            let object = match (event.kind, &previous) {
                (EventKind::Put, _) => read(event.kv.value.clone()).map(Some),
                // The last state, at the revision of the deletion, is what watchers are shown.
                (EventKind::Delete, Some(last)) => Ok(Some(Arc::new(last.at(batch.revision)))),
                (EventKind::Delete, None) => Ok(None),
            };
            let deleted = event.kind == EventKind::Delete;
            let change = match object {
                Ok(object) => {
                    if cache.postpone(&key, batch.revision, object.as_ref().filter(|_| !deleted)) {
                        continue;
                    }
                    let Some(object) = object else { continue };
                    Ok(Change::new(batch.revision, object, previous, deleted))
                }
                Err(error) => Err(error),
            };
            match change {
                Ok(change) => match per_cache.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &cache)) {
                    Some((_, changes)) => changes.push(change),
                    None => per_cache.push((cache, vec![change])),
                },
                Err(error) => tracing::error!(%key, %error, "unreadable object"),
            }
        }
        for (cache, changes) in per_cache {
            cache.apply(changes, batch.revision);
        }
        self.applied.send_replace(batch.revision);
    }

    /// The cache that a key belongs to. A prefix is of one or two parts below the root, and the longer one counts.
    fn locate(&self, key: &Bytes) -> Option<(Arc<Cache>, String)> {
        let key = std::str::from_utf8(key).ok()?;
        let below = key.strip_prefix(PREFIX)?;
        let caches = self.caches.read();
        let mut ends = below.match_indices('/').map(|(at, _)| PREFIX.len() + at + 1);
        let (first, second) = (ends.next()?, ends.next());
        [second, Some(first)].into_iter().flatten().find_map(|end| {
            let (prefix, rest) = key.split_at_checked(end)?;
            Some((caches.get(prefix)?.clone(), rest.to_owned()))
        })
    }

    /// Waits until the caches hold `revision`.
    pub(crate) async fn reached(&self, revision: i64) {
        if *self.applied.borrow() >= revision {
            return;
        }
        let mut applied = self.applied.subscribe();
        // The sender lives as long as `self`.
        let _ = applied.wait_for(|applied| *applied >= revision).await;
    }

    /// Waits until the caches hold everything acknowledged before this call; answers that revision.
    pub(crate) async fn current(&self) -> Result<i64, StoreError> {
        let revision = self.store.revision().await?;
        self.reached(revision).await;
        Ok(revision)
    }

    pub(crate) fn applied(&self) -> i64 {
        *self.applied.borrow()
    }

    /// Follows how far the caches have come, for bookmarks.
    pub(crate) fn progress(&self) -> watch::Receiver<i64> {
        self.applied.subscribe()
    }
}

/// How long to leave a store alone that cannot be read.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// The first possible key, and as an end: no end.
const EVERYTHING: Bytes = Bytes::from_static(b"\0");

fn after_prefix() -> Bytes {
    Bytes::from_static(b"/registry0")
}
