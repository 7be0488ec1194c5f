//! Keeps every cache in step with the store: one watch over the whole registry feeds them all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use parking_lot::RwLock;
use store::{Batch, EventKind, Range, Store, StoreError};
use tokio::sync::{Notify, watch};

use super::PREFIX;
use super::cache::{Cache, Event};
use super::snapshot::Snapshot;
use super::stored::Reading;

/// The caches by prefix, and how far they have come.
pub(crate) struct Feed {
    store: Arc<dyn Store>,
    caches: RwLock<HashMap<String, Arc<Cache>>>,
    applied: watch::Sender<i64>,
    event_ttl: Duration,
    /// There are values to be read again.
    has_unreadable: Notify,
}

/// A change of one key below a cache's prefix.
type Keyed = (String, Event);

const EVENTS: &str = "/registry/events/";

impl Feed {
    pub(crate) fn new(store: Arc<dyn Store>, event_ttl: Duration) -> Arc<Self> {
        let (caches, has_unreadable) = Default::default();
        Arc::new(Self { store, caches, applied: watch::Sender::new(0), event_ttl, has_unreadable })
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
        let mut snapshot = Snapshot { revision: found.revision, ..Snapshot::default() };
        for kv in found.kvs {
            let key = String::from_utf8_lossy(&kv.key);
            let key = key.strip_prefix(prefix).unwrap_or_default();
            match cache.decode(key, kv.mod_revision, &kv.value) {
                Ok(stored) => drop(snapshot.objects.insert(stored.key.clone(), Arc::new(stored))),
                Err(error) => {
                    tracing::error!(%error, "an object cannot be read");
                    snapshot.unreadable.insert(key.into(), Arc::new(error));
                    self.has_unreadable.notify_one();
                }
            }
        }
        // What is in the range must have been postponed, so that it is not applied on top of itself.
        self.reached(found.revision).await;
        cache.fill(snapshot);
        Ok(cache)
    }

    /// Forgets a cache, unless another has taken its place.
    pub(crate) fn remove(&self, cache: &Arc<Cache>) {
        let mut caches = self.caches.write();
        if caches.get(&cache.prefix).is_some_and(|known| Arc::ptr_eq(known, cache)) {
            caches.remove(&cache.prefix);
        }
    }

    /// Loads everything; then [`Feed::run`] follows. At first, a value whose key is not configured is an error: a server that was started
    /// without the keys of its cluster is of no use.
    pub(crate) async fn load(&self, first: bool) -> Result<i64, StoreError> {
        let all =
            self.store.range(Range { start: PREFIX.into(), end: Some(after_prefix()), ..Range::default() }).await?;
        let mut loaded: HashMap<String, Snapshot> = HashMap::new();
        for kv in all.kvs {
            let Some((cache, key)) = self.locate(&kv.key) else { continue };
            let snapshot = loaded.entry(cache.prefix.clone()).or_default();
            match cache.decode(&key, kv.mod_revision, &kv.value) {
                Ok(stored) => drop(snapshot.objects.insert(stored.key.clone(), Arc::new(stored))),
                Err(error) if first && error.lacks_key => {
                    let key = String::from_utf8_lossy(&kv.key);
                    return Err(StoreError::Sealed(format!(
                        "{key} was written with an encryption that is not configured"
                    )));
                }
                Err(error) => {
                    tracing::error!(%error, "an object cannot be read");
                    let last = cache.get(&key);
                    last.into_iter().for_each(|last| drop(snapshot.objects.insert(last.key.clone(), last)));
                    snapshot.unreadable.insert(key.into(), Arc::new(error));
                    self.has_unreadable.notify_one();
                }
            }
        }
        for cache in self.caches.read().values() {
            let found = loaded.remove(&cache.prefix).unwrap_or_default();
            cache.reset(Snapshot { revision: all.revision, ..found });
        }
        self.applied.send_replace(all.revision);
        Ok(all.revision)
    }

    /// Follows the store until it closes; loads again where the watch broke off. It outlives the drain: whoever still
    /// writes while the server drains must see its writes.
    pub(crate) async fn run(self: Arc<Self>) {
        tokio::select! {
            () = self.follow_store() => (),
            () = self.reread() => (),
        }
    }

    async fn follow_store(&self) {
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
        let mut per_cache: Vec<(Arc<Cache>, Vec<Keyed>)> = Vec::with_capacity(1);
        for event in batch.events.iter() {
            let Some((cache, key)) = self.locate(&event.kv.key) else { continue };
            let event = match event.kind {
                EventKind::Delete => Event::Deleted,
                EventKind::Put => match cache.decode(&key, batch.revision, &event.kv.value) {
                    Ok(object) => Event::Put(Arc::new(object)),
                    Err(error) => {
                        self.has_unreadable.notify_one();
                        Event::Unreadable(Arc::new(error))
                    }
                },
            };
            match per_cache.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &cache)) {
                Some((_, events)) => events.push((key, event)),
                None => per_cache.push((cache, vec![(key, event)])),
            }
        }
        for (cache, events) in per_cache {
            cache.follow(events, batch.revision);
        }
        self.applied.send_replace(batch.revision);
    }

    /// Reads values that could not be read again and again: a KMS plugin may have come back.
    async fn reread(&self) {
        loop {
            self.has_unreadable.notified().await;
            let mut pause = REREAD_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                let caches: Vec<_> = self.caches.read().values().cloned().collect();
                let (mut recovered, mut left) = (0, 0);
                for cache in caches {
                    recovered += self.reread_cache(&cache).await;
                    left += cache.snapshot().unreadable.len();
                }
                if recovered > 0 {
                    tracing::info!(recovered, left, "objects can be read again");
                }
                match (left, recovered) {
                    (0, _) => break,
                    (_, 0) => pause = (pause * 2).min(LONGEST_REREAD_PAUSE),
                    _ => pause = REREAD_PAUSE,
                }
            }
        }
    }

    /// How many objects of a cache could be read now.
    async fn reread_cache(&self, cache: &Cache) -> usize {
        let mut found = Vec::new();
        for (key, unreadable) in &cache.snapshot().unreadable {
            let Ok(range) = self.store.range(Range::key(format!("{}{key}", cache.prefix))).await else { break };
            let kv = range.kvs.first().filter(|kv| kv.mod_revision == unreadable.revision);
            found.extend(kv.and_then(|kv| cache.decode(key, kv.mod_revision, &kv.value).ok()));
        }
        if found.is_empty() { 0 } else { cache.recover(found) }
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

/// How long to wait before values that could not be read are read again: at first, and while none of them can be.
const REREAD_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REREAD_PAUSE: Duration = Duration::from_secs(10);

/// The first possible key, and as an end: no end.
const EVERYTHING: Bytes = Bytes::from_static(b"\0");

fn after_prefix() -> Bytes {
    Bytes::from_static(b"/registry0")
}
