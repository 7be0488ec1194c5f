//! Measuring what takes less than a millisecond on a machine that is not ours alone.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::report::median;

/// The median round counts: a machine has bad moments of its own.
pub(crate) const ROUNDS: usize = 7;
/// How often a host that takes processors away is put up with.
const ATTEMPTS: usize = 8 * ROUNDS;

/// The median of the rounds that count.
pub(crate) async fn undisturbed(measure: impl AsyncFnMut() -> Result<Duration>) -> Result<Duration> {
    median(calm(measure).await?)
}

/// The rounds during which the host of this virtual machine took no processor away; where there are too few of them, those that were
/// disturbed least.
pub(crate) async fn calm<T>(measure: impl AsyncFnMut() -> Result<T>) -> Result<Vec<T>> {
    calmest(ROUNDS, ATTEMPTS, measure).await
}

/// As many of them, of that many at most.
pub(crate) async fn calmest<T>(
    wanted: usize,
    attempts: usize,
    mut measure: impl AsyncFnMut() -> Result<T>,
) -> Result<Vec<T>> {
    let (mut rounds, mut calm) = (Vec::new(), 0);
    while calm < wanted && rounds.len() < attempts {
        let before = stolen()?;
        let measured = measure().await?;
        let taken = stolen()?.saturating_sub(before);
        calm += usize::from(taken == 0);
        rounds.push((taken, measured));
    }
    rounds.sort_by_key(|(taken, _)| *taken);
    Ok(rounds.into_iter().take(wanted).map(|(_, measured)| measured).collect())
}

/// Ticks in which a processor of this machine had something to do, and its host did something else.
fn stolen() -> Result<u64> {
    let counts = std::fs::read_to_string("/proc/stat")?;
    // The first line adds up all processors: user, nice, system, idle, iowait, irq, softirq, steal.
    let ticks = counts.lines().next().and_then(|line| line.split_whitespace().nth(8));
    ticks.context("no steal in /proc/stat")?.parse().context("/proc/stat")
}
