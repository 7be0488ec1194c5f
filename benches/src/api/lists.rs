//! Ten thousand pods: what they cost to hold, and how fast they are listed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    CLIENTS, NAMESPACE,
    servers::{Server, Servers},
};
use crate::report::{Report, median, megabytes, milliseconds};

const SETTLED: Duration = Duration::from_secs(15);
const PODS: usize = 10_000;
const LISTS: usize = 7;
const TOGETHER: usize = 4;
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(super) async fn run(servers: &Servers, report: &mut Report) -> Result<()> {
    Report::title(&format!("{PODS} pods; a list is the median of {LISTS}"));
    let (ours, peer) = (&servers.ours, &servers.peer);
    // What a start sets off is done by then, on both sides.
    tokio::time::sleep(SETTLED).await;
    let idle = (ours.process.resident_bytes()?, peer.process.resident_bytes()?);
    let bar = Some(idle.0 < 30_000_000);
    report.line("memory before", &megabytes(idle.0), &megabytes(idle.1), None, "under 30 MB", bar);
    fill(ours).await?;
    fill(peer).await?;
    let listed = ours.client().await?.get(&format!("{NAMESPACE}/pods"), "application/json").await? as u64;
    let held = (ours.process.resident_bytes()? - idle.0, peer.process.resident_bytes()? - idle.1);
    let times = held.0 as f64 / listed as f64;
    let said = format!("at most 2.5× of their JSON; {times:.2}×");
    report.line("memory they take", &megabytes(held.0), &megabytes(held.1), None, &said, Some(times <= 2.5));
    for (what, accept) in [("JSON", "application/json"), ("protobuf", PROTOBUF)] {
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..LISTS {
            mine.push(list(ours, accept).await?);
            theirs.push(list(peer, accept).await?);
        }
        let (mine, theirs) = (median(mine)?, median(theirs)?);
        let ratio = theirs.as_secs_f64() / mine.as_secs_f64();
        let (mine, theirs) = (milliseconds(mine), milliseconds(theirs));
        report.line(
            &format!("list as {what}"),
            &mine,
            &theirs,
            Some(ratio),
            "at least 10× as fast",
            Some(ratio >= 10.0),
        );
    }
    let grown = (together(ours).await?, together(peer).await?);
    let what = format!("memory that {TOGETHER} lists at once take");
    report.line(&what, &megabytes(grown.0), &megabytes(grown.1), None, "under 50 MB", Some(grown.0 < 50_000_000));
    Ok(())
}

async fn list(server: &Server, accept: &str) -> Result<Duration> {
    let mut client = server.client().await?;
    let begun = Instant::now();
    client.get(&format!("{NAMESPACE}/pods"), accept).await?;
    Ok(begun.elapsed())
}

/// How much higher memory was than before.
async fn together(server: &Server) -> Result<u64> {
    let before = server.process.resident_bytes()?;
    server.process.forget_peak()?;
    let mut lists = JoinSet::new();
    for mut client in server.clients(TOGETHER).await? {
        lists.spawn(async move { client.get(&format!("{NAMESPACE}/pods"), "application/json").await });
    }
    while let Some(done) = lists.join_next().await {
        done??;
    }
    Ok(server.process.peak_bytes()?.saturating_sub(before))
}

async fn fill(server: &Server) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for mut client in server.clients(CLIENTS).await? {
        let next = next.clone();
        tasks.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= PODS {
                    return anyhow::Ok(());
                }
                let pod = json!({
                    "metadata": {"name": format!("pod-{index}"), "labels": {"app": "bench", "number": index.to_string()}},
                    "spec": {"containers": [{
                        "name": "main", "image": "example.invalid/hello:1", "args": ["--number", index.to_string()],
                        "ports": [{"containerPort": 8080}], "env": [{"name": "KEY", "value": "value"}],
                        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
                    }]},
                });
                client.send(Method::POST, &format!("{NAMESPACE}/pods"), pod.to_string().into()).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
