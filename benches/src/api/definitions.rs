//! Many custom resource definitions: how soon each is served, what it costs to have them, and whether anybody else notices.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::{NAMESPACE, hostile::gets, servers::Server};
use crate::report::{Latencies, Report, megabytes, milliseconds};

const DEFINITIONS: usize = 500;
const SOON: Duration = Duration::from_millis(100);
const HELD_EACH: u64 = 150_000;
const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub(super) async fn run(server: Server, report: &mut Report) -> Result<()> {
    let size = definition(0).to_string().len() / 1000;
    Report::title(&format!("{DEFINITIONS} custom resource definitions of {size} KB (peer: before)"));
    let map = json!({"metadata": {"name": "calm"}, "data": {"text": "v".repeat(1000)}});
    let mut client = server.client().await?;
    client.post(&format!("{NAMESPACE}/configmaps"), &map).await?;
    let calm = gets(&server).await?.percentile(99);
    let before = server.process.resident_bytes()?;

    let mut watcher = server.client().await?;
    let watch = watcher.open(Method::GET, &format!("{PATH}?watch=1"), "application/json", Bytes::new()).await?;
    let mut events = Events { watch, rest: Vec::new() };
    let (begun, mut latencies) = (Instant::now(), Vec::with_capacity(DEFINITIONS));
    for index in 0..DEFINITIONS {
        let sent = Instant::now();
        client.post(PATH, &definition(index)).await?;
        events.established(&format!("kind{index}s.bench.example.com")).await?;
        latencies.push(sent.elapsed());
        // Served at once.
        client.get(&format!("/apis/bench.example.com/v1/kind{index}s"), "application/json").await?;
    }
    let latencies = Latencies::new(latencies, begun);
    let slowest = latencies.percentile(100);
    let median = milliseconds(latencies.percentile(50));
    report.line(
        "the slowest to be established",
        &milliseconds(slowest),
        "",
        None,
        "under 100 ms",
        Some(slowest < SOON),
    );
    report.line("the median", &median, "", None, "", None);
    let held = server.process.resident_bytes()?.saturating_sub(before);
    let is_small = held / (DEFINITIONS as u64) < HELD_EACH;
    report.line("memory for all of them", &megabytes(held), "", None, "under 150 KB each", Some(is_small));
    let after = gets(&server).await?.percentile(99);
    let ratio = after.as_secs_f64() / calm.as_secs_f64();
    let bar = Some(ratio < 1.5);
    report.line("p99 of others", &milliseconds(after), &milliseconds(calm), Some(ratio), "unchanged (1.5×)", bar);
    Ok(())
}

/// The lines of a watch.
struct Events {
    watch: Incoming,
    rest: Vec<u8>,
}

impl Events {
    /// Reads until the definition of this name is served.
    async fn established(&mut self, name: &str) -> Result<()> {
        loop {
            while let Some(end) = memchr::memchr(b'\n', &self.rest) {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line)?;
                let text =
                    |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
                let conditions = event.pointer("/object/status/conditions").and_then(Value::as_array);
                let is_established = conditions
                    .into_iter()
                    .flatten()
                    .any(|condition| text(condition, "type") == "Established" && text(condition, "status") == "True");
                if is_established && event.pointer("/object/metadata").is_some_and(|meta| text(meta, "name") == name) {
                    return Ok(());
                }
            }
            let frame = self.watch.frame().await.context("the watch ended")??;
            self.rest.extend_from_slice(frame.data_ref().context("a watch has no trailers")?);
        }
    }
}

/// As large as those of real operators: sections of described fields, lists, maps and choices.
fn definition(index: usize) -> Value {
    let field = |section: usize, number: usize| {
        let description =
            format!("What section {section} says about its aspect {number}, in as many words as people use for it.");
        match number % 4 {
            0 => json!({"type": "string", "description": description, "maxLength": 253}),
            1 => json!({"type": "integer", "format": "int32", "minimum": 0, "description": description}),
            2 => json!({"type": "array", "description": description, "items": {
                "type": "object", "properties": {"key": {"type": "string"}, "value": {"type": "string"}}, "required": ["key"],
            }}),
            _ => json!({"type": "string", "enum": ["Always", "Never", "IfNeeded"], "description": description}),
        }
    };
    let section = |section: usize| {
        let fields: Map<_, _> = (0..20).map(|number| (format!("field{number}"), field(section, number))).collect();
        json!({"type": "object", "properties": fields})
    };
    let sections: Map<_, _> = (0..9).map(|number| (format!("section{number}"), section(number))).collect();
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": sections},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    let (plural, kind) = (format!("kind{index}s"), format!("Kind{index}"));
    json!({
        "metadata": {"name": format!("{plural}.bench.example.com")},
        "spec": {
            "group": "bench.example.com", "scope": "Namespaced",
            "names": {"plural": plural, "singular": format!("kind{index}"), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
            }],
        },
    })
}
