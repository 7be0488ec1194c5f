//! What pods and the node use: `/stats/summary` and `/metrics/resource`, from the runtime's statistics.

use std::collections::BTreeMap;
use std::fmt::Write;

use cri::v1::{ContainerStats, ListContainerStatsRequest};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Body, Server, respond, text};
use crate::node::info::meminfo;
use crate::pod::labels;

struct Usage {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    at: i64,
    cpu_nanos: u64,
    nano_cores: Option<u64>,
    memory: u64,
    memory_usage: Option<u64>,
    rss: Option<u64>,
}

fn usage(stats: ContainerStats) -> Option<Usage> {
    let attributes = stats.attributes?;
    let label = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    Some(Usage {
        namespace: label(labels::POD_NAMESPACE),
        pod: label(labels::POD_NAME),
        uid: label(labels::POD_UID),
        container: label(labels::CONTAINER_NAME),
        at: cpu.timestamp,
        cpu_nanos: cpu.usage_core_nano_seconds.map_or(0, |value| value.value),
        nano_cores: cpu.usage_nano_cores.map(|value| value.value),
        memory: memory.working_set_bytes.map_or(0, |value| value.value),
        memory_usage: memory.usage_bytes.map(|value| value.value),
        rss: memory.rss_bytes.map(|value| value.value),
    })
}

async fn all(server: &Server) -> Result<Vec<Usage>, tonic::Status> {
    let listed = server.context.cri.list_container_stats(ListContainerStatsRequest::default()).await?.stats;
    Ok(listed.into_iter().filter_map(usage).filter(|usage| !usage.uid.is_empty()).collect())
}

/// Seconds the machine's CPUs were busy, and bytes in use.
fn node_usage(server: &Server) -> (f64, i64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, irq, softirq, steal: all but idle and waiting. The kernel counts in hundredths here.
    let busy: f64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|index| ticks.get(*index)).sum();
    let free = meminfo(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable");
    (busy / 100.0, (server.context.memory - free).max(0))
}

pub(super) async fn summary(server: &Server) -> Response<Body> {
    let usages = match all(server).await {
        Ok(usages) => usages,
        Err(status) => return text(StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()),
    };
    let now = server.context.clock.now().to_string();
    let mut pods: BTreeMap<(String, String, String), Vec<Usage>> = BTreeMap::new();
    for usage in usages {
        pods.entry((usage.namespace.clone(), usage.pod.clone(), usage.uid.clone())).or_default().push(usage);
    }
    let pods: Vec<Value> = pods
        .into_iter()
        .map(|((namespace, name, uid), usages)| {
            let (cpu, memory) = usages.iter().fold((0, 0), |(cpu, memory), u| (cpu + u.cpu_nanos, memory + u.memory));
            let cores: u64 = usages.iter().filter_map(|usage| usage.nano_cores).sum();
            json!({
                "podRef": { "name": name, "namespace": namespace, "uid": uid },
                "startTime": now,
                "containers": usages.iter().map(|usage| container(usage, &now)).collect::<Vec<_>>(),
                "cpu": { "time": now, "usageCoreNanoSeconds": cpu, "usageNanoCores": cores },
                "memory": { "time": now, "workingSetBytes": memory },
            })
        })
        .collect();
    let (cpu_seconds, memory) = node_usage(server);
    let node = json!({
        "nodeName": server.context.node_name,
        "startTime": now,
        "cpu": { "time": now, "usageCoreNanoSeconds": (cpu_seconds * 1e9) as u64 },
        "memory": { "time": now, "availableBytes": server.context.memory - memory, "workingSetBytes": memory },
    });
    respond(StatusCode::OK, "application/json", json!({ "node": node, "pods": pods }).to_string())
}

fn container(usage: &Usage, now: &str) -> Value {
    json!({
        "name": usage.container,
        "startTime": now,
        "cpu": { "time": now, "usageCoreNanoSeconds": usage.cpu_nanos, "usageNanoCores": usage.nano_cores.unwrap_or(0) },
        "memory": {
            "time": now,
            "workingSetBytes": usage.memory,
            "usageBytes": usage.memory_usage.unwrap_or(usage.memory),
            "rssBytes": usage.rss.unwrap_or(0),
        },
    })
}

pub(super) async fn resource(server: &Server) -> Response<Body> {
    let usages = all(server).await;
    let failed = u8::from(usages.is_err());
    let page = resource_page(&usages.unwrap_or_default(), node_usage(server), failed);
    respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
}

fn resource_page(usages: &[Usage], (node_cpu, node_memory): (f64, i64), failed: u8) -> String {
    let mut page = String::new();
    let mut pods: BTreeMap<(&str, &str), (u64, u64, i64)> = BTreeMap::new();
    for usage in usages {
        let sum = pods.entry((&usage.namespace, &usage.pod)).or_default();
        *sum = (sum.0 + usage.cpu_nanos, sum.1 + usage.memory, sum.2.max(usage.at));
    }
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let of_container = |usage: &Usage| {
        format!("container=\"{}\",namespace=\"{}\",pod=\"{}\"", usage.container, usage.namespace, usage.pod)
    };
    let mut family = |name: &str, help: &str, kind: &str, samples: Vec<(String, f64, i64)>| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
        for (labels, value, at) in samples {
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let at = if at > 0 { format!(" {}", at / 1_000_000) } else { String::new() };
            let _ = writeln!(page, "{name}{labels} {value}{at}");
        }
    };
    family(
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed by the container in core-seconds",
        "counter",
        usages.iter().map(|usage| (of_container(usage), seconds(usage.cpu_nanos), usage.at)).collect(),
    );
    family(
        "container_memory_working_set_bytes",
        "Current working set of the container in bytes",
        "gauge",
        usages.iter().map(|usage| (of_container(usage), usage.memory as f64, usage.at)).collect(),
    );
    family(
        "node_cpu_usage_seconds_total",
        "Cumulative cpu time consumed by the node in core-seconds",
        "counter",
        vec![(String::new(), node_cpu, 0)],
    );
    family(
        "node_memory_working_set_bytes",
        "Current working set of the node in bytes",
        "gauge",
        vec![(String::new(), node_memory as f64, 0)],
    );
    let of_pod = |(namespace, pod): &(&str, &str)| format!("namespace=\"{namespace}\",pod=\"{pod}\"");
    family(
        "pod_cpu_usage_seconds_total",
        "Cumulative cpu time consumed by the pod in core-seconds",
        "counter",
        pods.iter().map(|(key, (cpu, _, at))| (of_pod(key), seconds(*cpu), *at)).collect(),
    );
    family(
        "pod_memory_working_set_bytes",
        "Current working set of the pod in bytes",
        "gauge",
        pods.iter().map(|(key, (_, memory, at))| (of_pod(key), *memory as f64, *at)).collect(),
    );
    family(
        "resource_scrape_error",
        "1 if there was an error while getting container metrics, 0 otherwise",
        "gauge",
        vec![(String::new(), f64::from(failed), 0)],
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_resource_metrics() {
        let usage = Usage {
            namespace: "n".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "c".into(),
            at: 2_000_000,
            cpu_nanos: 1_500_000_000,
            nano_cores: None,
            memory: 42,
            memory_usage: None,
            rss: None,
        };
        let page = resource_page(&[usage], (1.0, 7), 0);
        for line in [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5 2",
            "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 42 2",
            "node_memory_working_set_bytes 7",
            "resource_scrape_error 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
