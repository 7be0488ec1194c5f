//! After how many seconds those who were refused should come again: longer, the more of them there are.

use std::collections::VecDeque;

const LONGEST: i64 = 32;

/// The refusals of one priority level, by the second.
#[derive(Debug)]
pub(super) struct Dropped {
    /// Seconds that are over, with how many were refused in each.
    history: VecDeque<(i64, i64)>,
    current: (i64, i64),
    retry_after: i64,
    raised: i64,
}

impl Default for Dropped {
    fn default() -> Self {
        Self { history: VecDeque::new(), current: (0, 0), retry_after: 1, raised: 0 }
    }
}

impl Dropped {
    /// One more is refused; when it should come again.
    pub(super) fn record(&mut self, second: i64) -> i64 {
        if self.current.0 == second {
            self.current.1 += 1;
            return self.retry_after;
        }
        self.history.push_back(self.current);
        let oldest = self.current.0 - (2 * self.retry_after).min(LONGEST);
        while self.history.front().is_some_and(|(at, _)| *at < oldest) {
            self.history.pop_front();
        }
        self.current = (second, 1);
        self.adjust(second);
        self.retry_after
    }

    /// Doubled after three refusals a second for that long, and not again in that time; one less after fewer than one a second.
    fn adjust(&mut self, now: i64) {
        let recent = self.history.iter().filter(|(at, _)| now - at <= self.retry_after && *at < now);
        let dropped: i64 = recent.map(|(_, count)| count).sum();
        if now - self.raised >= self.retry_after && dropped >= 3 * self.retry_after {
            self.retry_after = (2 * self.retry_after).min(LONGEST);
            self.raised = now;
        } else if dropped < self.retry_after && self.retry_after > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `each` refusals in every second from `from` to `to`; the last answer.
    fn refuse(dropped: &mut Dropped, seconds: std::ops::Range<i64>, each: i64) -> Vec<i64> {
        let answer = |second| (0..each).map(|_| dropped.record(second)).last().unwrap_or_default();
        seconds.map(answer).collect()
    }

    #[test]
    fn who_is_refused_too_often_waits_longer_and_then_less() {
        let mut dropped = Dropped::default();
        assert_eq!(refuse(&mut dropped, 1000..1003, 1), [1, 1, 1], "a few do no harm");
        // Raised once for each time it has been waited for.
        assert_eq!(refuse(&mut dropped, 1003..1012, 10), [1, 2, 2, 4, 4, 4, 4, 8, 8]);
        assert_eq!(refuse(&mut dropped, 1012..1080, 100).last(), Some(&32), "never longer");
        assert_eq!(refuse(&mut dropped, 1200..1201, 1), [31], "nothing was refused for a while");
    }
}
