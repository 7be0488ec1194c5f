//! The API server's view of the store: one cache per stored resource, and writes that compare and set.

mod cache;
mod feed;
mod stored;
mod writes;

pub use cache::{Cache, Position, Snapshot, WatchError};
pub use feed::Feed;
pub use stored::{Change, EventType, Stored, frame};
pub use writes::{Precondition, WriteError};

/// The root of everything upstream stores.
pub const PREFIX: &str = "/registry/";
