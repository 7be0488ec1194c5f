//! The store's whole content at one moment, immutable once published; and how a transaction changes it.
//!
//! Cloning is a few reference counts: the maps share structure. The live keys are one ordered map. History is the list
//! of past events, each with the value it replaced, so a read at an old revision undoes what came after it.
//!
//! Invariants: `history` holds the revisions from [`State::oldest`] to `revision` without a gap, and starts at `compacted`
//! or before; a key with a lease is in `attached`, and its lease in `leases`.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet, Vector};

use crate::{Batch, Event, EventKind, KeyValue, Keys, Range, RangeResult, Revision, StoreError};

mod compare;
mod txn;

pub(crate) use self::txn::Need;

/// What an event costs in memory besides its bytes: the event, two shared pointers, the key-value's header.
const EVENT_OVERHEAD: usize = 200;

#[derive(Clone)]
pub(crate) struct State {
    pub(crate) revision: Revision,
    /// The oldest revision that may be read or watched from.
    pub(crate) compacted: Revision,
    pub(crate) keys: OrdMap<Bytes, Arc<KeyValue>>,
    pub(crate) history: Vector<Past>,
    pub(crate) history_bytes: usize,
    /// The granted seconds by lease id.
    pub(crate) leases: OrdMap<i64, i64>,
    attached: OrdSet<(i64, Bytes)>,
}

/// A revision that can still be watched or undone.
#[derive(Clone)]
pub(crate) struct Past {
    pub(crate) at: Instant,
    pub(crate) batch: Batch,
    bytes: usize,
}

impl State {
    pub(crate) fn empty() -> State {
        State {
            revision: 1,
            compacted: 0,
            keys: OrdMap::new(),
            history: Vector::new(),
            history_bytes: 0,
            leases: OrdMap::new(),
            attached: OrdSet::new(),
        }
    }

    /// The same keys and leases with no past, as a base segment holds them.
    pub(crate) fn without_history(&self) -> State {
        State { history: Vector::new(), history_bytes: 0, ..self.clone() }
    }

    /// The first revision whose events are held; the next one to come if none are.
    pub(crate) fn oldest(&self) -> Revision {
        self.history.front().map_or(self.revision + 1, |past| past.batch.revision)
    }

    /// The held revisions from `from` on.
    pub(crate) fn since(&self, from: Revision) -> impl Iterator<Item = &Past> {
        let first = usize::try_from(from.saturating_sub(self.oldest())).unwrap_or(0);
        // Not a focus, whose making copies the root: most who ask want only the last one or two.
        (first..self.history.len()).map_while(|index| self.history.get(index))
    }

    /// Refuses revisions that are given up or not yet reached. 0 and less is now.
    pub(crate) fn readable(&self, revision: Revision) -> Result<(), StoreError> {
        if revision > self.revision {
            return Err(StoreError::FutureRevision { asked: revision, current: self.revision });
        }
        if revision > 0 && revision < self.compacted {
            return Err(StoreError::Compacted { oldest: self.compacted });
        }
        Ok(())
    }

    pub(crate) fn range(&self, range: &Range) -> Result<RangeResult, StoreError> {
        self.readable(range.revision)?;
        Ok(self.select(range, &[]))
    }

    /// `pending` are the events of the transaction that asks: already in `keys`, not yet in `history`.
    fn select(&self, range: &Range, pending: &[Event]) -> RangeResult {
        let keys = Keys::new(range.start.clone(), range.end.clone());
        let mut found = Selection::new(range, self.revision + i64::from(!pending.is_empty()));
        let Some(bounds) = keys.bounds() else { return found.result };
        let live = self.keys.range::<_, [u8]>(bounds).map(|(_, kv)| kv);
        if range.revision <= 0 || (range.revision == self.revision && pending.is_empty()) {
            live.for_each(|kv| found.add(kv));
            return found.result;
        }
        let then = self.undo(&keys, range.revision, pending);
        let mut then = then.into_iter().peekable();
        for kv in live {
            while let Some((_, old)) = then.next_if(|(key, _)| *key < kv.key) {
                old.iter().for_each(|kv| found.add(kv));
            }
            match then.next_if(|(key, _)| *key == kv.key) {
                Some((_, old)) => old.iter().for_each(|kv| found.add(kv)),
                None => found.add(kv),
            }
        }
        then.for_each(|(_, old)| old.iter().for_each(|kv| found.add(kv)));
        found.result
    }

