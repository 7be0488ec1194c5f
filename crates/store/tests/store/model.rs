//! The naive store: a list of everything that ever happened, replayed for every question. Slow, and too simple to be wrong.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures::StreamExt;
use store::*;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;

type Map = BTreeMap<Bytes, Arc<KeyValue>>;

#[derive(Default)]
pub(crate) struct Model(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    log: Vec<Vec<Event>>,
    compacted: Revision,
    leases: BTreeMap<i64, i64>,
    watchers: Vec<(Keys, Revision, UnboundedSender<Batch>)>,
}

/// The first entry of the log is revision 2.
fn revision_of(index: usize) -> Revision {
    index as Revision + 2
}

impl Inner {
    fn revision(&self) -> Revision {
        self.log.len() as Revision + 1
    }

    fn at(&self, revision: Revision) -> Map {
        let mut map = Map::new();
        for (index, events) in self.log.iter().enumerate() {
            if revision_of(index) <= revision {
                replay(&mut map, events);
            }
        }
        map
    }

    fn readable(&self, revision: Revision) -> Result<(), StoreError> {
        match revision {
            0 => Ok(()),
            asked if asked > self.revision() => Err(StoreError::FutureRevision { asked, current: self.revision() }),
            asked if asked < self.compacted => Err(StoreError::Compacted { oldest: self.compacted }),
            _ => Ok(()),
        }
    }

    fn range(&self, range: &Range, now: &Map, revision: Revision) -> RangeResult {
        let at = if range.revision == 0 { now.clone() } else { self.at(range.revision) };
        let keys = Keys::new(range.start.clone(), range.end.clone());
        let all: Vec<_> = at.into_values().filter(|kv| keys.contains(&kv.key)).collect();
        let limit = if range.limit == 0 { all.len() } else { range.limit };
        let (count, more) = (all.len() as i64, all.len() > limit && !range.count_only);
        let kept = all.into_iter().take(if range.count_only { 0 } else { limit });
        let kvs = kept
            .map(|kv| if range.keys_only { Arc::new(KeyValue { value: Bytes::new(), ..(*kv).clone() }) } else { kv });
        RangeResult { kvs: kvs.collect(), more, count, revision }
    }

    fn push(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.log.push(events.clone());
        let revision = self.revision();
        for (keys, from, sender) in &self.watchers {
            if let Some(batch) = pick(keys, revision, &events).filter(|_| revision >= *from) {
                let _ = sender.send(batch);
            }
        }
    }

    fn txn(&mut self, txn: Txn) -> Result<TxnResult, StoreError> {
        let before = self.at(self.revision());
        let mut done = Done { map: before.clone(), events: Vec::new() };
        let mut result = self.perform(txn, &before, &mut done)?;
        self.push(done.events);
        stamp(&mut result, self.revision());
        Ok(result)
    }

    fn perform(&self, txn: Txn, before: &Map, done: &mut Done) -> Result<TxnResult, StoreError> {
        let succeeded = txn.compares.iter().all(|compare| holds(before, compare));
        let ops = if succeeded { txn.success } else { txn.failure };
        let revision = self.revision() + 1;
        let mut results = Vec::new();
        for op in ops {
            let known = done.events.len();
            results.push(match op {
                Op::Update { key, .. } if !before.contains_key(&key) => return Err(StoreError::KeyNotFound),
                Op::Put { lease, .. } | Op::Update { lease: Some(lease), .. }
                    if lease != 0 && !self.leases.contains_key(&lease) =>
                {
                    return Err(StoreError::LeaseNotFound(lease));
                }
                Op::Put { key, value, lease } => done.put(revision, key, Some(value), Some(lease)),
                Op::Update { key, value, lease } => done.put(revision, key, value, lease),
                Op::Delete { key, end } => {
                    let keys = Keys::new(key, end);
                    let prev: Vec<_> = done.map.values().filter(|kv| keys.contains(&kv.key)).cloned().collect();
                    done.events.extend(prev.iter().map(|kv| deletion(kv, revision)));
                    OpResult::Delete { prev }
                }
                Op::Range(range) => {
                    self.readable(range.revision)?;
                    let header = if done.events.is_empty() { self.revision() } else { revision };
                    OpResult::Range(self.range(&range, &done.map, header))
                }
                Op::Txn(txn) => {
                    results.push(OpResult::Txn(self.perform(txn, before, done)?));
                    continue;
                }
            });
            replay(&mut done.map, &done.events[known..]);
        }
        Ok(TxnResult { succeeded, revision, results })
    }
}

