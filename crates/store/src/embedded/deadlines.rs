//! When leases end. Kept in memory only: after a restart each lease has its full time again, as in etcd.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::Lease;

#[derive(Default)]
pub(crate) struct Deadlines(Mutex<HashMap<i64, Instant>>);

impl Deadlines {
    /// Starts or restarts a lease's time.
    pub(crate) fn set(&self, lease: Lease, now: Instant) {
        self.0.lock().insert(lease.id, now + ttl(lease));
    }

    /// Restarts the time of a lease that has not ended.
    pub(crate) fn renew(&self, lease: Lease, now: Instant) -> bool {
        self.0.lock().get_mut(&lease.id).map(|deadline| *deadline = now + ttl(lease)).is_some()
    }

    pub(crate) fn remove(&self, id: i64) {
        self.0.lock().remove(&id);
    }

    /// Removes a lease if its time is over: from here on no keep-alive can save it.
    pub(crate) fn take_expired(&self, id: i64, now: Instant) -> bool {
        let mut deadlines = self.0.lock();
        let expired = deadlines.get(&id).is_some_and(|deadline| *deadline <= now);
        if expired {
            deadlines.remove(&id);
        }
        expired
    }

    pub(crate) fn remaining(&self, id: i64, now: Instant) -> Option<Duration> {
        self.0.lock().get(&id).map(|deadline| deadline.saturating_duration_since(now))
    }

    pub(crate) fn expired(&self, now: Instant) -> Vec<i64> {
        self.0.lock().iter().filter(|(_, deadline)| **deadline <= now).map(|(id, _)| *id).collect()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.lock().values().min().copied()
    }
}

fn ttl(lease: Lease) -> Duration {
    Duration::from_secs(lease.ttl_seconds.try_into().unwrap_or(0))
}
