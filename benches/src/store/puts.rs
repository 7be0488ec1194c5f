//! Durable puts of 2 KB by 64 clients: through the API, each with a connection of its own, and in process.

use std::{
    future::Future,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::Result;
use bytes::Bytes;
use store::{Embedded, Op, Options, Store, Txn};
use tokio::task::JoinSet;

use super::{
    Pair,
    client::{Client, key},
};
use crate::report::{Latencies, Report};

const CLIENTS: usize = 64;
const PUTS: usize = 20_000;
const VALUE_BYTES: usize = 2048;
/// Each side in turn, so that both meet the same neighbours; the best of each counts.
const ROUNDS: usize = 5;

pub(super) async fn run(dir: &Path, report: &mut Report) -> Result<()> {
    Report::title(&format!("{PUTS} durable puts of {VALUE_BYTES} bytes by {CLIENTS} clients, best of {ROUNDS} rounds"));
    let pair = Pair::start(dir).await?;
    let embedded = Arc::new(Embedded::open(&dir.join("embedded"), Options::default())?);
    let (mut ours, mut peers, mut within) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        peers.push(remote(&pair.peer.url, round).await?);
        ours.push(remote(&pair.ours.url, round).await?);
        within.push(in_process(embedded.clone(), round).await?);
    }
    let [ours, peer, within] = [ours, peers, within].map(Latencies::fastest);
    report.rates("puts/s through gRPC", &ours, &peer, 2.0);
    report.slowest("p99 through gRPC", &ours, &peer);
    report.cpu("put", pair.ours.cpu_time()?, pair.peer.cpu_time()?, ROUNDS * PUTS);
    report.rates("puts/s in process", &within, &peer, 5.0);
    report.slowest("p99 in process", &within, &peer);
    embedded.close().await;
    Ok(())
}

async fn remote(url: &str, round: usize) -> Result<Latencies> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(url).await?);
    }
    let put = |mut client: Client, index: usize, value: Bytes| async move {
        client.put(key(index), value).await?;
        Ok(client)
    };
    share(clients, round, put).await
}

async fn in_process(store: Arc<Embedded>, round: usize) -> Result<Latencies> {
    let put = |store: Arc<Embedded>, index: usize, value: Bytes| async move {
        store.txn(Txn { success: vec![Op::put(key(index), value)], ..Txn::default() }).await?;
        Ok(store)
    };
    share(vec![store; CLIENTS], round, put).await
}

/// All clients take the next index until none is left.
async fn share<C, F>(clients: Vec<C>, round: usize, put: fn(C, usize, Bytes) -> F) -> Result<Latencies>
where
    C: Send + 'static,
    F: Future<Output = Result<C>> + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(round * PUTS));
    let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let (next, value) = (next.clone(), value.clone());
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= (round + 1) * PUTS {
                    return anyhow::Ok(latencies);
                }
                let asked = Instant::now();
                client = put(client, index, value.clone()).await?;
                latencies.push(asked.elapsed());
            }
        });
    }
    Latencies::gather(tasks, begun).await
}
