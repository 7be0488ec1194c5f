//! The API server's view of the store: one cache per stored resource, and writes that compare and set.

mod cache;
pub(crate) mod claims;
mod encryption;
mod feed;
mod follow;
mod group;
mod snapshot;
mod stored;
mod texts;
mod unreadable;
mod writes;

pub(crate) use cache::{Cache, Place, WatchError};
pub(crate) use encryption::Encryption;
pub use encryption::{EncryptionError, EncryptionSettings};
pub(crate) use feed::Feed;
pub(crate) use follow::{Follower, Step};
pub(crate) use snapshot::Snapshot;
pub(crate) use stored::{Change, EventType, Examine, Reading, Stored, frame};
pub(crate) use texts::Texts;
pub(crate) use writes::{Beside, Precondition, WriteError};

/// The root of everything upstream stores.
pub(crate) const PREFIX: &str = "/registry/";
