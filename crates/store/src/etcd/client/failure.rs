//! What etcd's refusal means to whoever asked: its statuses lack the numbers, so they are found out or remembered.

use tonic::Status;

use super::{Client, watch};
use crate::{
    Op, Revision, Store, StoreError, Txn,
    etcd::{MAX_REQUEST_BYTES, status},
};

/// etcd's own limits, by default.
const MAX_OPS: usize = 128;
const MAX_TTL_SECONDS: i64 = 9_000_000_000;

/// What of a request may be named in its refusal.
#[derive(Default)]
pub(super) struct Asked {
    revision: Revision,
    leases: Vec<i64>,
    bytes: usize,
    ops: usize,
}

impl Asked {
    pub(super) fn revision(revision: Revision) -> Asked {
        Asked { revision, ..Asked::default() }
    }

    pub(super) fn of(txn: &Txn) -> Asked {
        let mut asked = Asked::default();
        asked.add(txn);
        asked
    }

    fn add(&mut self, txn: &Txn) {
        self.ops = self.ops.max(txn.compares.len()).max(txn.success.len()).max(txn.failure.len());
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Put { key, value, lease } => {
                    self.bytes += key.len() + value.len();
                    self.leases.push(*lease);
                }
                Op::Update { key, value, lease } => {
                    self.bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
                    self.leases.extend(lease);
                }
                Op::Delete { key, .. } => self.bytes += key.len(),
                Op::Range(range) => self.revision = self.revision.max(range.revision),
                Op::Txn(txn) => self.add(txn),
            }
        }
    }
}

pub(super) fn plain(status: &Status) -> StoreError {
    status::meaning(status)
}

pub(super) fn of_lease(status: &Status, id: i64, seconds: i64) -> StoreError {
    match status::meaning(status) {
        StoreError::LeaseNotFound(_) => StoreError::LeaseNotFound(id),
        StoreError::LeaseExists(_) => StoreError::LeaseExists(id),
        StoreError::LeaseTooLong { .. } => StoreError::LeaseTooLong { seconds, limit: MAX_TTL_SECONDS },
        error => error,
    }
}

impl Client {
    pub(super) async fn failure(&self, status: &Status, asked: Asked) -> StoreError {
        match status::meaning(status) {
            StoreError::Compacted { .. } => match watch::oldest(&self.endpoints).await {
                Ok(oldest) => StoreError::Compacted { oldest },
                Err(error) => error,
            },
            StoreError::FutureRevision { .. } => match self.revision().await {
                Ok(current) => StoreError::FutureRevision { asked: asked.revision, current },
                Err(error) => error,
            },
            StoreError::LeaseNotFound(_) => {
                let known = self.leases().await.unwrap_or_default();
                let unknown = asked.leases.into_iter().find(|id| *id != 0 && known.binary_search(id).is_err());
                StoreError::LeaseNotFound(unknown.unwrap_or(0))
            }
            StoreError::TooLarge { .. } => StoreError::TooLarge { bytes: asked.bytes, limit: MAX_REQUEST_BYTES },
            StoreError::TooManyOps { .. } => StoreError::TooManyOps { count: asked.ops, limit: MAX_OPS },
            error => error,
        }
    }
}
