//! One writer, and a thousand who watch what it writes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::{sync::Barrier, task::JoinSet};

use super::{
    NAMESPACE,
    client::Client,
    servers::{Server, Servers},
};
use crate::report::{Latencies, Report};

const WATCHERS: usize = 1000;
const WRITES: usize = 500;
/// What stands in front of the time of a write, in each event.
const MARK: &[u8] = b"\"written\":\"";
const DIGITS: usize = 20;

pub(super) async fn run(servers: &Servers, report: &mut Report) -> Result<()> {
    Report::title(&format!("{WATCHERS} watchers while one client writes {WRITES} times"));
    let before = (servers.ours.process.cpu_time()?, servers.peer.process.cpu_time()?);
    let peer = deliver(&servers.peer).await?;
    let ours = deliver(&servers.ours).await?;
    let spent = (servers.ours.process.cpu_time()? - before.0, servers.peer.process.cpu_time()? - before.1);
    report.rates("events delivered/s", &ours, &peer, 10.0);
    report.slowest("p99 from the write to the watcher", &ours, &peer);
    report.cpu("delivery", spent.0, spent.1, WATCHERS * WRITES);
    Ok(())
}

async fn deliver(server: &Server) -> Result<Latencies> {
    let ready = Arc::new(Barrier::new(WATCHERS + 1));
    let epoch = Instant::now();
    let mut watchers = JoinSet::new();
    for client in server.clients(WATCHERS).await? {
        watchers.spawn(watch(client, epoch, ready.clone()));
    }
    ready.wait().await;
    let mut writer = server.client().await?;
    let path = format!("{NAMESPACE}/configmaps");
    let begun = Instant::now();
    for index in 0..WRITES {
        let written = format!("{:0DIGITS$}", epoch.elapsed().as_nanos());
        let map = json!({"metadata": {"name": "watched"}, "data": {"written": written, "text": "v".repeat(1000)}});
        let (method, path) = match index {
            0 => (Method::POST, path.clone()),
            _ => (Method::PUT, format!("{path}/watched")),
        };
        writer.send(method, &path, map.to_string().into()).await?;
    }
    let latencies = Latencies::gather(watchers, begun).await;
    writer.send(Method::DELETE, &format!("{path}/watched"), Bytes::new()).await?;
    latencies
}

async fn watch(mut client: Client, epoch: Instant, ready: Arc<Barrier>) -> Result<Vec<Duration>> {
    // From what is known: a stock server's cache may be too far behind to begin at the newest.
    let path = format!("{NAMESPACE}/configmaps?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dwatched");
    let mut body = client.open(Method::GET, &path, "application/json", Bytes::new()).await?;
    ready.wait().await;
    let (mut latencies, mut rest) = (Vec::with_capacity(WRITES), Vec::new());
    while latencies.len() < WRITES {
        let frame = body.frame().await.context("the watch ended")??;
        rest.extend_from_slice(frame.data_ref().context("trailers")?);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for event in rest.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
        {
            latencies.push(since(epoch, event)?);
        }
        rest.drain(..whole);
    }
    Ok(latencies)
}

fn since(epoch: Instant, event: &[u8]) -> Result<Duration> {
    let at = event.windows(MARK.len()).position(|window| window == MARK);
    let at = at.with_context(|| format!("an event without its time: {}", String::from_utf8_lossy(event)))?;
    let digits = event.get(at + MARK.len()..).and_then(|rest| rest.get(..DIGITS)).context("a time cut short")?;
    let written: u64 = std::str::from_utf8(digits)?.parse()?;
    Ok(epoch.elapsed().saturating_sub(Duration::from_nanos(written)))
}
