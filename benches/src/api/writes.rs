//! ConfigMaps of 1 KB, created, changed and read by many clients at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::Result;
use bytes::Bytes;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    CLIENTS, NAMESPACE,
    client::Client,
    servers::{Server, Servers},
};
use crate::report::{Latencies, Report};

const OBJECTS: usize = 5000;
/// Each side in turn, so that both meet the same neighbours; the best of each counts.
const ROUNDS: usize = 3;
const BAR: f64 = 5.0;

#[derive(Clone, Copy)]
enum Act {
    Create,
    Update,
    Get,
}

pub(super) async fn run(servers: &Servers, report: &mut Report) -> Result<()> {
    Report::title(&format!("{OBJECTS} ConfigMaps of 1 KB by {CLIENTS} clients, best of {ROUNDS} rounds"));
    for (what, act) in [("creates/s", Act::Create), ("updates/s", Act::Update), ("gets/s", Act::Get)] {
        let (mut ours, mut peer) = (Vec::new(), Vec::new());
        let before = (servers.ours.process.cpu_time()?, servers.peer.process.cpu_time()?);
        for round in 0..ROUNDS {
            peer.push(all(&servers.peer, act, round).await?);
            ours.push(all(&servers.ours, act, round).await?);
        }
        let spent = (servers.ours.process.cpu_time()? - before.0, servers.peer.process.cpu_time()? - before.1);
        let [ours, peer] = [ours, peer].map(Latencies::fastest);
        report.rates(what, &ours, &peer, BAR);
        report.slowest("p99 of these", &ours, &peer);
        report.cpu("of these", spent.0, spent.1, ROUNDS * OBJECTS);
    }
    Ok(())
}

fn object(name: &str, round: usize) -> Bytes {
    let data = json!({"metadata": {"name": name}, "data": {"round": round.to_string(), "text": "v".repeat(1000)}});
    data.to_string().into()
}

async fn one(client: &mut Client, act: Act, round: usize, index: usize) -> Result<()> {
    // Each round creates its own, and changes and reads those.
    let (name, maps) = (format!("map-{round}-{index}"), format!("{NAMESPACE}/configmaps"));
    match act {
        Act::Create => client.send(Method::POST, &maps, object(&name, round)).await,
        Act::Update => client.send(Method::PUT, &format!("{maps}/{name}"), object(&name, ROUNDS)).await,
        Act::Get => client.get(&format!("{maps}/{name}"), "application/json").await.map(drop),
    }
}

async fn all(server: &Server, act: Act, round: usize) -> Result<Latencies> {
    let next = Arc::new(AtomicUsize::new(0));
    let clients = server.clients(CLIENTS).await?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let next = next.clone();
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= OBJECTS {
                    return anyhow::Ok(latencies);
                }
                let asked = Instant::now();
                one(&mut client, act, round, index).await?;
                latencies.push(asked.elapsed());
            }
        });
    }
    Latencies::gather(tasks, begun).await
}
