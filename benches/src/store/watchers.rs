//! A thousand watchers of one prefix while a thousand writes a second go on: when does the last of them know?
//!
//! A write's value is the moment it was asked for, so what is measured is the commit and the delivery together.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::StreamExt as _;
use store::etcd::proto::etcdserverpb::{
    PutRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use store::{Embedded, Op, Options, Store, Txn};
use tokio::{
    sync::{Barrier, mpsc},
    task::JoinSet,
    time::MissedTickBehavior,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use super::{
    Pair,
    client::{PREFIX, PREFIX_END, key},
};
use crate::report::{Latencies, Report, milliseconds};

const WATCHERS: usize = 1000;
/// Each a connection with a stream on it, as each resource of an API server has.
const STREAMS: usize = 20;
const WRITES: usize = 3000;
/// Each side in turn; the best of each counts, as a neighbour's burst says nothing about either.
const ROUNDS: usize = 3;
const PER_SECOND: u64 = 1000;
/// A tick of the writer, which then starts all that are due.
const TICK: Duration = Duration::from_millis(1);
const BAR: Duration = Duration::from_millis(10);

pub(super) async fn run(dir: &Path, report: &mut Report) -> Result<()> {
    Report::title(&format!(
        "{WATCHERS} watchers of one prefix at {PER_SECOND} writes/s, from the write to the watcher, best of {ROUNDS} rounds"
    ));
    let embedded = Arc::new(Embedded::open(&dir.join("embedded"), Options::default())?);
    let pair = Pair::start(dir).await?;
    let (mut within, mut ours, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        within.push(in_process(embedded.clone()).await?);
        ours.push(remote(&pair.ours.url).await?);
        peers.push(remote(&pair.peer.url).await?);
    }
    embedded.close().await;
    let [within, ours, peer] = [within, ours, peers].map(best);
    for (what, percent, bar) in [("p50", 50, None), ("p99", 99, Some(BAR))] {
        let (mine, theirs) = (ours.percentile(percent), peer.percentile(percent));
        let bar_said = bar.map_or(String::new(), |bar| format!("under {}", milliseconds(bar)));
        let ratio = mine.as_secs_f64() / theirs.as_secs_f64();
        let what_said = format!("{what} through gRPC, {STREAMS} streams");
        let met = bar.map(|bar| mine < bar);
        report.line(&what_said, &milliseconds(mine), &milliseconds(theirs), Some(ratio), &bar_said, met);
        let mine = within.percentile(percent);
        let met = bar.map(|bar| mine < bar);
        report.line(&format!("{what} in process"), &milliseconds(mine), "", None, &bar_said, met);
    }
    report.cpu("delivery", pair.ours.cpu_time()?, pair.peer.cpu_time()?, ROUNDS * WATCHERS * WRITES);
    Ok(())
}

fn best(rounds: Vec<Latencies>) -> Latencies {
    let best = rounds.into_iter().min_by_key(|round| round.percentile(99));
    best.unwrap_or_else(|| Latencies::new(Vec::new(), Instant::now()))
}

/// Writes at a steady rate; a write that is late starts as soon as it can, and its time counts from when it was due.
async fn write<F: Future<Output = Result<()>> + Send + 'static>(
    epoch: Instant,
    put: impl Fn(String, Bytes) -> F,
) -> Result<()> {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut writes = JoinSet::new();
    for index in 0..WRITES {
        ticks.tick().await;
        let now = u64::try_from(epoch.elapsed().as_nanos())?;
        writes.spawn(put(key(index % 100), Bytes::from(now.to_be_bytes().to_vec())));
        while let Some(done) = writes.try_join_next() {
            done??;
        }
    }
    while let Some(done) = writes.join_next().await {
        done??;
    }
    Ok(())
}

fn since(epoch: Instant, value: &[u8]) -> Result<Duration> {
    let written = u64::from_be_bytes(value.try_into().context("a value that is no time")?);
    Ok(epoch.elapsed().saturating_sub(Duration::from_nanos(written)))
}

async fn in_process(store: Arc<Embedded>) -> Result<Latencies> {
    let epoch = Instant::now();
    let mut readers = JoinSet::new();
    for _ in 0..WATCHERS {
        let mut watch = store.watch(PREFIX.into(), Some(PREFIX_END.into()), 0).await?;
        readers.spawn(async move {
            let mut latencies = Vec::with_capacity(WRITES);
            while latencies.len() < WRITES {
                for event in watch.next().await.context("the watch ended")??.events.iter() {
                    latencies.push(since(epoch, &event.kv.value)?);
                }
            }
            anyhow::Ok(latencies)
        });
    }
    write(epoch, move |key, value| {
        let store = store.clone();
        async move {
            store.txn(Txn { success: vec![Op::put(key, value)], ..Txn::default() }).await?;
            Ok(())
        }
    })
    .await?;
    Latencies::gather(readers, epoch).await
}

async fn remote(url: &str) -> Result<Latencies> {
    let epoch = Instant::now();
    let ready = Arc::new(Barrier::new(STREAMS + 1));
    let mut readers = JoinSet::new();
    for _ in 0..STREAMS {
        readers.spawn(read(WatchClient::new(connect(url).await?), epoch, ready.clone()));
    }
    ready.wait().await;
    let writer = KvClient::new(connect(url).await?);
    write(epoch, move |key, value| {
        let mut writer = writer.clone();
        async move {
            writer.put(PutRequest { key: key.into(), value, ..Default::default() }).await?;
            Ok(())
        }
    })
    .await?;
    Latencies::gather(readers, epoch).await
}

async fn connect(url: &str) -> Result<Channel> {
    Ok(Endpoint::new(url.to_owned())?.tcp_nodelay(true).connect().await?)
}

/// All watches of one stream.
async fn read(mut client: WatchClient<Channel>, epoch: Instant, ready: Arc<Barrier>) -> Result<Vec<Duration>> {
    let watches = WATCHERS / STREAMS;
    let (requests, outgoing) = mpsc::channel(watches);
    for _ in 0..watches {
        let request = WatchCreateRequest { key: PREFIX.into(), range_end: PREFIX_END.into(), ..Default::default() };
        requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(request)) }).await?;
    }
    let mut responses = client.watch(ReceiverStream::new(outgoing)).await?.into_inner();
    for _ in 0..watches {
        responses.message().await?.context("the stream ended")?;
    }
    ready.wait().await;
    let mut latencies = Vec::with_capacity(watches * WRITES);
    while latencies.len() < watches * WRITES {
        for event in responses.message().await?.context("the stream ended")?.events {
            latencies.push(since(epoch, &event.kv.context("an event without a key")?.value)?);
        }
    }
    Ok(latencies)
}
