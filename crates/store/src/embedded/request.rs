//! What can be refused without looking at the store: etcd's limits on a request.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use bytes::Bytes;
use imbl::OrdMap;

use super::Options;
use crate::{Compare, Keys, Lease, Op, StoreError, Txn};

/// etcd's longest lease.
const MAX_TTL_SECONDS: i64 = 9_000_000_000;

pub(super) fn check_key(key: &[u8]) -> Result<(), StoreError> {
    if key.is_empty() { Err(StoreError::EmptyKey) } else { Ok(()) }
}

pub(super) fn check(txn: &Txn, options: &Options) -> Result<(), StoreError> {
    let bytes = check_ops(txn, options)?;
    if bytes > options.request_bytes {
        return Err(StoreError::TooLarge { bytes, limit: options.request_bytes });
    }
    Written::by(&txn.success)?;
    Written::by(&txn.failure).map(drop)
}

/// Returns the size of all keys and values.
fn check_ops(txn: &Txn, options: &Options) -> Result<usize, StoreError> {
    let count = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
    if count > options.max_ops {
        return Err(StoreError::TooManyOps { count, limit: options.max_ops });
    }
    for compare in &txn.compares {
        let (Compare::ModRevision { key, .. } | Compare::Where { key, .. }) = compare;
        check_key(key)?;
    }
    let mut bytes = 0;
    for op in txn.success.iter().chain(&txn.failure) {
        bytes += match op {
            Op::Put { key, value, .. } => check_key(key).map(|()| key.len() + value.len())?,
            Op::Update { key, value, .. } => {
                check_key(key).map(|()| key.len() + value.as_ref().map_or(0, |v| v.len()))?
            }
            Op::Delete { key, .. } => check_key(key).map(|()| key.len())?,
            Op::Range(range) => check_key(&range.start).map(|()| 0)?,
            Op::Txn(txn) => check_ops(txn, options)?,
        };
    }
    Ok(bytes)
}

/// What a list of operations may write. A key is put at most once in a revision, and not deleted in the same one: its
/// version would be ambiguous.
#[derive(Default)]
struct Written<'a> {
    puts: HashSet<&'a Bytes>,
    deletes: Vec<Keys>,
}

impl<'a> Written<'a> {
    fn by(ops: &'a [Op]) -> Result<Written<'a>, StoreError> {
        let mut written = Written::default();
        for op in ops {
            if let Op::Delete { key, end } = op {
                written.deletes.push(Keys::new(key.clone(), end.clone()));
            }
        }
        for op in ops {
            if let Op::Txn(txn) = op {
                written.nest(Written::by(&txn.success)?, Written::by(&txn.failure)?)?;
            }
        }
        for op in ops {
            if let Op::Put { key, .. } | Op::Update { key, .. } = op {
                written.put(key)?;
            }
        }
        Ok(written)
    }

    /// Only one of the two happens, so both may put the same key.
    fn nest(&mut self, then: Written<'a>, otherwise: Written<'a>) -> Result<(), StoreError> {
        for key in then.puts.union(&otherwise.puts) {
            self.put(key)?;
        }
        self.deletes.extend(then.deletes);
        self.deletes.extend(otherwise.deletes);
        Ok(())
    }

    fn put(&mut self, key: &'a Bytes) -> Result<(), StoreError> {
        match self.puts.insert(key) && !self.deletes.iter().any(|keys| keys.contains(key)) {
            true => Ok(()),
            false => Err(StoreError::DuplicateKey),
        }
    }
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
