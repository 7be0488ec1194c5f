//! One stored resource in memory: an immutable ordered map for reads, and a ring of recent changes for watchers.
//!
//! Invariants: the map and the ring move together, in revision order; a change is in the ring before anyone is told of
//! its revision; a watcher that falls off the ring is ended, never fed from anywhere else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use api::ApiError;
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::group::{GROUP, Group, Member};
use super::snapshot::Snapshot;
use super::stored::{Change, Reading, Stored};
use super::unreadable::Unreadable;
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
    /// Events that come while the cache is being filled; `None` once it is. Locked before the ring.
    postponed: Mutex<Option<Vec<Postponed>>>,
}

/// A change of an object.
#[derive(Debug)]
pub(super) enum Event {
    Put(Arc<Stored>),
    Unreadable(Arc<Unreadable>),
    Deleted,
}

#[derive(Debug)]
struct Postponed {
    key: String,
    revision: i64,
    event: Event,
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
        let (lease, snapshot) = Default::default();
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

    /// A stored value of a key below the prefix as an object.
    pub(crate) fn decode(&self, key: &str, revision: i64, value: &Bytes) -> Result<Stored, Unreadable> {
        let stored = Stored::read(key, revision, value.clone(), &self.reading);
        stored.map_err(|error| Unreadable::new(&format!("{}{key}", self.prefix), revision, value, &error))
    }

    /// Takes what there was at one revision, then what has come since.
    pub(super) fn fill(self: &Arc<Self>, found: Snapshot) {
        self.fill_locked(&mut self.postponed.lock(), found);
    }

    fn fill_locked(self: &Arc<Self>, postponed: &mut Option<Vec<Postponed>>, found: Snapshot) {
        // It may have been loaded with all others meanwhile.
        if self.revision() < found.revision {
            self.replace(found);
        }
        let loaded = self.revision();
        for Postponed { key, revision, event } in postponed.take().into_iter().flatten() {
            if revision > loaded {
                self.apply(vec![(key, event)], revision);
            }
        }
    }

