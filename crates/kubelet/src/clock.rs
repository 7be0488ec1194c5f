//! What time it is, as an argument: the machine's clock, or a test's.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Read at every call, so that a machine that slept or was set is seen.
    pub(crate) fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// Moves only with tokio's (paused) clock.
    #[cfg(test)]
    pub(crate) fn virtual_from(base: Timestamp) -> Self {
        let start = tokio::time::Instant::now();
        Self(Arc::new(move || after(base, start.elapsed())))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

/// `at + delay`, held at the end of time rather than overflowing.
pub(crate) fn after(at: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    at.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// How long from `now` to `at`; zero when it has passed.
pub(crate) fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

pub(crate) fn from_nanos(nanos: i64) -> Option<Timestamp> {
    if nanos <= 0 { None } else { Timestamp::from_nanosecond(i128::from(nanos)).ok() }
}

/// API times have no fraction; cut it here so that a status compares equal to what comes back.
pub(crate) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
