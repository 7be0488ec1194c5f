//! Compare-and-set writes of single objects.

use std::time::{Duration, Instant};

use api::Object;
use bytes::Bytes;
use store::{Compare, Op, Store, StoreError, Txn};

use super::cache::Cache;

const LEASE_SHARED: Duration = Duration::from_secs(60);

/// What must hold for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    Absent,
    /// Last modified at exactly this revision.
    At(i64),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The precondition does not hold (any more); the caches must reach this revision before a retry makes sense.
    #[error("the object is not as expected at revision {0}")]
    Unmet(i64),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cache {
    fn store_key(&self, key: &str) -> Bytes {
        format!("{}{key}", self.prefix).into()
    }

    /// Writes an object; answers its new revision.
    pub(crate) async fn put(
        &self,
        store: &dyn Store,
        key: &str,
        object: &Object,
        precondition: Precondition,
    ) -> Result<i64, WriteError> {
        let key = self.store_key(key);
        let lease = self.lease(store).await?;
        let put = Op::Put { key: key.clone(), value: api::object::canonical(object).into(), lease };
        transact(store, key, precondition, put).await
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

    pub(crate) async fn delete(&self, store: &dyn Store, key: &str, revision: i64) -> Result<i64, WriteError> {
        let key = self.store_key(key);
        transact(store, key.clone(), Precondition::At(revision), Op::Delete { key, end: None }).await
    }
}

async fn transact(store: &dyn Store, key: Bytes, precondition: Precondition, op: Op) -> Result<i64, WriteError> {
    let expected = match precondition {
        Precondition::Absent => 0,
        Precondition::At(revision) => revision,
    };
    let compare = Compare::ModRevision { key, is: expected };
    let result = store.txn(Txn { compares: vec![compare], success: vec![op], failure: vec![] }).await?;
    if result.succeeded { Ok(result.revision) } else { Err(WriteError::Unmet(result.revision)) }
}
