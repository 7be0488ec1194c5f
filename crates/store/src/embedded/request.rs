//! What can be refused without looking at the store: etcd's limits on a request.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use imbl::OrdMap;

use super::Options;
use crate::{Compare, Keys, Lease, Op, StoreError, Txn};

/// etcd's longest lease.
const MAX_TTL_SECONDS: i64 = 9_000_000_000;

pub(super) fn check_key(key: &[u8]) -> Result<(), StoreError> {
    if key.is_empty() { Err(StoreError::EmptyKey) } else { Ok(()) }
}

pub(super) fn check(txn: &Txn, options: &Options) -> Result<(), StoreError> {
    let count = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
    if count > options.max_ops {
        return Err(StoreError::TooManyOps { count, limit: options.max_ops });
    }
    let mut bytes = 0;
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Put { key, value, .. } => {
                check_key(key)?;
                bytes += key.len() + value.len();
            }
            Op::Delete { key, .. } => {
                check_key(key)?;
                bytes += key.len();
            }
            Op::Range(range) => check_key(&range.start)?,
        }
    }
    for compare in &txn.compares {
        let (Compare::ModRevision { key, .. } | Compare::Where { key, .. }) = compare;
        check_key(key)?;
    }
    if bytes > options.request_bytes {
        return Err(StoreError::TooLarge { bytes, limit: options.request_bytes });
    }
    check_unique(&txn.success)?;
    check_unique(&txn.failure)
}

/// A key is put at most once in a revision, and not deleted in the same one: its version would be ambiguous.
fn check_unique(ops: &[Op]) -> Result<(), StoreError> {
    let mut puts = HashSet::new();
    for op in ops {
        if let Op::Put { key, .. } = op
            && !puts.insert(key)
        {
            return Err(StoreError::DuplicateKey);
        }
    }
    for op in ops {
        if let Op::Delete { key, end } = op {
            let deleted = Keys::new(key.clone(), end.clone());
            if puts.iter().any(|key| deleted.contains(key)) {
                return Err(StoreError::DuplicateKey);
            }
        }
    }
    Ok(())
}

/// The lease to grant: at least a second long, with an unused id if none is asked for.
pub(super) fn lease(ttl_seconds: i64, id: i64, taken: &OrdMap<i64, i64>) -> Result<Lease, StoreError> {
    if ttl_seconds > MAX_TTL_SECONDS {
        return Err(StoreError::LeaseTooLong { seconds: ttl_seconds, limit: MAX_TTL_SECONDS });
    }
    let drawn = || (RandomState::new().hash_one(ttl_seconds) >> 1).cast_signed();
    let free = |id: &i64| *id != 0 && !taken.contains_key(id);
    let id = if id == 0 { std::iter::repeat_with(drawn).find(free).unwrap_or(id) } else { id };
    Ok(Lease { id, ttl_seconds: ttl_seconds.max(1) })
}
