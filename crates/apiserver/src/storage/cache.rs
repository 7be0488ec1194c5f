//! One stored resource in memory: an immutable ordered map for reads, and a ring of recent changes for watchers.
//!
//! Invariants: the map and the ring move together, in revision order; a change is in the ring before anyone is told of
//! its revision; a watcher that falls off the ring is ended, never fed from anywhere else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::group::{GROUP, Group, Member};
use super::stored::{Change, Reading, Stored};
use crate::heavy::give_way;

/// Enough for a client that reconnects after a pause, small enough to forget.
const RING_CHANGES: usize = 4096;
const RING_BYTES: usize = 16 << 20;
/// How many changes a watcher takes at once, and how many bytes of them.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 32 << 10;
/// After how many times so many others get their turn who are none of this process.
const COURTEOUS: usize = 8;
/// For each of more, the time that is left to everybody else after all were woken. What changes meanwhile they are told together.
const REST: Duration = Duration::from_nanos(4500);
const LONGEST_REST: Duration = Duration::from_millis(25);

/// All objects of a resource as of one revision.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub revision: i64,
    pub objects: OrdMap<Arc<str>, Arc<Stored>>,
}

#[derive(Debug)]
pub(crate) struct Cache {
    /// `/registry/pods/`
    pub prefix: String,
    pub reading: Reading,
    /// How long objects live after their last write, in seconds; for ever where there is none.
    pub(super) time_to_live: Option<i64>,
    pub(super) lease: tokio::sync::Mutex<Option<(i64, Instant)>>,
    snapshot: ArcSwap<Snapshot>,
    ring: Mutex<Ring>,
    /// Changes that come while the cache is being filled; `None` once it is.
    postponed: Mutex<Option<Vec<Postponed>>>,
}

/// What became of a key at a revision; nothing is left of what was deleted.
#[derive(Debug)]
struct Postponed {
    key: String,
    revision: i64,
    object: Option<Arc<Stored>>,
}

#[derive(Debug, Default)]
struct Ring {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// The sequence number of the first change in the ring.
    first: u64,
    /// Changes up to this revision may be missing from the ring.
    forgotten: i64,
    groups: Vec<Arc<Group>>,
    /// Somebody wakes one group after the other until nothing changes any more.
    is_waking: bool,
}

/// A watcher's place in the ring.
pub(crate) struct Place {
    cache: Arc<Cache>,
    position: u64,
    member: Member,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld { asked: i64, oldest: i64 },
    #[error("the watcher fell behind")]
    FellBehind,
}

impl Cache {
    pub(crate) fn new(prefix: String, reading: Reading) -> Self {
        let snapshot = Snapshot { revision: 0, objects: OrdMap::new() };
        let (lease, snapshot) = (tokio::sync::Mutex::default(), ArcSwap::from_pointee(snapshot));
        let (ring, postponed) = (Mutex::default(), Mutex::default());
        Self { prefix, reading, time_to_live: None, lease, snapshot, ring, postponed }
    }

    /// Of objects that live that long.
    pub(super) fn living(self, time_to_live: Option<Duration>) -> Self {
        Self { time_to_live: time_to_live.and_then(|time| i64::try_from(time.as_secs()).ok()), ..self }
    }

    /// A cache that follows changes at once and is filled with what was there before.
    pub(super) fn to_be_filled(prefix: String, reading: Reading) -> Self {
        Self { postponed: Mutex::new(Some(Vec::new())), ..Self::new(prefix, reading) }
    }

    /// Keeps a change until the cache is filled; `false` where it is.
    pub(super) fn postpone(&self, key: &str, revision: i64, object: Option<&Arc<Stored>>) -> bool {
        let mut postponed = self.postponed.lock();
        let Some(waiting) = &mut *postponed else { return false };
        waiting.push(Postponed { key: key.to_owned(), revision, object: object.cloned() });
        true
    }

