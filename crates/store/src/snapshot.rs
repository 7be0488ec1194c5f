//! Snapshots: the embedded store at one revision as a stream of bytes that verifies itself, and back into a directory.
//!
//! Layout: [`MAGIC`]; frames as a base segment has them (a file record, then the compacted revision, leases, keys, the
//! number of keys); zeros up to a multiple of 512 bytes; SHA-256 of all that. The last two are what `etcdctl snapshot save`
//! insists on, so it can save one too.

mod decode;
mod encode;
mod error;
mod restore;

use bytes::Bytes;
use futures::stream::BoxStream;

pub(crate) use self::encode::Encoder;
pub use self::{
    decode::{Summary, status},
    error::SnapshotError,
    restore::{REVISION_BUMP, adopt, restore},
};
use crate::{Revision, StoreError};

/// How every snapshot begins. The last byte is the version of the layout.
const MAGIC: [u8; 16] = *b"ferry snapshot\n\x01";
/// etcd's page: the content is padded to a multiple of it.
const PAGE: usize = 512;
const HASH: usize = 32;

/// A snapshot on its way. The store goes on meanwhile; what is sent stays as it was.
pub struct Snapshot {
    /// 0 if it is not known: a snapshot of etcd itself.
    pub revision: Revision,
    /// How much there is in all.
    pub bytes: u64,
    pub chunks: BoxStream<'static, Result<Bytes, StoreError>>,
}