/// What a transaction has done so far.
struct Done {
    map: Map,
    events: Vec<Event>,
}

impl Done {
    fn put(&mut self, revision: Revision, key: Bytes, value: Option<Bytes>, lease: Option<i64>) -> OpResult {
        let prev = self.map.get(&key).cloned();
        let old = prev.as_deref().cloned().unwrap_or_default();
        let kv = KeyValue {
            key,
            value: value.unwrap_or(old.value),
            create_revision: if prev.is_some() { old.create_revision } else { revision },
            mod_revision: revision,
            version: old.version + 1,
            lease: lease.unwrap_or(old.lease),
        };
        self.events.push(Event { kind: EventKind::Put, kv: kv.into(), prev: prev.clone() });
        OpResult::Put { prev }
    }
}

fn stamp(result: &mut TxnResult, revision: Revision) {
    result.revision = revision;
    for result in &mut result.results {
        if let OpResult::Txn(nested) = result {
            stamp(nested, revision);
        }
    }
}

fn deletion(kv: &Arc<KeyValue>, revision: Revision) -> Event {
    let gone = KeyValue { key: kv.key.clone(), mod_revision: revision, ..KeyValue::default() };
    Event { kind: EventKind::Delete, kv: gone.into(), prev: Some(kv.clone()) }
}

fn replay(map: &mut Map, events: &[Event]) {
    for event in events {
        match event.kind {
            EventKind::Put => drop(map.insert(event.kv.key.clone(), event.kv.clone())),
            EventKind::Delete => drop(map.remove(&event.kv.key)),
        }
    }
}

fn pick(keys: &Keys, revision: Revision, events: &[Event]) -> Option<Batch> {
    let events: Vec<_> = events.iter().filter(|event| keys.contains(&event.kv.key)).cloned().collect();
    (!events.is_empty()).then(|| Batch { revision, events: events.into() })
}

/// etcd's limits on what a transaction may be.
fn refuse(txn: &Txn) -> Result<(), StoreError> {
    let count = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
    if count > 128 {
        return Err(StoreError::TooManyOps { count, limit: 128 });
    }
    txn.success.iter().chain(&txn.failure).try_for_each(|op| match op {
        Op::Put { key, .. } | Op::Delete { key, .. } | Op::Update { key, .. } if key.is_empty() => {
            Err(StoreError::EmptyKey)
        }
        Op::Range(range) if range.start.is_empty() => Err(StoreError::EmptyKey),
        Op::Txn(txn) => refuse(txn),
        _ => Ok(()),
    })
}

/// Whether in any choice of branches a key is written twice.
fn writes_twice(ops: &[Op]) -> bool {
    choices(ops).iter().any(|ops| {
        ops.iter().enumerate().any(|(index, op)| match op {
            Op::Put { key: put, .. } | Op::Update { key: put, .. } => {
                ops.iter().enumerate().any(|(other, op)| match op {
                    Op::Put { key, .. } | Op::Update { key, .. } => index != other && key == put,
                    Op::Delete { key, end } => Keys::new(key.clone(), end.clone()).contains(put),
                    Op::Range(_) | Op::Txn(_) => false,
                })
            }
            _ => false,
        })
    })
}

/// The plain operations of every way a transaction can go.
fn choices(ops: &[Op]) -> Vec<Vec<&Op>> {
    let mut ways = vec![Vec::new()];
    for op in ops {
        let next = match op {
            Op::Txn(txn) => [choices(&txn.success), choices(&txn.failure)].concat(),
            op => vec![vec![op]],
        };
        let longer = |way: &Vec<_>| next.iter().map(|next| [way.clone(), next.clone()].concat()).collect::<Vec<_>>();
        ways = ways.iter().flat_map(longer).collect();
    }
    ways
}

fn holds(map: &Map, compare: &Compare) -> bool {
    let (key, end, target, order) = match compare {
        Compare::ModRevision { key, is } => (key, &None, &Target::ModRevision(*is), &Order::Equal),
        Compare::Where { key, end, target, order } => (key, end, target, order),
    };
    let keys = Keys::new(key.clone(), end.clone());
    let mut found: Vec<KeyValue> = map.values().filter(|kv| keys.contains(&kv.key)).map(|kv| (**kv).clone()).collect();
    if found.is_empty() {
        if matches!(target, Target::Value(_)) {
            return false;
        }
        found.push(KeyValue::default());
    }
    found.iter().all(|kv| {
        let ordering = match target {
            Target::Version(n) => kv.version.cmp(n),
            Target::CreateRevision(n) => kv.create_revision.cmp(n),
            Target::ModRevision(n) => kv.mod_revision.cmp(n),
            Target::Lease(n) => kv.lease.cmp(n),
            Target::Value(value) => kv.value.cmp(value),
        };
        match order {
            Order::Equal => ordering.is_eq(),
            Order::NotEqual => ordering.is_ne(),
            Order::Greater => ordering.is_gt(),
            Order::Less => ordering.is_lt(),
        }
    })
}

