//! One tenant floods the server with lists: what another one and the leases feel of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{NAMESPACE, hostile::Attack, servers::Server};
use crate::{
    report::{Latencies, Report, milliseconds},
    rounds::undisturbed,
};

const OBJECTS: usize = 5000;
const FLOODING: usize = 16;
const CALM: usize = 4;
const GETS: usize = 500;
const RENEWALS: usize = 200;
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// Longer than any leader waits for its lease.
const STARVED: Duration = Duration::from_secs(1);

pub(super) async fn run(server: Server, report: &mut Report) -> Result<()> {
    Report::title(&format!(
        "a tenant lists {OBJECTS} ConfigMaps of 1 KB over {FLOODING} connections, another gets one (peer: without the flood)"
    ));
    let server = Arc::new(server);
    prepare(&server).await?;
    let calm = slowest(&server).await?;
    let lists = Arc::new(AtomicUsize::new(0));
    let mut attack = Attack::new()?;
    for _ in 0..FLOODING {
        let flooded = server.clone();
        let mut client = attack.prepare(async move { Ok(flooded.client().await?.acting_as("flood")) }).await?;
        let lists = lists.clone();
        attack.spawn(async move {
            loop {
                // It may be told that there are too many.
                let path = format!("{NAMESPACE}/configmaps");
                match client.get(&path, "application/json").await {
                    Ok(_) => drop(lists.fetch_add(1, Ordering::Relaxed)),
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let begun = Instant::now();
    let (flooded, starved) = (slowest(&server).await?, renew(&server).await?);
    let rate = lists.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    attack.tasks.shutdown().await;
    let ratio = flooded.as_secs_f64() / calm.as_secs_f64();
    let what = format!("p99 of {CALM} clients (about {rate:.0} lists/s meanwhile)");
    report.line(&what, &milliseconds(flooded), &milliseconds(calm), Some(ratio), "within 3×", Some(ratio <= 3.0));
    let bar = format!("under {}", milliseconds(STARVED));
    report.line("the slowest of the leases", &milliseconds(starved), "", None, &bar, Some(starved < STARVED));
    Ok(())
}

async fn prepare(server: &Server) -> Result<()> {
    let mut client = server.client().await?;
    for user in ["flood", "calm"] {
        let binding = json!({
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    }
    for index in 0..OBJECTS {
        let map = json!({"metadata": {"name": format!("m{index}")}, "data": {"text": "v".repeat(1000)}});
        client.post(&format!("{NAMESPACE}/configmaps"), &map).await?;
    }
    client.post(LEASE, &json!({"metadata": {"name": "kube-scheduler"}, "spec": {}})).await
}

/// The 99th percentile of what the other tenant waits.
async fn slowest(server: &Server) -> Result<Duration> {
    undisturbed(async || Ok(gets(server).await?.percentile(99))).await
}

async fn gets(server: &Server) -> Result<Latencies> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for client in server.clients(CALM).await? {
        let mut client = client.acting_as("calm");
        tasks.spawn(async move {
            let mut latencies = Vec::with_capacity(GETS);
            for _ in 0..GETS {
                let begun = Instant::now();
                client.get(&format!("{NAMESPACE}/configmaps/m7"), "application/json").await?;
                latencies.push(begun.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(latencies)
        });
    }
    Latencies::gather(tasks, begun).await
}

/// The slowest of many renewals of a lease.
async fn renew(server: &Server) -> Result<Duration> {
    let mut client = server.client().await?.acting_as("system:kube-scheduler");
    let mut slowest = Duration::ZERO;
    let path = format!("{LEASE}/kube-scheduler");
    for index in 0..RENEWALS {
        // A renewal says which version it renews.
        let mut lease = client.get_json(&path).await?;
        if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("leaseTransitions".into(), index.into());
        }
        let begun = Instant::now();
        client.send(Method::PUT, &path, Bytes::from(lease.to_string())).await.context("a lease was not renewed")?;
        slowest = slowest.max(begun.elapsed());
    }
    Ok(slowest)
}
