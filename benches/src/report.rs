//! The table a bench prints: what was measured, ours beside the peer's, and whether the bar is met.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

#[derive(Default)]
pub(crate) struct Report {
    missed: usize,
}

impl Report {
    pub(crate) fn title(text: &str) {
        say(&format!("\n{text}\n  {:<58} {:>14} {:>14} {:>8}  bar", "", "ferry", "peer", "ratio"));
    }

    /// One line. `met` is `None` where there is no bar.
    pub(crate) fn line(
        &mut self,
        what: &str,
        ours: &str,
        peer: &str,
        ratio: Option<f64>,
        bar: &str,
        met: Option<bool>,
    ) {
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}×"));
        let verdict = match met {
            Some(true) => "✔",
            Some(false) => "✘",
            None => " ",
        };
        self.missed += usize::from(met == Some(false));
        say(&format!("{verdict} {what:<58} {ours:>14} {peer:>14} {ratio:>8}  {bar}"));
    }

    /// Processor time of the server for each of `count` operations, which has no bar but explains the others.
    pub(crate) fn cpu(&mut self, what: &str, ours: Duration, peer: Duration, count: usize) {
        let each = |time: Duration| format!("{:.1} µs", time.as_secs_f64() * 1e6 / count as f64);
        let ratio = Some(ours.as_secs_f64() / peer.as_secs_f64());
        self.line(&format!("processor time of the server, each {what}"), &each(ours), &each(peer), ratio, "", None);
    }

    pub(crate) fn finish(self) -> Result<()> {
        match self.missed {
            0 => Ok(()),
            missed => bail!("{missed} bars are missed"),
        }
    }
}

pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Latencies of many operations, and how long all of them took.
pub(crate) struct Latencies {
    sorted: Vec<Duration>,
    took: Duration,
}

impl Latencies {
    pub(crate) fn new(mut all: Vec<Duration>, begun: Instant) -> Latencies {
        let took = begun.elapsed();
        all.sort_unstable();
        Latencies { sorted: all, took }
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.sorted.len() as f64 / self.took.as_secs_f64()
    }

    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted.get((self.sorted.len() * percent / 100).min(last)).copied().unwrap_or_default()
    }
}

pub(crate) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
