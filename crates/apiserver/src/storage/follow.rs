//! Follows a cache change by change, for whoever keeps an index of it and catches up when asked.

use std::sync::Arc;

use super::cache::{Cache, Place};
use super::snapshot::Snapshot;
use super::stored::Change;

pub(crate) struct Follower {
    cache: Arc<Cache>,
    place: Option<Place>,
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
        Self { cache, place: None, seen: 0 }
    }

    pub(crate) fn is_current(&self) -> bool {
        self.place.is_some() && self.cache.revision() == self.seen
    }

    pub(crate) fn catch_up(&mut self, mut visit: impl FnMut(Step<'_>)) {
        if let Some(place) = &mut self.place
            && let Ok((changes, revision)) = place.since()
        {
            changes.iter().for_each(|change| visit(Step::Changed(change)));
            self.seen = revision;
            return;
        }
        // Either the first time, or so much happened that the ring has forgotten some of it.
        if let Ok((place, snapshot)) = self.cache.watch_from(None) {
            visit(Step::Reset(&snapshot));
            (self.place, self.seen) = (Some(place), snapshot.revision);
        }
    }
}