#[async_trait::async_trait]
impl Store for Model {
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let inner = self.0.lock().unwrap();
        inner.readable(range.revision)?;
        Ok(inner.range(&range, &inner.at(inner.revision()), inner.revision()))
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError> {
        refuse(&txn)?;
        if [&txn.success, &txn.failure].into_iter().any(|ops| writes_twice(ops)) {
            return Err(StoreError::DuplicateKey);
        }
        self.0.lock().unwrap().txn(txn)
    }

    async fn watch(&self, start: Bytes, end: Option<Bytes>, from: Revision) -> Result<Watch, StoreError> {
        let mut inner = self.0.lock().unwrap();
        if from != 0 && from < inner.compacted {
            return Err(StoreError::Compacted { oldest: inner.compacted });
        }
        let from = if from == 0 { inner.revision() + 1 } else { from };
        let keys = Keys::new(start, end);
        let (sender, receiver) = unbounded_channel();
        for (index, events) in inner.log.iter().enumerate().filter(|(index, _)| revision_of(*index) >= from) {
            pick(&keys, revision_of(index), events).into_iter().for_each(|batch| sender.send(batch).unwrap());
        }
        inner.watchers.push((keys, from, sender));
        Ok(Watch::new(UnboundedReceiverStream::new(receiver).map(Ok)))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let mut inner = self.0.lock().unwrap();
        if revision > inner.revision() {
            return Err(StoreError::FutureRevision { asked: revision, current: inner.revision() });
        }
        if revision <= inner.compacted {
            return Err(StoreError::Compacted { oldest: inner.compacted });
        }
        inner.compacted = revision;
        Ok(())
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.0.lock().unwrap().revision())
    }

    async fn size(&self) -> Result<u64, StoreError> {
        let inner = self.0.lock().unwrap();
        Ok(inner.at(inner.revision()).values().map(|kv| (kv.key.len() + kv.value.len()) as u64).sum())
    }

    async fn lease_grant(&self, ttl_seconds: i64, id: i64) -> Result<Lease, StoreError> {
        let mut inner = self.0.lock().unwrap();
        if ttl_seconds > 9_000_000_000 {
            return Err(StoreError::LeaseTooLong { seconds: ttl_seconds, limit: 9_000_000_000 });
        }
        let id = if id == 0 { inner.leases.keys().max().map_or(1000, |id| id + 1) } else { id };
        if inner.leases.contains_key(&id) {
            return Err(StoreError::LeaseExists(id));
        }
        inner.leases.insert(id, ttl_seconds);
        Ok(Lease { id, ttl_seconds })
    }

    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError> {
        let mut inner = self.0.lock().unwrap();
        inner.leases.remove(&id).ok_or(StoreError::LeaseNotFound(id))?;
        let now = inner.at(inner.revision());
        let revision = inner.revision() + 1;
        inner.push(now.values().filter(|kv| kv.lease == id).map(|kv| deletion(kv, revision)).collect());
        Ok(inner.revision())
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        let ttl_seconds = *self.0.lock().unwrap().leases.get(&id).ok_or(StoreError::LeaseNotFound(id))?;
        Ok(Lease { id, ttl_seconds })
    }

    async fn lease_time_to_live(&self, id: i64) -> Result<LeaseStatus, StoreError> {
        let inner = self.0.lock().unwrap();
        let ttl = *inner.leases.get(&id).ok_or(StoreError::LeaseNotFound(id))?;
        let now = inner.at(inner.revision());
        let keys = now.values().filter(|kv| kv.lease == id).map(|kv| kv.key.clone()).collect();
        Ok(LeaseStatus { id, granted_ttl_seconds: ttl, remaining_seconds: ttl, keys })
    }

    async fn leases(&self) -> Result<Vec<i64>, StoreError> {
        Ok(self.0.lock().unwrap().leases.keys().copied().collect())
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Err(StoreError::Refused("the model has no bytes".into()))
    }
}
