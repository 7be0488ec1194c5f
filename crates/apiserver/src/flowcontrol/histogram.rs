//! Distributions of what flow control sees, in Prometheus' text format. Bounds are upstream's.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

type Bounds = &'static [f64];

pub(super) const SECONDS: Bounds = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
pub(super) const SEATS: Bounds = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
pub(super) const LENGTHS: Bounds = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
pub(super) const WATCHERS: Bounds = &[0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0];
pub(super) const SEAT_SHARES: Bounds = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
pub(super) const REQUEST_SHARES: Bounds = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
pub(super) const DEMANDS: Bounds = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// The place of a value; what is above all bounds comes last.
fn place(bounds: Bounds, value: f64) -> usize {
    bounds.iter().position(|most| value <= *most).unwrap_or(bounds.len())
}

/// How many values there were up to each bound.
pub(super) struct Histogram {
    bounds: Bounds,
    counts: Box<[AtomicU64]>,
    /// Bits of a floating-point number.
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: Bounds) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0.0_f64.to_bits()) }
    }

    pub(super) fn observe(&self, value: f64) {
        if let Some(count) = self.counts.get(place(self.bounds, value)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let add = |bits: u64| Some((f64::from_bits(bits) + value).to_bits());
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str) {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        write(text, (name, labels), self.bounds, counts, f64::from_bits(self.sum.load(Ordering::Relaxed)));
    }
}

/// How long a value was up to each bound: as if it were looked at after every nanosecond.
#[derive(Debug)]
pub(super) struct Lasting {
    bounds: Bounds,
    nanos: Box<[u64]>,
    sum: f64,
}

impl Lasting {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, nanos: (0..=bounds.len()).map(|_| 0).collect(), sum: 0.0 }
    }

    /// It was this for so long.
    pub(super) fn add(&mut self, value: f64, time: Duration) {
        if let Some(nanos) = self.nanos.get_mut(place(self.bounds, value)) {
            *nanos = nanos.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        self.sum += value * time.as_nanos() as f64;
    }

    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str) {
        write(text, (name, labels), self.bounds, self.nanos.iter().copied(), self.sum);
    }
}

/// Nothing where nothing was seen.
fn write(
    text: &mut String,
    (name, labels): (&str, &str),
    bounds: Bounds,
    counts: impl Iterator<Item = u64> + Clone,
    sum: f64,
) {
    if counts.clone().all(|count| count == 0) {
        return;
    }
    let bounds = bounds.iter().map(ToString::to_string).chain(std::iter::once("+Inf".to_owned()));
    let mut total = 0_u64;
    for (most, count) in bounds.zip(counts) {
        total = total.saturating_add(count);
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{most}\"}} {total}");
    }
    let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_from_bound_to_bound() {
        let seen = Histogram::new(WATCHERS);
        let mut text = String::new();
        seen.write(&mut text, "n", "a=\"b\"");
        assert_eq!(text, "", "what never happened is not told");
        [0.0, 1.0, 5.0, 20_000.0].into_iter().for_each(|value| seen.observe(value));
        seen.write(&mut text, "n", "a=\"b\"");
        let counts: Vec<&str> = text.lines().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(counts, ["1", "2", "3", "3", "3", "3", "4", "20006", "4"]);
        assert!(text.starts_with("n_bucket{a=\"b\",le=\"0\"} 1\n"), "{text}");
    }

    #[test]
    fn a_value_weighs_what_it_lasts() {
        let mut seen = Lasting::new(DEMANDS);
        seen.add(0.5, Duration::from_nanos(30));
        seen.add(8.0, Duration::from_nanos(10));
        let mut text = String::new();
        seen.write(&mut text, "n", "a=\"b\"");
        assert!(text.contains("le=\"0.4\"} 0\n") && text.contains("le=\"0.6\"} 30\n"), "{text}");
        assert!(text.ends_with("n_sum{a=\"b\"} 95\nn_count{a=\"b\"} 40\n"), "{text}");
    }
}
