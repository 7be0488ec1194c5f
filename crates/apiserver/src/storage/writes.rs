//! Compare-and-set writes of single objects.

use std::collections::BTreeMap;
use std::time::Duration;

use api::Object;
use bytes::Bytes;
use store::{Compare, Op, OpResult, Range, Store, StoreError, Txn};
use tokio::time::Instant;

use super::cache::Cache;
use super::claims;

const LEASE_SHARED: Duration = Duration::from_secs(60);

/// What must hold for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    Absent,
    /// Last modified at exactly this revision.
    At(i64),
}

/// Another object that changes in the same transaction, on condition that it is still at this revision.
#[derive(Debug)]
pub(crate) struct Beside {
    pub key: String,
    pub revision: i64,
    pub value: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The precondition does not hold (any more); the caches must reach this revision before a retry makes sense.
    #[error("the object is not as expected at revision {0}")]
    Unmet(i64),
    /// The object is as expected, but something it was to hold is another's since this revision at the latest.
    #[error("what the object claims is taken at revision {0}")]
    Claimed(i64),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cache {
    fn store_key(&self, key: &str) -> Bytes {
        format!("{}{key}", self.prefix).into()
    }

    /// Writes an object, with what it claims; answers its new revision.
    pub(crate) async fn put(
        &self,
        store: &dyn Store,
        key: &str,
        object: &Object,
        precondition: Precondition,
        beside: Vec<Beside>,
    ) -> Result<i64, WriteError> {
        let lease = self.lease(store).await?;
        let mut write = self.write(key, precondition)?;
        write.txn.success.push(Op::Put { key: write.key.clone(), value: api::object::canonical(object).into(), lease });
        if self.prefix == claims::SERVICES {
            write.claim(claims::of(object));
        }
        write.beside(beside);
        write.perform(store).await
    }

    /// The lease that what is written now hangs on; 0 for what stays. Writes of the same minute share one.
    async fn lease(&self, store: &dyn Store) -> Result<i64, WriteError> {
        let Some(seconds) = self.time_to_live else { return Ok(0) };
        let mut current = self.lease.lock().await;
        match *current {
            Some((id, granted)) if granted.elapsed() < LEASE_SHARED => Ok(id),
            _ => {
                let lease = store.lease_grant(seconds, 0).await?;
                *current = Some((lease.id, Instant::now()));
                Ok(lease.id)
            }
        }
    }

    pub(crate) async fn delete(
        &self,
        store: &dyn Store,
        key: &str,
        revision: i64,
        beside: Vec<Beside>,
    ) -> Result<i64, WriteError> {
        let mut write = self.write(key, Precondition::At(revision))?;
        write.txn.success.push(Op::Delete { key: write.key.clone(), end: None });
        write.claim(BTreeMap::new());
        write.beside(beside);
        write.perform(store).await
    }

    fn write(&self, key: &str, precondition: Precondition) -> Result<Write, WriteError> {
        let mut held = BTreeMap::new();
        if let (claims::SERVICES, Precondition::At(expected)) = (self.prefix.as_str(), precondition) {
            // What it was computed from came from this cache, so the cache has it or something newer.
            match self.get(key) {
                Some(stored) if stored.revision == expected => held = claims::of(&stored.decode()),
                newer => return Err(WriteError::Unmet(newer.map_or(0, |stored| stored.revision))),
            }
        }
        let expected = match precondition {
            Precondition::Absent => 0,
            Precondition::At(revision) => revision,
        };
        let key = self.store_key(key);
        let compares = vec![Compare::ModRevision { key: key.clone(), is: expected }];
        Ok(Write { key, expected, held, txn: Txn { compares, ..Txn::default() } })
    }
}

/// One object's transaction while it is put together.
struct Write {
    key: Bytes,
    expected: i64,
    /// What the object claims so far.
    held: BTreeMap<String, Bytes>,
    txn: Txn,
}

impl Write {
    /// From now on it claims these: new ones must be free, old ones are given back.
    fn claim(&mut self, wanted: BTreeMap<String, Bytes>) {
        for key in self.held.keys().filter(|key| !wanted.contains_key(*key)) {
            self.txn.success.push(Op::delete(key.clone()));
        }
        for (key, value) in wanted.into_iter().filter(|(key, _)| !self.held.contains_key(key)) {
            self.txn.compares.push(Compare::ModRevision { key: key.clone().into(), is: 0 });
            self.txn.success.push(Op::put(key, value));
        }
    }

    fn beside(&mut self, others: Vec<Beside>) {
        for other in others {
            self.txn.compares.push(Compare::ModRevision { key: other.key.clone().into(), is: other.revision });
            self.txn.success.push(Op::put(other.key, other.value));
        }
    }

    async fn perform(mut self, store: &dyn Store) -> Result<i64, WriteError> {
        // Which of the conditions failed is seen in the object itself.
        let claiming = self.txn.compares.len() > 1;
        if claiming {
            self.txn.failure.push(Op::Range(Range { keys_only: true, ..Range::key(self.key) }));
        }
        let result = store.txn(self.txn).await?;
        let found = match result.results.first() {
            Some(OpResult::Range(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
            _ => 0,
        };
        match result.succeeded {
            true => Ok(result.revision),
            false if claiming && found == self.expected => Err(WriteError::Claimed(result.revision)),
            false => Err(WriteError::Unmet(result.revision)),
        }
    }
}
