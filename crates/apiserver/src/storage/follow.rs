//! Follows a cache change by change, for whoever keeps an index of it and catches up when asked.

use std::sync::Arc;

use super::cache::{Cache, Position, Snapshot};
use super::stored::Change;

pub(crate) struct Follower {
    cache: Arc<Cache>,
    position: Option<Position>,
    seen: i64,
}

/// What happened since the last time.
pub(crate) enum Step<'a> {
    /// All that was known is to be forgotten; this is everything.
    Reset(&'a Snapshot),
    Changed(&'a Change),
}

impl Follower {
    pub(crate) fn new(cache: Arc<Cache>) -> Self {
        Self { cache, position: None, seen: 0 }
    }

    pub(crate) fn is_current(&self) -> bool {
        self.position.is_some() && self.cache.revision() == self.seen
    }

    pub(crate) fn catch_up(&mut self, mut visit: impl FnMut(Step<'_>)) {
        if let Some(position) = &mut self.position
            && let Ok((changes, revision)) = self.cache.since(position)
        {
            changes.iter().for_each(|change| visit(Step::Changed(change)));
            self.seen = revision;
            return;
        }
        // Either the first time, or so much happened that the ring has forgotten some of it.
        if let Ok((position, snapshot)) = self.cache.watch_from(None) {
            visit(Step::Reset(&snapshot));
            (self.position, self.seen) = (Some(position), snapshot.revision);
        }
    }
}