    /// Takes what was there at `revision`, then what has come since.
    pub(super) fn fill(self: &Arc<Self>, objects: OrdMap<Arc<str>, Arc<Stored>>, revision: i64) {
        let mut postponed = self.postponed.lock();
        // It may have been loaded with all others meanwhile.
        if self.snapshot.load().revision < revision {
            self.reset(objects, revision);
        }
        let loaded = self.snapshot.load().revision;
        for change in postponed.take().into_iter().flatten().filter(|change| change.revision > loaded) {
            let previous = self.get(&change.key);
            let deleted = change.object.is_none();
            if let Some(object) = change.object.or_else(|| previous.clone()) {
                self.apply(vec![Change::new(change.revision, object, previous, deleted)], change.revision);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.snapshot.load().objects.get(key).cloned()
    }

    pub(crate) fn revision(&self) -> i64 {
        self.snapshot.load().revision
    }

    /// Replaces everything, as at start; watchers in progress are told to list again.
    pub(super) fn reset(&self, objects: OrdMap<Arc<str>, Arc<Stored>>, revision: i64) {
        let mut ring = self.ring.lock();
        ring.first += ring.changes.len() as u64 + 1;
        ring.changes.clear();
        ring.bytes = 0;
        ring.forgotten = revision;
        self.snapshot.store(Arc::new(Snapshot { revision, objects }));
        ring.tell();
    }

    /// Applies the changes of one revision.
    pub(super) fn apply(self: &Arc<Self>, changes: Vec<Change>, revision: i64) {
        let mut objects = self.snapshot.load().objects.clone();
        let mut ring = self.ring.lock();
        for change in changes {
            if change.deleted {
                objects.remove(&change.object.key);
            } else {
                objects.insert(change.object.key.clone(), change.object.clone());
            }
            ring.push(Arc::new(change));
        }
        self.snapshot.store(Arc::new(Snapshot { revision, objects }));
        if ring.has_few_watchers() {
            ring.tell();
        } else if !std::mem::replace(&mut ring.is_waking, true) {
            tokio::spawn(wake(self.clone()));
        }
    }

    /// A place just after `revision`; `None` starts after what the current snapshot holds, which is returned too.
    pub(crate) fn watch_from(self: &Arc<Self>, revision: Option<i64>) -> Result<(Place, Arc<Snapshot>), WatchError> {
        self.watch_over(revision, None)
    }

    /// The same for somebody who shares a connection with others.
    pub(crate) fn watch_over(
        self: &Arc<Self>,
        revision: Option<i64>,
        connection: Option<u64>,
    ) -> Result<(Place, Arc<Snapshot>), WatchError> {
        let mut ring = self.ring.lock();
        let snapshot = self.snapshot.load_full();
        let position = match revision {
            None => ring.end(),
            Some(revision) if revision < ring.forgotten => {
                return Err(WatchError::TooOld { asked: revision, oldest: ring.forgotten });
            }
            Some(revision) => ring.first + ring.changes.partition_point(|change| change.revision <= revision) as u64,
        };
        Ok((Place { cache: self.clone(), position, member: ring.join(connection) }, snapshot))
    }
}

/// Tells many watchers how far the ring has come, a group at a time, and lets others work before it tells them again.
async fn wake(cache: Arc<Cache>) {
    loop {
        let (first_told, groups) = {
            let mut ring = cache.ring.lock();
            ring.groups.retain(|group| group.watchers() > 0);
            (ring.end(), ring.groups.clone())
        };
        let mut told = first_told;
        let (mut watchers, mut together, mut turns) = (0, 0, 0);
        for group in &groups {
            let woken = group.watchers();
            if together > 0 && together + woken > GROUP {
                // Those who were woken, and whoever has come since.
                match turns % COURTEOUS {
                    0 => give_way().await,
                    _ => tokio::task::yield_now().await,
                }
                (together, turns) = (0, turns + 1);
                // Who comes late is told what has changed since, rather than a round later.
                told = cache.ring.lock().end();
            }
            group.tell(told);
            (watchers, together) = (watchers + woken, together + woken);
        }
        let watchers = u32::try_from(watchers).unwrap_or(u32::MAX);
        tokio::time::sleep(REST.saturating_mul(watchers).min(LONGEST_REST)).await;
        let mut ring = cache.ring.lock();
        if ring.end() == first_told {
            ring.is_waking = false;
            return;
        }
    }
}

impl Place {
    /// Every change so far has been handed out.
    pub(crate) fn is_at_end(&self) -> bool {
        self.cache.ring.lock().end() == self.position
    }

    /// All changes from here on, without waiting, and the revision they lead to.
    pub(super) fn since(&mut self) -> Result<(Vec<Arc<Change>>, i64), WatchError> {
        let ring = self.cache.ring.lock();
        let skip = self.position.checked_sub(ring.first).ok_or(WatchError::FellBehind)?;
        let changes = ring.changes.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)).cloned().collect();
        self.position = ring.end();
        Ok((changes, self.cache.revision()))
    }

