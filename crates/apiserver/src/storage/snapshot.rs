//! The content of a cache at one revision. A request reads the same snapshot from beginning to end.

use std::sync::Arc;

use api::ApiError;
use imbl::OrdMap;

use super::stored::Stored;
use super::unreadable::Unreadable;

/// All objects of a resource as of one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub revision: i64,
    /// An object that has become unreadable stays here as it last was, for the server's own decisions.
    pub objects: OrdMap<Arc<str>, Arc<Stored>>,
    /// Values that cannot be read, by key. Clients get an error for these, even where `objects` has the last readable state.
    pub unreadable: OrdMap<Arc<str>, Arc<Unreadable>>,
}

impl Snapshot {
    /// An error where an object whose key begins like that cannot be read; an empty prefix asks for all.
    pub(crate) fn check_prefix(&self, prefix: &str) -> Result<(), ApiError> {
        if self.unreadable.is_empty() {
            return Ok(());
        }
        let from: Arc<str> = prefix.into();
        let first = self.unreadable.range(from..).next().filter(|(key, _)| key.starts_with(prefix));
        first.map_or(Ok(()), |(_, unreadable)| Err((&**unreadable).into()))
    }

    pub(crate) fn check_key(&self, key: &str) -> Result<(), ApiError> {
        self.unreadable.get(key).map_or(Ok(()), |unreadable| Err((&**unreadable).into()))
    }

    /// An error where an object was never readable since this server started: not even its last state is known.
    pub(crate) fn check_known(&self) -> Result<(), ApiError> {
        let unknown = self.unreadable.iter().find(|(key, _)| !self.objects.contains_key(*key));
        unknown.map_or(Ok(()), |(_, unreadable)| Err((&**unreadable).into()))
    }
}
