//! Exponential back-off of restarts and image pulls, with upstream's numbers.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{after, until};

const INITIAL: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    updated: Timestamp,
}

/// Delays by key, doubled at every failure and forgotten after twice the longest delay without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    entries: HashMap<String, Entry>,
}

impl Backoff {
    /// When the wait that began at `since` ends, and how long it is in all; `None` when there is nothing to wait for.
    pub(crate) fn waiting(&self, key: &str, since: Timestamp, now: Timestamp) -> Option<(Timestamp, Duration)> {
        let entry = self.entries.get(key)?;
        let end = after(since, entry.delay);
        (!expired(entry, since) && now < end).then_some((end, entry.delay))
    }

    /// The same, counted from the last failure.
    pub(crate) fn waiting_since_update(&self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        let end = after(entry.updated, entry.delay);
        (!expired(entry, now) && now < end).then_some(end)
    }

    /// Another attempt is made for what ended at `event`.
    pub(crate) fn next(&mut self, key: &str, event: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(key) {
            Some(entry) if !expired(entry, event) => (entry.delay * 2).min(MAX),
            _ => INITIAL,
        };
        self.entries.insert(key.to_owned(), Entry { delay, updated: now });
    }

    pub(crate) fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }
}

fn expired(entry: &Entry, event: Timestamp) -> bool {
    until(entry.updated, event) > MAX * 2
}

/// Go's way to print a duration of whole seconds: `10s`, `1m20s`, `5m0s`.
pub(crate) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crashes `lived` seconds after each start; the delays before each start.
    #[track_caller]
    fn check(lived: u64, want: &[u64]) {
        let mut backoff = Backoff::default();
        let mut now = Timestamp::from_second(1_000_000).expect("a time");
        let mut delays = Vec::new();
        for _ in want {
            let ended = now;
            let end = backoff.waiting("c", ended, now).map_or(now, |(end, _)| end);
            delays.push(until(now, end).as_secs());
            now = end;
            backoff.next("c", ended, now);
            now = after(now, Duration::from_secs(lived));
        }
        assert_eq!(delays, want, "a container that lives {lived} s");
    }

    #[test]
    fn a_crash_loop_waits_longer_each_time() {
        check(1, &[0, 10, 20, 40, 80, 160, 300, 300]);
        check(600, &[0, 10, 20, 40]);
    }

    #[test]
    fn ten_good_minutes_forget_the_crashes() {
        check(601, &[0, 0, 0]);
    }

    #[test]
    fn durations_print_as_go_does() {
        for (seconds, want) in [(10, "10s"), (80, "1m20s"), (300, "5m0s"), (3661, "1h1m1s")] {
            assert_eq!(go_duration(Duration::from_secs(seconds)), want);
        }
    }
}
