//! Where bytes live: a multi-version key-value store with etcd's data model, and the engines behind it.
//!
//! [`Store`] is the only thing the API server knows. [`Embedded`] is the engine of a single machine; it keeps the keys
//! in memory and a log on disk. [`etcd::Client`] is the engine of several machines; [`etcd::serve`] answers etcd's own API
//! in front of any engine.
//!
//! # Guarantees (every engine)
//! - A transaction has one revision; one that changes nothing does not raise it. An empty store is at revision 1.
//! - An acknowledged transaction is durable, and every later read sees it.
//! - A watch delivers every event in its range, in order, all events of one revision together; or it ends with an error.

mod embedded;
mod error;
pub mod etcd;
mod keys;
pub mod snapshot;
mod state;
mod types;
mod watch;

pub use embedded::{Embedded, Options, disk};
pub use error::{OpenError, StoreError};
pub use keys::Keys;
pub use snapshot::Snapshot;
pub use types::{
    Batch, Compare, Event, EventKind, KeyValue, Lease, LeaseStatus, Op, OpResult, Order, Range, RangeResult, Revision,
    Target, Txn, TxnResult,
};
pub use watch::Watch;

use bytes::Bytes;

/// An MVCC map with compare-and-set transactions, watches and leases.
#[async_trait::async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads keys, now or at an old revision that is not yet compacted.
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError>;

    /// Checks `compares`, then performs `success` or `failure` as one atomic, durable step.
    async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError>;

    /// Follows the keys of a range from a revision on (0: everything after now; a future revision waits for it).
    /// A watcher that falls out of the retained history is ended with [`StoreError::SlowWatcher`].
    async fn watch(&self, start: Bytes, end: Option<Bytes>, from: Revision) -> Result<Watch, StoreError>;

    /// Gives up history older than `revision`; what was current at `revision` stays readable.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;

    /// The current revision, linearizable.
    async fn revision(&self) -> Result<Revision, StoreError>;

    /// The bytes of all keys and values, plus what the engine itself needs where it can tell.
    async fn size(&self) -> Result<u64, StoreError>;

    /// Grants a lease; `id` 0 lets the store choose one.
    async fn lease_grant(&self, ttl_seconds: i64, id: i64) -> Result<Lease, StoreError>;

    /// Ends a lease and deletes its keys in one revision, which is returned.
    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError>;

    /// Sets the lease's remaining time back to the granted one.
    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError>;

    async fn lease_time_to_live(&self, id: i64) -> Result<LeaseStatus, StoreError>;

    /// The ids of all leases, in order.
    async fn leases(&self) -> Result<Vec<i64>, StoreError>;

    /// Everything at one revision, as bytes to be kept elsewhere; see [`snapshot`].
    async fn snapshot(&self) -> Result<Snapshot, StoreError>;
}
