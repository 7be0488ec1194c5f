//! Why a store did not do what it was asked.

use std::{io, path::PathBuf, sync::Arc};

use crate::Revision;

/// Why a request failed. `Poisoned`, `Closed` and `Unavailable` are the only variants whose outcome on disk may be unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the revision is compacted; the oldest one held is {oldest}")]
    Compacted { oldest: Revision },
    #[error("revision {asked} is in the future; the store is at {current}")]
    FutureRevision { asked: Revision, current: Revision },
    #[error("lease {0} does not exist")]
    LeaseNotFound(i64),
    #[error("lease {0} already exists")]
    LeaseExists(i64),
    #[error("a lease of {seconds} s is too long; at most {limit} s are granted")]
    LeaseTooLong { seconds: i64, limit: i64 },
    #[error("the request has {bytes} bytes, more than the {limit} allowed")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the transaction has {count} operations, more than the {limit} allowed")]
    TooManyOps { count: usize, limit: usize },
    #[error("an empty key cannot be stored or read")]
    EmptyKey,
    #[error("the transaction writes the same key twice")]
    DuplicateKey,
    /// What an update was to change is not there.
    #[error("the key does not exist")]
    KeyNotFound,
    /// A write or sync failed: the store refuses writes, and still answers reads, until it is opened again.
    #[error("the store is read-only after a failed write")]
    Poisoned(#[source] Arc<io::Error>),
    /// Nothing of the request is on disk. The store writes again by itself once there is space.
    #[error("the disk of the store is full: free some space on it; until then objects can be deleted, but not created")]
    Full,
    #[error("the store is closed")]
    Closed,
    /// No etcd endpoint answered, or the one that was asked went away before it did.
    #[error("etcd is unavailable: {0}")]
    Unavailable(String),
    /// etcd answered with an error that is none of the above.
    #[error("etcd refused the request: {0}")]
    Refused(String),
    /// Whoever keeps values secret in front of the store could not do so.
    #[error("values cannot be encrypted or decrypted: {0}")]
    Sealed(String),
    /// Read the keys again and watch from there.
    #[error("the watcher fell behind the retained history")]
    SlowWatcher,
}

/// Why a store could not be opened. Nothing is changed on disk then, save a torn tail that was cut.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the store in {dir} is in use by {}", match pid { Some(pid) => format!("process {pid}"), None => "another process".into() })]
    Locked { dir: PathBuf, pid: Option<u32> },
    #[error("{path} is on a read-only file system: remount it or choose another data directory")]
    ReadOnly { path: PathBuf },
    #[error("no permission to write {path}: run as its owner or choose another data directory")]
    Denied { path: PathBuf },
    #[error("the disk of {path} is full ({free} bytes free, {needed} needed): free some space first")]
    Full { path: PathBuf, free: u64, needed: u64 },
    #[error(
        "{file} is damaged at byte {offset}: {reason}. Restore a snapshot, or move the file away to lose what it holds"
    )]
    Corrupt { file: PathBuf, offset: u64, reason: String },
    #[error("{file} has format {found}; this version reads format {known}")]
    Format { file: PathBuf, found: u64, known: u64 },
    #[error("cannot {what} {path}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}
