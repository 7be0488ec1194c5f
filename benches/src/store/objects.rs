//! A hundred thousand objects: how long the store takes to open, what it holds in memory, and how fast it lists.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use store::etcd::proto::etcdserverpb::RangeRequest;
use store::{Embedded, Options, Store as _};

use super::{
    Pair,
    client::{Client, PREFIX, TOGETHER, all, key},
    ours, peer,
};
use crate::report::{Report, median, milliseconds};

const OBJECTS: usize = 100_000;
const VALUE_BYTES: usize = 2048;
const LISTED: usize = 10_000;
const LISTS: usize = 15;

pub(super) async fn run(dir: &Path, report: &mut Report) -> Result<()> {
    Report::title(&format!("{OBJECTS} objects of {VALUE_BYTES} bytes"));
    let stored = (OBJECTS * (VALUE_BYTES + key(0).len())) as u64;
    let pair = Pair::start(dir).await?;
    let (mut ours_client, mut peer_client) = pair.clients().await?;
    fill(&mut ours_client).await?;
    fill(&mut peer_client).await?;
    memory(report, "memory after writing them", pair.ours.resident_bytes()?, pair.peer.resident_bytes()?, stored, None);
    drop(pair);

    let begun = Instant::now();
    let store = Embedded::open(&dir.join("ferry"), Options::default())?;
    let opened = begun.elapsed();
    let mut within = Vec::new();
    for _ in 0..LISTS {
        let begun = Instant::now();
        let found = store.range(store::Range { limit: LISTED, ..store::Range::prefix(PREFIX) }).await?;
        within.push(begun.elapsed());
        ensure!(found.kvs.len() == LISTED && found.count == OBJECTS as i64 && found.more);
    }
    let within = median(within)?;
    store.close().await;
    let begun = Instant::now();
    let peer = peer::start(&dir.join("etcd")).await?;
    let peer_opened = begun.elapsed();
    let ratio = opened.as_secs_f64() / peer_opened.as_secs_f64();
    let (mine, theirs) = (milliseconds(opened), milliseconds(peer_opened));
    report.line("reopen", &mine, &theirs, Some(ratio), "under 1 s", Some(opened < Duration::from_secs(1)));

    let ours = ours::start(&dir.join("ferry")).await?;
    memory(report, "memory after reopening", ours.resident_bytes()?, peer.resident_bytes()?, stored, Some(1.5));
    let (mut ours_client, mut peer_client) = (Client::connect(&ours.url).await?, Client::connect(&peer.url).await?);
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    let before = (ours.cpu_time()?, peer.cpu_time()?);
    for _ in 0..LISTS {
        mine.push(list(&mut ours_client).await?);
        theirs.push(list(&mut peer_client).await?);
    }
    let spent = (ours.cpu_time()? - before.0, peer.cpu_time()? - before.1);
    let (mine, theirs) = (median(mine)?, median(theirs)?);
    // In process is how the API server asks; through gRPC, most of the time goes to carrying 20 MB from process to process.
    let said = "at least 3× as fast";
    for (what, mine, bar) in [("in process", within, Some(3.0)), ("through gRPC", mine, None)] {
        let ratio = theirs.as_secs_f64() / mine.as_secs_f64();
        let what = format!("range of {LISTED} {what}, median of {LISTS}");
        let (mine, theirs) = (milliseconds(mine), milliseconds(theirs));
        report.line(&what, &mine, &theirs, Some(ratio), bar.map_or("", |_| said), bar.map(|bar| ratio >= bar));
    }
    report.cpu("range", spent.0, spent.1, LISTS);
    let listed = stored / (OBJECTS / LISTED) as u64;
    memory(report, "memory after listing", ours.resident_bytes()?, peer.resident_bytes()?, stored + listed, None);
    Ok(())
}

async fn fill(client: &mut Client) -> Result<()> {
    let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
    for first in (0..OBJECTS).step_by(TOGETHER) {
        client.fill(first..first + TOGETHER, &value).await?;
    }
    Ok(())
}

async fn list(client: &mut Client) -> Result<Duration> {
    let begun = Instant::now();
    let found = client.range(RangeRequest { limit: LISTED as i64, ..all() }).await?;
    let took = begun.elapsed();
    ensure!(found.kvs.len() == LISTED && found.count == OBJECTS as i64 && found.more);
    Ok(took)
}

fn memory(report: &mut Report, what: &str, ours: u64, peer: u64, stored: u64, bar: Option<f64>) {
    let megabytes = |bytes: u64| format!("{} MB", bytes / 1_000_000);
    let times = ours as f64 / stored as f64;
    let said = bar.map_or(format!("{times:.2}× of stored"), |bar| format!("at most {bar}× of stored; {times:.2}×"));
    let ratio = Some(ours as f64 / peer as f64);
    report.line(what, &megabytes(ours), &megabytes(peer), ratio, &said, bar.map(|bar| times <= bar));
}