    /// The changes from here on, waiting for the first; the place moves past them.
    pub(crate) async fn next(&mut self) -> Result<Vec<Arc<Change>>, WatchError> {
        loop {
            self.ready().await;
            let changes = self.take()?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// How far the ring was when its watchers were told. This place may be further.
    pub(crate) fn told(&self) -> u64 {
        self.member.told()
    }

    /// There are changes from here on that watchers were told of.
    pub(crate) fn is_behind(&self) -> bool {
        self.told() > self.position
    }

    /// Waits until there are changes from here on.
    pub(crate) async fn ready(&mut self) {
        self.member.told_beyond(self.position).await;
    }

    /// Some of the changes from here on; the place moves past them.
    pub(crate) fn take(&mut self) -> Result<Vec<Arc<Change>>, WatchError> {
        let ring = self.cache.ring.lock();
        let skip = self.position.checked_sub(ring.first).ok_or(WatchError::FellBehind)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(ring.changes.len());
        let mut bytes = 0;
        let some = ring.changes.range(skip..).take(BATCH).take_while(|change| {
            let is_first = bytes == 0;
            bytes += change.object.size();
            is_first || bytes <= BATCH_BYTES
        });
        let changes: Vec<_> = some.cloned().collect();
        self.position += changes.len() as u64;
        Ok(changes)
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Moves past changes that were seen elsewhere.
    pub(crate) fn skip_to(&mut self, position: u64) {
        self.position = position;
    }
}

impl Ring {
    fn end(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// Wakes everybody.
    fn tell(&self) {
        let end = self.end();
        self.groups.iter().for_each(|group| group.tell(end));
    }

    /// All of them may be woken at once.
    fn has_few_watchers(&self) -> bool {
        self.groups.len() <= GROUP && self.groups.iter().map(|group| group.watchers()).sum::<usize>() <= GROUP
    }

    /// One more is to be woken.
    fn join(&mut self, connection: Option<u64>) -> Member {
        let has_room = |group: &&Arc<Group>| group.connection == connection && group.watchers() < GROUP;
        if let Some(group) = self.groups.iter().rev().find(has_room) {
            return Member::of(group);
        }
        // Those that everybody has left make room: only many watchers are looked after when something changes.
        self.groups.retain(|group| group.watchers() > 0);
        let group = Arc::new(Group::new(connection, self.end()));
        self.groups.push(group.clone());
        Member::of(&group)
    }

    fn push(&mut self, change: Arc<Change>) {
        self.bytes += change.object.size();
        self.changes.push_back(change);
        while self.changes.len() > RING_CHANGES || self.bytes > RING_BYTES {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= oldest.object.size();
            self.first += 1;
            self.forgotten = oldest.revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGES: i64 = 20;

    /// However many watch, each sees every change, in order; and many are woken less often than something changes.
    #[tokio::test(start_paused = true)]
    async fn every_watcher_sees_every_change() {
        for (watchers, is_together) in [(3, false), (GROUP * 30, true)] {
            let cache = Arc::new(Cache::new("/registry/configmaps/".into(), Reading::Paths(&[])));
            let places = (0..watchers).map(|_| cache.watch_from(None).unwrap().0);
            let tasks: tokio::task::JoinSet<_> = places.map(watched).collect();
            for revision in 1..=CHANGES {
                change(&cache, revision);
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
            for (seen, woken) in tasks.join_all().await {
                assert_eq!(seen, (1..=CHANGES).collect::<Vec<_>>());
                assert_eq!(woken < seen.len(), is_together, "woken {woken} times");
            }
        }
    }

    /// Of many, those who are woken late are told of what has changed since the first were woken.
    #[tokio::test(start_paused = true)]
    async fn who_is_woken_late_is_told_the_newest() {
        let cache = Arc::new(Cache::new("/registry/configmaps/".into(), Reading::Paths(&[])));
        let places: Vec<_> = (0..GROUP * 3).map(|_| cache.watch_from(None).unwrap().0).collect();
        let mut places = places.into_iter();
        let (first, last) = (places.next().unwrap(), places.next_back().unwrap());
        let [first, last] = [first, last].map(|mut place| {
            tokio::spawn(async move {
                place.ready().await;
                place.told()
            })
        });
        change(&cache, 1);
        assert_eq!(first.await.unwrap(), 1);
        change(&cache, 2);
        assert_eq!(last.await.unwrap(), 2);
    }

    #[test]
    fn watchers_of_a_connection_are_together() {
        let cache = Arc::new(Cache::new("/registry/configmaps/".into(), Reading::Paths(&[])));
        let connections = [Some(1), Some(2), None].into_iter().cycle().take(3 * (GROUP + 1));
        let places: Vec<_> = connections.map(|connection| cache.watch_over(None, connection).unwrap().0).collect();
        let groups = |cache: &Cache| -> Vec<_> {
            cache.ring.lock().groups.iter().map(|group| (group.connection, group.watchers())).collect()
        };
        let full = [Some(1), Some(2), None].map(|connection| (connection, GROUP));
        assert_eq!(groups(&cache), [full, full.map(|(connection, _)| (connection, 1))].concat());
        drop(places);
        let _last = cache.watch_over(None, Some(3)).unwrap();
        assert_eq!(groups(&cache), [(Some(3), 1)], "groups that everybody has left are forgotten");
    }

    fn change(cache: &Arc<Cache>, revision: i64) {
        let bytes = bytes::Bytes::from_static(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#);
        let object = Arc::new(Stored::read("default/a", revision, bytes, &cache.reading).unwrap());
        cache.apply(vec![Change::new(revision, object, None, false)], revision);
    }

    /// The revisions that come, and in how many parts.
    async fn watched(mut place: Place) -> (Vec<i64>, usize) {
        let (mut seen, mut woken) = (Vec::new(), 0);
        while seen.last() != Some(&CHANGES) {
            seen.extend(place.next().await.unwrap().iter().map(|change| change.revision));
            woken += 1;
        }
        (seen, woken)
    }
}
