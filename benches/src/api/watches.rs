//! One writer, and a thousand who watch what it writes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::Method;
use memchr::memmem::Finder;
use serde_json::json;
use tokio::{sync::Barrier, task::JoinSet};

use super::{
    NAMESPACE,
    client::{Trust, host},
    servers::{Server, Servers},
};
use crate::{
    http2::{END_HEADERS, END_STREAM, HEADERS, Http2, frame, string},
    report::{Latencies, Report},
    rounds::calmest,
};

const WATCHERS: usize = 1000;
/// How many of them share a connection.
const TOGETHER: usize = 50;
const WRITES: usize = 500;
const ROUNDS: usize = 5;
const ATTEMPTS: usize = 9;
/// What stands in front of the time of a write, in each event.
const MARK: &[u8] = b"\"at\":\"";
const DIGITS: usize = 20;

pub(super) async fn run(servers: &Servers, report: &mut Report) -> Result<()> {
    let connections = WATCHERS / TOGETHER;
    Report::title(&format!("{WATCHERS} watchers on {connections} connections while one client writes {WRITES} times"));
    // A round of the peer's takes long: few of them, and of those both that were disturbed least.
    let mut ours = calmest(ROUNDS, ATTEMPTS, async || measured(&servers.ours).await).await?;
    let mut peer = calmest(ROUNDS, ATTEMPTS, async || measured(&servers.peer).await).await?;
    // A single stall makes a round's slowest deliveries what they are, and not its rate: each has a middle of its own.
    sort_by(&mut [&mut ours, &mut peer], |latencies| latencies.percentile(99).as_secs_f64());
    let (slow, peers_slow) = (middle(&ours)?, middle(&peer)?);
    report.slowest("p99 from the write to the watcher", &slow.0, &peers_slow.0);
    sort_by(&mut [&mut ours, &mut peer], Latencies::per_second);
    let (ours, peer) = (middle(&ours)?, middle(&peer)?);
    report.rates("events delivered/s", &ours.0, &peer.0, 10.0);
    report.cpu("delivery", ours.1, peer.1, WATCHERS * WRITES);
    Ok(())
}

async fn measured(server: &Server) -> Result<Round> {
    let before = server.process.cpu_time()?;
    let delivered = deliver(server).await?;
    Ok((delivered, server.process.cpu_time()? - before))
}

/// What the watchers of a round got, and the processor time it took the server.
type Round = (Latencies, Duration);

fn sort_by(sides: &mut [&mut Vec<Round>], key: impl Fn(&Latencies) -> f64) {
    for rounds in sides {
        rounds.sort_by(|(one, _), (other, _)| key(one).total_cmp(&key(other)));
    }
}

fn middle(rounds: &[Round]) -> Result<&Round> {
    rounds.get(rounds.len() / 2).context("nothing was measured")
}

async fn deliver(server: &Server) -> Result<Latencies> {
    let ready = Arc::new(Barrier::new(WATCHERS / TOGETHER + 1));
    let epoch = Instant::now();
    let mut watchers = JoinSet::new();
    let reached = Arc::new((server.process.url.clone(), server.trust.clone()));
    for _ in 0..WATCHERS / TOGETHER {
        watchers.spawn(watch(reached.clone(), epoch, ready.clone()));
    }
    ready.wait().await;
    let mut writer = server.client().await?;
    let path = format!("{NAMESPACE}/configmaps");
    let begun = Instant::now();
    for index in 0..WRITES {
        let written = format!("{:0DIGITS$}", epoch.elapsed().as_nanos());
        let map = json!({"metadata": {"name": "watched"}, "data": {"at": written, "text": "v".repeat(1000)}});
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

/// Some watchers, which share a connection as those of one process do.
async fn watch(server: Arc<(String, Arc<Trust>)>, epoch: Instant, ready: Arc<Barrier>) -> Result<Vec<Duration>> {
    let (url, trust) = &*server;
    let mut connection = Http2::connect(trust.open_http2(url).await?).await?;
    // From what is known: a stock server's cache may be too far behind to begin at the newest.
    let path = format!("{NAMESPACE}/configmaps?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dwatched");
    let mut requests = BytesMut::new();
    for index in 0..TOGETHER {
        let mut headers = BytesMut::new();
        // Of the static table: GET and https whole, the others' names. Nothing is to be remembered.
        headers.put_slice(&[0x82, 0x87]);
        for (name, value) in [(0x04, path.as_str()), (0x01, host(url)?)] {
            headers.put_u8(name);
            string(&mut headers, value);
        }
        frame(&mut requests, HEADERS, END_HEADERS | END_STREAM, u32::try_from(2 * index + 1)?, &headers);
    }
    connection.send(&requests).await?;
    let mut begun = 0;
    let mut latencies = Vec::with_capacity(WRITES * TOGETHER);
    let marks = Finder::new(MARK);
    let mut rests: Vec<Vec<u8>> = vec![Vec::new(); TOGETHER];
    while latencies.len() < WRITES * TOGETHER {
        let Some(frame) = connection.next().await? else { continue };
        ensure!(frame.flags & END_STREAM == 0, "the watch ended");
        if frame.kind == HEADERS {
            begun += 1;
            if begun == TOGETHER {
                ready.wait().await;
            }
            continue;
        }
        let rest = rests.get_mut(frame.stream as usize / 2).context("a stream nobody opened")?;
        let (mut events, now) = (&*frame.payload, epoch.elapsed());
        while let Some(end) = memchr::memchr(b'\n', events) {
            let (last, others) = events.split_at(end + 1);
            events = others;
            if rest.is_empty() {
                latencies.push(now.saturating_sub(written(&marks, last)?));
            } else {
                rest.extend_from_slice(last);
                latencies.push(now.saturating_sub(written(&marks, rest)?));
                rest.clear();
            }
        }
        rest.extend_from_slice(events);
    }
    Ok(latencies)
}

/// When the object of an event was written.
fn written(marks: &Finder<'_>, event: &[u8]) -> Result<Duration> {
    let at = marks.find(event);
    let at = at.with_context(|| format!("an event without its time: {}", String::from_utf8_lossy(event)))?;
    let digits = event.get(at + MARK.len()..).and_then(|rest| rest.get(..DIGITS)).context("a time cut short")?;
    Ok(Duration::from_nanos(std::str::from_utf8(digits)?.parse()?))
}