    /// Takes the events of one revision. While the cache is being filled they wait: a deletion of what is not there yet must not be lost.
    pub(super) fn follow(self: &Arc<Self>, events: Vec<(String, Event)>, revision: i64) {
        let mut postponed = self.postponed.lock();
        match &mut *postponed {
            Some(waiting) => {
                waiting.extend(events.into_iter().map(|(key, event)| Postponed { key, revision, event }));
            }
            None => self.apply(events, revision),
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// An object as last read. What a client is to see or to change comes from [`Cache::read`].
    pub(crate) fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.snapshot.load().objects.get(key).cloned()
    }

    /// The object of a key; an error where it exists and cannot be read.
    pub(crate) fn read(&self, key: &str) -> Result<Option<Arc<Stored>>, ApiError> {
        let snapshot = self.snapshot.load();
        snapshot.check_key(key)?;
        Ok(snapshot.objects.get(key).cloned())
    }

    pub(crate) fn revision(&self) -> i64 {
        self.snapshot.load().revision
    }

    /// Replaces everything, as at start; watchers in progress must list again.
    pub(super) fn reset(&self, found: Snapshot) {
        // A cache that is being filled must not be set back to what was read before this.
        let _postponed = self.postponed.lock();
        self.replace(found);
    }

    fn replace(&self, found: Snapshot) {
        let mut ring = self.ring.lock();
        ring.interrupt(found.revision);
        self.snapshot.store(Arc::new(found));
        ring.tell();
    }

    /// Takes objects that could not be read before, each at the revision it was unreadable at; returns how many. Watchers must list again:
    /// the changes that they could not see belong to the past.
    pub(super) fn recover(&self, read: Vec<Stored>) -> usize {
        let mut ring = self.ring.lock();
        let mut snapshot = Snapshot::clone(&self.snapshot.load());
        let before = snapshot.unreadable.len();
        for stored in read {
            // A write during the read arrives as an event.
            if snapshot.unreadable.get(&stored.key).is_some_and(|known| known.revision == stored.revision) {
                snapshot.unreadable.remove(&stored.key);
                snapshot.objects.insert(stored.key.clone(), Arc::new(stored));
            }
        }
        let recovered = before - snapshot.unreadable.len();
        if recovered > 0 {
            ring.interrupt(snapshot.revision);
            self.snapshot.store(Arc::new(snapshot));
            ring.tell();
        }
        recovered
    }

    /// Applies the events of one revision.
    fn apply(self: &Arc<Self>, events: Vec<(String, Event)>, revision: i64) {
        let mut ring = self.ring.lock();
        let mut snapshot = Snapshot::clone(&self.snapshot.load());
        snapshot.revision = revision;
        let mut is_interrupted = false;
        for (key, event) in events {
            let previous = snapshot.objects.get(&*key).cloned();
            let change = match event {
                Event::Put(object) => {
                    snapshot.objects.insert(object.key.clone(), object.clone());
                    Some(Change::new(revision, object, previous, false))
                }
                // The last state, at the revision of the deletion, is what watchers are shown.
                Event::Deleted => snapshot.objects.remove(&*key).map(|last| {
                    let object = Arc::new(last.at(revision));
                    Change::new(revision, object, Some(last), true)
                }),
                Event::Unreadable(unreadable) => {
                    tracing::error!(error = %unreadable, "an object cannot be read");
                    snapshot.unreadable.insert(key.into(), unreadable);
                    is_interrupted = true;
                    continue;
                }
            };
            if !snapshot.unreadable.is_empty() {
                snapshot.unreadable.remove(&*key);
            }
            change.into_iter().for_each(|change| ring.push(Arc::new(change)));
        }
        if is_interrupted {
            ring.interrupt(revision);
        }
        self.snapshot.store(Arc::new(snapshot));
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

    /// Forgets everything up to a revision: watchers in progress fall behind, and list again.
    fn interrupt(&mut self, revision: i64) {
        self.first += self.changes.len() as u64 + 1;
        self.changes.clear();
        self.bytes = 0;
        self.forgotten = revision;
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
    const OBJECT: &[u8] = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#;

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

    /// A deletion that arrives while the cache takes what was there before, the deleted object included.
    #[test]
    fn a_deletion_during_the_fill_is_not_lost() {
        let cache = Arc::new(Cache::to_be_filled("/registry/configmaps/".into(), Reading::Paths(&[])));
        let bytes = bytes::Bytes::from_static(OBJECT);
        let object = Arc::new(cache.decode("default/a", 1, &bytes).unwrap());
        let objects = std::iter::once((object.key.clone(), object)).collect();
        let mut postponed = cache.postponed.lock();
        let begun = Arc::new(std::sync::Barrier::new(2));
        let deletion = std::thread::spawn({
            let (cache, begun) = (cache.clone(), begun.clone());
            move || {
                begun.wait();
                cache.follow(vec![("default/a".into(), Event::Deleted)], 2);
            }
        });
        begun.wait();
        (0..100).for_each(|_| std::thread::yield_now());
        cache.fill_locked(&mut postponed, Snapshot { revision: 1, objects, ..Snapshot::default() });
        assert!(cache.get("default/a").is_some());
        drop(postponed);
        deletion.join().unwrap();
        assert!(cache.get("default/a").is_none());
    }

    #[tokio::test]
    async fn an_unreadable_object_ends_watches_until_it_can_be_read() {
        let cache = Arc::new(Cache::new("/registry/configmaps/".into(), Reading::Paths(&[])));
        change(&cache, 1);
        let (mut place, _) = cache.watch_from(None).unwrap();
        let broken = |revision| {
            let error = cache.decode("default/a", revision, &bytes::Bytes::from_static(b"{")).unwrap_err();
            cache.follow(vec![("default/a".into(), Event::Unreadable(Arc::new(error)))], revision);
        };
        broken(2);
        assert_eq!(place.next().await.unwrap_err(), WatchError::FellBehind);
        assert_eq!(cache.read("default/a").unwrap_err().code, 500);
        assert!(cache.read("default/b").unwrap().is_none());
        let snapshot = cache.snapshot();
        assert!(snapshot.check_prefix("default/").is_err() && snapshot.check_prefix("").is_err());
        assert!(snapshot.check_prefix("other/").is_ok());
        // The server itself goes on with what it was.
        assert!(snapshot.check_known().is_ok());
        assert_eq!(cache.get("default/a").unwrap().revision, 1);
        // Only the value that could not be read is taken, and watchers from before it list again.
        let read = |revision| vec![cache.decode("default/a", revision, &bytes::Bytes::from_static(OBJECT)).unwrap()];
        assert_eq!((cache.recover(read(1)), cache.recover(read(2))), (0, 1));
        assert_eq!(cache.read("default/a").unwrap().unwrap().revision, 2);
        assert!(cache.watch_from(Some(1)).is_err());
        broken(3);
        change(&cache, 4);
        assert_eq!(cache.read("default/a").unwrap().unwrap().revision, 4);
        broken(5);
        cache.follow(vec![("default/a".into(), Event::Deleted)], 6);
        assert!(cache.read("default/a").unwrap().is_none());
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
        let object = Arc::new(cache.decode("default/a", revision, &bytes::Bytes::from_static(OBJECT)).unwrap());
        cache.follow(vec![("default/a".into(), Event::Put(object))], revision);
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
