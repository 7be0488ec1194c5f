//! What a controller has done but its cache may not show yet: a stale cache must never make it do the same twice.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use client::Key;
use parking_lot::Mutex;
use tokio::time::Instant;

/// After this long an expectation is given up: the event that would have fulfilled it was lost.
const TIMEOUT: Duration = Duration::from_secs(5 * 60);

#[derive(Default)]
pub(crate) struct Expectations {
    expected: Mutex<HashMap<Key, Expected>>,
}

struct Expected {
    creations: i64,
    /// The uids of objects whose deletion was asked for: seen as terminating or gone, whichever comes first.
    deletions: HashSet<String>,
    since: Instant,
}

impl Expectations {
    /// Called before the objects are created, because the watch may be faster than the answer.
    pub(crate) fn expect_creations(&self, owner: &Key, count: usize) {
        self.set(owner, Expected { creations: count as i64, deletions: HashSet::new(), since: Instant::now() });
    }

    pub(crate) fn expect_deletions(&self, owner: &Key, uids: impl IntoIterator<Item = String>) {
        let deletions = uids.into_iter().collect();
        self.set(owner, Expected { creations: 0, deletions, since: Instant::now() });
    }

    /// For controllers that create and delete in the same pass.
    pub(crate) fn expect(&self, owner: &Key, creations: usize, deletions: impl IntoIterator<Item = String>) {
        let deletions = deletions.into_iter().collect();
        self.set(owner, Expected { creations: creations as i64, deletions, since: Instant::now() });
    }

    fn set(&self, owner: &Key, expected: Expected) {
        self.expected.lock().insert(owner.clone(), expected);
    }

    /// Also called for a creation that failed, which no watch will show.
    pub(crate) fn creation_observed(&self, owner: &Key) {
        if let Some(expected) = self.expected.lock().get_mut(owner) {
            expected.creations -= 1;
        }
    }

    pub(crate) fn deletion_observed(&self, owner: &Key, uid: &str) {
        if let Some(expected) = self.expected.lock().get_mut(owner) {
            expected.deletions.remove(uid);
        }
    }

    pub(crate) fn satisfied(&self, owner: &Key) -> bool {
        self.expected.lock().get(owner).is_none_or(|expected| {
            (expected.creations <= 0 && expected.deletions.is_empty()) || expected.since.elapsed() > TIMEOUT
        })
    }

    pub(crate) fn forget(&self, owner: &Key) {
        self.expected.lock().remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pass_waits_for_what_the_last_one_did() {
        let (expectations, web) = (Expectations::default(), Key::new("default", "web"));
        assert!(expectations.satisfied(&web));
        expectations.expect_creations(&web, 2);
        expectations.creation_observed(&web);
        assert!(!expectations.satisfied(&web));
        expectations.creation_observed(&web);
        assert!(expectations.satisfied(&web));

        expectations.expect_deletions(&web, ["a".to_owned()]);
        expectations.deletion_observed(&web, "b");
        assert!(!expectations.satisfied(&web), "someone else's pod fulfils nothing");
        expectations.deletion_observed(&web, "a");
        assert!(expectations.satisfied(&web));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_event_blocks_for_a_while_not_for_ever() {
        let (expectations, web) = (Expectations::default(), Key::new("default", "web"));
        expectations.expect_creations(&web, 1);
        tokio::time::advance(TIMEOUT).await;
        assert!(!expectations.satisfied(&web));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(expectations.satisfied(&web));
    }
}