    /// What each key changed after `revision` held at that revision.
    fn undo<'a>(
        &'a self,
        keys: &Keys,
        revision: Revision,
        pending: &'a [Event],
    ) -> BTreeMap<Bytes, Option<Arc<KeyValue>>> {
        let mut then = BTreeMap::new();
        let past = self.since(revision + 1).flat_map(|past| past.batch.events.iter());
        for event in past.chain(pending).filter(|event| keys.contains(&event.kv.key)) {
            then.entry(event.kv.key.clone()).or_insert_with(|| event.prev.clone());
        }
        then
    }

    pub(crate) fn put(&mut self, revision: Revision, key: Bytes, value: Bytes, lease: i64) -> Event {
        let prev = self.keys.get(key.as_ref()).cloned();
        let (create_revision, version) = prev.as_ref().map_or((revision, 1), |kv| (kv.create_revision, kv.version + 1));
        // The old key is taken again so that all versions share one allocation.
        let key = prev.as_ref().map_or(key, |kv| kv.key.clone());
        self.detach(prev.as_deref());
        let kv = Arc::new(KeyValue { key, value, create_revision, mod_revision: revision, version, lease });
        self.insert(kv.clone());
        Event { kind: EventKind::Put, kv, prev }
    }

    /// Adds a key as it is, without an event: how a base segment is loaded.
    pub(crate) fn insert(&mut self, kv: Arc<KeyValue>) {
        if kv.lease != 0 {
            self.attached.insert((kv.lease, kv.key.clone()));
        }
        self.keys.insert(kv.key.clone(), kv);
    }

    pub(crate) fn delete(&mut self, revision: Revision, key: Bytes) -> Option<Event> {
        let prev = self.keys.remove(key.as_ref())?;
        self.detach(Some(&prev));
        let kv = Arc::new(KeyValue { key: prev.key.clone(), mod_revision: revision, ..KeyValue::default() });
        Some(Event { kind: EventKind::Delete, kv, prev: Some(prev) })
    }

    fn detach(&mut self, prev: Option<&KeyValue>) {
        if let Some(kv) = prev.filter(|kv| kv.lease != 0) {
            self.attached.remove(&(kv.lease, kv.key.clone()));
        }
    }

    /// Turns what was put and deleted since the last commit into the next revision.
    pub(crate) fn commit(&mut self, events: Vec<Event>, now: Instant) {
        if events.is_empty() {
            return;
        }
        self.revision += 1;
        let bytes = events.iter().map(|event| event.kv.key.len() + event.kv.value.len() + EVENT_OVERHEAD).sum();
        self.history_bytes += bytes;
        let batch = Batch { revision: self.revision, events: events.into() };
        self.history.push_back(Past { at: now, batch, bytes });
    }

    /// Gives up what came before `revision` and returns it: dropping it takes time that a commit should not spend.
    pub(crate) fn compact(&mut self, revision: Revision) -> Vector<Past> {
        self.compacted = self.compacted.max(revision);
        let given_up = usize::try_from(self.compacted - self.oldest()).unwrap_or(0).min(self.history.len());
        let kept = self.history.split_off(given_up);
        let dropped = std::mem::replace(&mut self.history, kept);
        self.history_bytes -= dropped.iter().map(|past| past.bytes).sum::<usize>();
        dropped
    }

    /// The revision to compact to so that history takes no more than `limit` bytes; `None` if it does not.
    pub(crate) fn excess(&self, limit: usize) -> Option<Revision> {
        if self.history_bytes <= limit {
            return None;
        }
        // A quarter more than needed, so that a steady writer compacts once in a while and not with every commit.
        let mut surplus = self.history_bytes - limit / 4 * 3;
        let first_kept = self.history.iter().find(|past| {
            let keep = surplus == 0;
            surplus = surplus.saturating_sub(past.bytes);
            keep
        });
        Some(first_kept.map_or(self.revision, |past| past.batch.revision))
    }

    pub(crate) fn keys_of(&self, lease: i64) -> Vec<Bytes> {
        let of_lease = self.attached.range((lease, Bytes::new())..).take_while(|(id, _)| *id == lease);
        of_lease.map(|(_, key)| key.clone()).collect()
    }

    /// Ends a lease and deletes its keys.
    pub(crate) fn revoke(&mut self, lease: i64, now: Instant) -> Result<(), StoreError> {
        if self.leases.remove(&lease).is_none() {
            return Err(StoreError::LeaseNotFound(lease));
        }
        let revision = self.revision + 1;
        let events = self.keys_of(lease).into_iter().filter_map(|key| self.delete(revision, key)).collect();
        self.commit(events, now);
        Ok(())
    }
}

/// Gathers a range's answer: counts everything, keeps what the limit lets through.
struct Selection<'a> {
    range: &'a Range,
    result: RangeResult,
}

impl Selection<'_> {
    fn new(range: &Range, revision: Revision) -> Selection<'_> {
        Selection { range, result: RangeResult { revision, ..RangeResult::default() } }
    }

    fn add(&mut self, kv: &Arc<KeyValue>) {
        self.result.count += 1;
        if self.range.count_only {
            return;
        }
        if self.range.limit > 0 && self.result.kvs.len() >= self.range.limit {
            self.result.more = true;
            return;
        }
        self.result.kvs.push(match self.range.keys_only {
            true => Arc::new(KeyValue { value: Bytes::new(), ..KeyValue::clone(kv) }),
            false => kv.clone(),
        });
    }
}
