//! When a cluster is up: its node is ready and names are answered.

use std::convert::Infallible;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use client::{Event, Target};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;

use crate::cluster::DOMAIN;
use crate::progress::Progress;

/// A cluster that is not ready by then has a problem worth telling.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for the node, and for names to be answered.
pub(super) async fn cluster(client: Client, node: &str, dns: IpAddr, progress: &Progress) -> Result<()> {
    let begun = Instant::now();
    let target = Target { path: "/api/v1/nodes".into(), fields: format!("metadata.name={node}"), ..Target::default() };
    let ready = seen(&client, &target, |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    });
    tokio::time::timeout(READY_TIMEOUT, ready)
        .await
        .context("the node is not ready after a minute; `ferry up --v 4` tells why")?;
    progress.done("node", begun.elapsed(), node);
    let begun = Instant::now();
    let answering = async {
        dns_ready(&client).await;
        dns_answers(dns).await
    };
    let hint = "cluster DNS does not answer after a minute; see `kubectl -n kube-system describe pods`";
    tokio::select! {
        answered = tokio::time::timeout(READY_TIMEOUT, answering) => answered.context(hint)??,
        never = warn_of_pressure(&client, &target, progress) => match never {},
    }
    progress.done("cluster DNS", begun.elapsed(), &dns.to_string());
    Ok(())
}

/// Warns once if the node is under pressure: it then starts only critical pods. Never returns.
async fn warn_of_pressure(client: &Client, node: &Target, progress: &Progress) -> Infallible {
    let pressure = OnceLock::new();
    seen(client, node, |node: &Node| pressure_of(node).map(|found| pressure.set(found)).is_some()).await;
    let (condition, advice) = pressure.into_inner().unwrap_or_default();
    progress.line(&format!(
        "  {} the node has {condition}, and evicts pods: {advice}, or set other thresholds with --eviction-hard",
        progress.bold("warning:")
    ));
    std::future::pending().await
}

/// The first pressure condition that is True, and what a user can do about it.
fn pressure_of(node: &Node) -> Option<(&'static str, &'static str)> {
    let advices =
        [("DiskPressure", "free disk space"), ("MemoryPressure", "free memory"), ("PIDPressure", "end some processes")];
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let is_true = |type_: &str| conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
    advices.into_iter().find(|(type_, _)| is_true(type_))
}

async fn dns_ready(client: &Client) {
    let path = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices".into();
    let target = Target { path, labels: "kubernetes.io/service-name=kube-dns".into(), ..Target::default() };
    let ready = |slice: &EndpointSlice| {
        let mut endpoints = slice.endpoints.iter().flatten();
        endpoints.any(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.ready == Some(true)))
    };
    seen(client, &target, ready).await;
}

/// Waits for an object that is as wanted.
async fn seen<K: client::Object>(client: &Client, target: &Target, wanted: impl Fn(&K) -> bool + Sync) {
    let on = &mut |event: Event<&str>| match event {
        Event::Listed(text) | Event::Applied(text)
            if serde_json::from_str(text).is_ok_and(|object| wanted(&object)) =>
        {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    };
    client::follow(client, target, on).await;
}

/// Asks for a name every cluster has, through the service's address, until there is an answer. The endpoint alone may be
/// what a former start left behind.
async fn dns_answers(dns: IpAddr) -> Result<()> {
    const PATIENCE: Duration = Duration::from_millis(20);
    let mut query = vec![0x0f, 0xe0, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["kubernetes", "default", "svc"].into_iter().chain(DOMAIN.split('.')) {
        query.push(u8::try_from(label.len())?);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    loop {
        // A socket per try: a refused one keeps its error.
        let socket = tokio::net::UdpSocket::bind(("0.0.0.0", 0)).await?;
        let mut answer = [0_u8; 512];
        let asked = async {
            socket.send_to(&query, (dns, 53)).await?;
            socket.recv(&mut answer).await
        };
        if let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, asked).await {
            return Ok(());
        }
        tokio::time::sleep(PATIENCE / 4).await;
    }
}
