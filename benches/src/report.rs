//! The table a bench prints: what was measured, ours beside the peer's, and whether the bar is met.

use std::{
    cmp::Ordering,
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use tokio::task::JoinSet;

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

    /// Operations a second, which must be at least `bar` times the peer's.
    pub(crate) fn rates(&mut self, what: &str, ours: &Latencies, peer: &Latencies, bar: f64) {
        let ratio = ours.per_second() / peer.per_second();
        let rate = |side: &Latencies| format!("{:.0}/s", side.per_second());
        self.line(what, &rate(ours), &rate(peer), Some(ratio), &format!("at least {bar}×"), Some(ratio >= bar));
    }

    /// The 99th percentile, which must be no worse than the peer's.
    pub(crate) fn slowest(&mut self, what: &str, ours: &Latencies, peer: &Latencies) {
        let (mine, theirs) = (ours.percentile(99), peer.percentile(99));
        let ratio = mine.as_secs_f64() / theirs.as_secs_f64();
        self.line(what, &milliseconds(mine), &milliseconds(theirs), Some(ratio), "no worse", Some(mine <= theirs));
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

    /// Those of all tasks together.
    pub(crate) async fn gather(mut tasks: JoinSet<Result<Vec<Duration>>>, begun: Instant) -> Result<Latencies> {
        let mut all = Vec::new();
        while let Some(latencies) = tasks.join_next().await {
            all.extend(latencies??);
        }
        Ok(Latencies::new(all, begun))
    }

    /// The best of several rounds.
    pub(crate) fn fastest(rounds: Vec<Latencies>) -> Latencies {
        let best = rounds.into_iter().max_by(|a, b| a.per_second().total_cmp(&b.per_second()));
        best.unwrap_or_else(|| Latencies::new(Vec::new(), Instant::now()))
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

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

pub(crate) fn median<T: Copy + PartialOrd>(mut measured: Vec<T>) -> Result<T> {
    measured.sort_unstable_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    measured.get(measured.len() / 2).copied().context("nothing was measured")
}
