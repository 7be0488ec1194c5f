//! How a transaction is decided and performed.

use std::time::Instant;

use bytes::Bytes;

use super::State;
use crate::{Event, Keys, Op, OpResult, Revision, StoreError, Txn, TxnResult};

/// A transaction being performed.
struct Run {
    revision: Revision,
    /// Whether each transaction succeeds: the outer one, then the nested ones in the order they are met.
    path: std::vec::IntoIter<bool>,
    events: Vec<Event>,
}

/// How much more the store has to hold after a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// It deletes, or only reads.
    Nothing,
    /// The values of existing keys become longer by so many bytes.
    Growth(usize),
    /// There is a new key.
    Key,
}

impl State {
    /// Performs a transaction, or refuses it and changes nothing.
    pub(crate) fn apply(&mut self, txn: Txn, now: Instant) -> Result<TxnResult, StoreError> {
        let mut path = Vec::with_capacity(1);
        self.decide(&txn, &mut path)?;
        let mut run = Run { revision: self.revision + 1, path: path.into_iter(), events: Vec::new() };
        let mut result = self.walk(txn, &mut run);
        self.commit(run.events, now);
        stamp(&mut result, self.revision);
        Ok(result)
    }

    /// Chooses every branch by the state before the transaction, and refuses what cannot be done.
    fn decide(&self, txn: &Txn, path: &mut Vec<bool>) -> Result<(), StoreError> {
        let succeeds = txn.compares.iter().all(|compare| self.holds(compare));
        path.push(succeeds);
        let ops = if succeeds { &txn.success } else { &txn.failure };
        ops.iter().try_for_each(|op| match op {
            Op::Txn(txn) => self.decide(txn, path),
            Op::Range(range) => self.readable(range.revision),
            Op::Update { key, .. } if !self.keys.contains_key(key.as_ref()) => Err(StoreError::KeyNotFound),
            Op::Put { lease, .. } | Op::Update { lease: Some(lease), .. } if *lease != 0 => {
                self.leases.get(lease).map(|_| ()).ok_or(StoreError::LeaseNotFound(*lease))
            }
            Op::Put { .. } | Op::Update { .. } | Op::Delete { .. } => Ok(()),
        })
    }

    /// What the transaction would need if it were performed now.
    pub(crate) fn need(&self, txn: &Txn) -> Need {
        let succeeds = txn.compares.iter().all(|compare| self.holds(compare));
        let ops = if succeeds { &txn.success } else { &txn.failure };
        let longer = |key: &Bytes, value: &Bytes| match self.keys.get(key.as_ref()) {
            Some(old) => Need::Growth(value.len().saturating_sub(old.value.len())),
            None => Need::Key,
        };
        let needs = ops.iter().map(|op| match op {
            Op::Put { key, value, .. } | Op::Update { key, value: Some(value), .. } => longer(key, value),
            Op::Update { value: None, .. } => Need::Growth(0),
            Op::Delete { .. } | Op::Range(_) => Need::Nothing,
            Op::Txn(nested) => self.need(nested),
        });
        needs.fold(Need::Nothing, |sum, need| match (sum, need) {
            (Need::Growth(a), Need::Growth(b)) => Need::Growth(a.saturating_add(b)),
            (a, b) => a.max(b),
        })
    }

    fn walk(&mut self, txn: Txn, run: &mut Run) -> TxnResult {
        let succeeded = run.path.next().unwrap_or_default();
        let ops = if succeeded { txn.success } else { txn.failure };
        let results = ops.into_iter().map(|op| self.perform(op, run)).collect();
        TxnResult { succeeded, revision: run.revision, results }
    }

    fn perform(&mut self, op: Op, run: &mut Run) -> OpResult {
        match op {
            Op::Put { key, value, lease } => self.put_in(run, key, value, lease),
            Op::Update { key, value, lease } => {
                let old = self.keys.get(key.as_ref());
                let value = value.or_else(|| old.map(|kv| kv.value.clone())).unwrap_or_default();
                let lease = lease.or_else(|| old.map(|kv| kv.lease)).unwrap_or_default();
                self.put_in(run, key, value, lease)
            }
            Op::Delete { key, end } => {
                let keys = Keys::new(key, end);
                let gone: Vec<Bytes> = match keys.bounds() {
                    Some(bounds) => self.keys.range::<_, [u8]>(bounds).map(|(key, _)| key.clone()).collect(),
                    None => Vec::new(),
                };
                let deleted: Vec<Event> = gone.into_iter().filter_map(|key| self.delete(run.revision, key)).collect();
                let prev = deleted.iter().filter_map(|event| event.prev.clone()).collect();
                run.events.extend(deleted);
                OpResult::Delete { prev }
            }
            Op::Range(range) => OpResult::Range(self.select(&range, &run.events)),
            Op::Txn(txn) => OpResult::Txn(self.walk(txn, run)),
        }
    }

    fn put_in(&mut self, run: &mut Run, key: Bytes, value: Bytes, lease: i64) -> OpResult {
        let event = self.put(run.revision, key, value, lease);
        let prev = event.prev.clone();
        run.events.push(event);
        OpResult::Put { prev }
    }
}

/// Only after the commit is it known whether the transaction made a revision.
fn stamp(result: &mut TxnResult, revision: Revision) {
    result.revision = revision;
    for nested in &mut result.results {
        if let OpResult::Txn(nested) = nested {
            stamp(nested, revision);
        }
    }
}
