//! A store that nobody uses: what it writes, and how often it wakes.

use std::{path::Path, time::Duration};

use anyhow::Result;
use bytes::Bytes;

use super::{Pair, client::TOGETHER, process::Process};
use crate::report::Report;

const WATCHED: Duration = Duration::from_secs(15);
/// What is under way after the last write comes to rest.
const SETTLE: Duration = Duration::from_secs(3);

pub(super) async fn run(dir: &Path, report: &mut Report) -> Result<()> {
    Report::title(&format!("idle for {} s, with 1000 objects and an open connection", WATCHED.as_secs()));
    let pair = Pair::start(dir).await?;
    let (mut ours, mut peer) = pair.clients().await?;
    for client in [&mut ours, &mut peer] {
        for first in (0..1000).step_by(TOGETHER) {
            client.fill(first..first + TOGETHER, &Bytes::from_static(&[b'v'; 1024])).await?;
        }
    }
    tokio::time::sleep(SETTLE).await;
    let before = (counted(&pair.ours)?, counted(&pair.peer)?);
    tokio::time::sleep(WATCHED).await;
    let after = (counted(&pair.ours)?, counted(&pair.peer)?);
    let (written, peer_written) = (after.0.0 - before.0.0, after.1.0 - before.1.0);
    report.line("bytes written", &written.to_string(), &peer_written.to_string(), None, "none", Some(written == 0));
    let rate = |woken: u64| woken as f64 / WATCHED.as_secs_f64();
    let (woken, peer_woken) = (rate(after.0.1 - before.0.1), rate(after.1.1 - before.1.1));
    let (said, peer_said) = (format!("{woken:.2}/s"), format!("{peer_woken:.2}/s"));
    report.line("wakeups of all threads", &said, &peer_said, None, "at most one a second", Some(woken <= 1.0));
    Ok(())
}

fn counted(process: &Process) -> Result<(u64, u64)> {
    Ok((process.written_bytes()?, process.sleeps()?))
}
