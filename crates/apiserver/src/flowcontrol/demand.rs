//! How many seats a priority level could have used, over time.

use std::time::Duration;

/// How fast a demand that is gone is forgotten, for each period.
const SMOOTHING: f64 = 0.977;

/// The integrals of a number of seats, and of its square, since they were last read.
#[derive(Debug)]
pub(super) struct Demand {
    since: Duration,
    last: Duration,
    seats: f64,
    sum: f64,
    squares: f64,
    most: f64,
    pub(super) known: Known,
}

/// What is made of it at the end of every period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub(super) high_watermark: f64,
    pub(super) average: f64,
    pub(super) deviation: f64,
    pub(super) smoothed: f64,
}

impl Demand {
    pub(super) fn new(now: Duration) -> Self {
        Self { since: now, last: now, seats: 0.0, sum: 0.0, squares: 0.0, most: 0.0, known: Known::default() }
    }

    pub(super) fn set(&mut self, seats: usize, now: Duration) {
        self.integrate(now);
        self.seats = seats as f64;
        self.most = self.most.max(self.seats);
    }

    fn integrate(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
        self.sum += elapsed * self.seats;
        self.squares += elapsed * self.seats * self.seats;
    }

    /// Ends the period, which may have been as long as several.
    pub(super) fn settle(&mut self, now: Duration, period: Duration) -> Known {
        self.integrate(now);
        let elapsed = now.saturating_sub(self.since).as_secs_f64();
        self.known.high_watermark = self.most;
        if elapsed > 0.0 {
            let average = self.sum / elapsed;
            let deviation = (self.squares / elapsed - average * average).max(0.0).sqrt();
            let envelope = average + deviation;
            let kept = SMOOTHING.powf((elapsed / period.as_secs_f64()).max(1.0));
            let smoothed = envelope.max(kept * self.known.smoothed + (1.0 - kept) * envelope);
            self.known = Known { high_watermark: self.most, average, deviation, smoothed };
        }
        (self.since, self.sum, self.squares, self.most) = (now, 0.0, 0.0, self.seats);
        self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_averaged_and_slowly_forgotten() {
        let (second, period) = (Duration::from_secs(1), Duration::from_secs(10));
        let mut demand = Demand::new(Duration::ZERO);
        demand.set(4, Duration::ZERO);
        demand.set(0, 5 * second);
        let known = demand.settle(10 * second, period);
        assert_eq!(known, Known { high_watermark: 4.0, average: 2.0, deviation: 2.0, smoothed: 4.0 });
        let known = demand.settle(20 * second, period);
        assert_eq!(known, Known { smoothed: 4.0 * SMOOTHING, ..Known::default() });
        // Three periods at once are as good as three.
        let known = demand.settle(50 * second, period);
        assert!((known.smoothed - 4.0 * SMOOTHING.powi(4)).abs() < 1e-9);
    }
}
