//! Why a snapshot was not taken back.

use std::{io, path::PathBuf};

use crate::OpenError;

/// Nothing has been written when one of these is returned.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(
        "{path} is a snapshot of etcd itself, not of a Ferry store: restore it with `etcdctl snapshot restore`, start etcd on it, \
         and bring its content over with `ferry migrate --to embedded`"
    )]
    Etcd { path: PathBuf },
    #[error("{path} is not a snapshot of a Ferry store: `ferry snapshot save` and `etcdctl snapshot save` make one")]
    Foreign { path: PathBuf },
    #[error("{path} has layout {found}; this version reads layout {known}: restore it with the version that saved it")]
    Layout { path: PathBuf, found: u8, known: u8 },
    #[error("{path} is cut off after {bytes} bytes: copy it again, or take another snapshot")]
    Truncated { path: PathBuf, bytes: u64 },
    #[error("{path} is damaged: its content has the hash {found}, not {expected} as its end says. Use another copy")]
    Damaged { path: PathBuf, expected: String, found: String },
    /// The hash is right, so it was written like this.
    #[error("{path} cannot be read at byte {offset}: {reason}")]
    Unreadable { path: PathBuf, offset: u64, reason: &'static str },
    #[error("{dir} is not empty: stop what runs on it and move it away, or choose another directory")]
    NotEmpty { dir: PathBuf },
    #[error("cannot {what} {path}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Open(#[from] OpenError),
}
