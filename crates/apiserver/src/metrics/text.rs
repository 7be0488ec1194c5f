//! `/metrics` in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::http::{Method, Response, StatusCode};

use super::{ADMISSION_BUCKETS, BUCKETS, Labels, Metrics};
use crate::health::VERSION;
use crate::http::{Body, respond_bytes};
use crate::registry::Served;
use crate::server::ApiServer;

pub(crate) fn answer(server: &Arc<ApiServer>, method: &Method) -> Response<Body> {
    if *method == Method::DELETE {
        server.metrics.reset();
        return respond_bytes(StatusCode::OK, "text/plain; charset=utf-8", "metrics reset\n");
    }
    let mut text = String::new();
    requests(&server.metrics, &mut text);
    let gauge = |gauge: &std::sync::atomic::AtomicI64| gauge.load(Ordering::Relaxed);
    head(&mut text, "apiserver_current_inflight_requests", "gauge", "Requests being answered, by request kind.");
    for (kind, count) in [("mutating", gauge(&server.metrics.mutating)), ("readOnly", gauge(&server.metrics.reading))] {
        line(&mut text, "apiserver_current_inflight_requests", &format!("request_kind=\"{kind}\""), count);
    }
    head(&mut text, "apiserver_longrunning_requests", "gauge", "Watches and streams that are open.");
    line(&mut text, "apiserver_longrunning_requests", "", gauge(&server.metrics.long_running));
    crate::flowcontrol::dump::metrics(&server.flow, &mut text);
    others(&server.metrics, &mut text);
    objects(&server.all_served(), &mut text);
    head(&mut text, "kubernetes_build_info", "gauge", "What is running.");
    line(&mut text, "kubernetes_build_info", &format!("git_version=\"{VERSION}\",major=\"1\",minor=\"36\""), 1);
    if let Some(encryption) = &server.encryption {
        let name = "apiserver_encryption_config_controller_automatic_reloads_total";
        head(&mut text, name, "counter", "Changes of the encryption configuration, taken over or not.");
        for (status, count) in ["success", "failure"].into_iter().zip(encryption.reloads()) {
            line(&mut text, name, &format!("status=\"{status}\""), count);
        }
    }
    crate::auth::reload::metrics(server, &mut text);
    process(&mut text);
    respond_bytes(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", text)
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = match labels {
        "" => writeln!(text, "{name} {value}"),
        _ => writeln!(text, "{name}{{{labels}}} {value}"),
    };
}

fn shown(labels: &Labels, code: Option<u16>) -> String {
    let code = code.map(|code| format!("code=\"{code}\",")).unwrap_or_default();
    let dry_run = if labels.dry_run { "All" } else { "" };
    format!(
        "{code}component=\"apiserver\",dry_run=\"{dry_run}\",group=\"{}\",resource=\"{}\",scope=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
        labels.group, labels.resource, labels.scope, labels.subresource, labels.verb, labels.version
    )
}

fn requests(metrics: &Metrics, text: &mut String) {
    let mut durations = String::new();
    let name = "apiserver_request_total";
    head(text, name, "counter", "Requests answered, by verb, resource and code.");
    for one in metrics.series.lock().values().flatten() {
        for (code, count) in &one.by_code {
            line(text, name, &shown(&one.labels, Some(*code)), count);
        }
        let labels = shown(&one.labels, None);
        let name = "apiserver_request_duration_seconds";
        histogram(&mut durations, name, &labels, BUCKETS.iter().zip(&one.buckets), one.seconds);
    }
    head(text, "apiserver_request_duration_seconds", "histogram", "How long answers took, in seconds.");
    text.push_str(&durations);
}

fn histogram<'a>(
    text: &mut String,
    name: &str,
    labels: &str,
    buckets: impl Iterator<Item = (&'a f64, &'a u64)>,
    seconds: f64,
) {
    let mut total = 0;
    for (most, count) in buckets {
        total += count;
        let most = if most.is_finite() { most.to_string() } else { "+Inf".to_owned() };
        line(text, &format!("{name}_bucket"), &format!("{labels},le=\"{most}\""), total);
    }
    line(text, &format!("{name}_sum"), labels, seconds);
    line(text, &format!("{name}_count"), labels, total);
}

/// What is counted by its name.
fn others(metrics: &Metrics, text: &mut String) {
    let mut last = "";
    for ((name, labels), count) in metrics.counters.lock().iter() {
        if std::mem::replace(&mut last, name) != *name {
            head(text, name, "counter", "Calls of admission webhooks.");
        }
        line(text, name, labels, count);
    }
    for ((name, labels), one) in metrics.durations.lock().iter() {
        if std::mem::replace(&mut last, name) != *name {
            head(text, name, "histogram", "How long admission webhooks took, in seconds.");
        }
        histogram(text, name, labels, ADMISSION_BUCKETS.iter().zip(&one.buckets), one.seconds);
    }
}

fn objects(served: &[Arc<Served>], text: &mut String) {
    let mut counts: Vec<(&str, &str, usize)> = Vec::new();
    for one in served {
        let (group, plural) = (one.info.group.as_str(), one.info.plural.as_str());
        if let (Some(cache), false) = (&one.cache, counts.iter().any(|(g, p, _)| *g == group && *p == plural)) {
            counts.push((group, plural, cache.snapshot().objects.len()));
        }
    }
    head(text, "apiserver_resource_objects", "gauge", "Objects stored, by resource.");
    for (group, plural, count) in &counts {
        line(text, "apiserver_resource_objects", &format!("group=\"{group}\",resource=\"{plural}\""), count);
    }
    head(
        text,
        "apiserver_storage_objects",
        "gauge",
        "Objects stored, by resource; apiserver_resource_objects is newer.",
    );
    for (group, plural, count) in &counts {
        let resource = if group.is_empty() { (*plural).to_owned() } else { format!("{plural}.{group}") };
        line(text, "apiserver_storage_objects", &format!("resource=\"{resource}\""), count);
    }
}

/// What every Prometheus client tells of its process.
fn process(text: &mut String) {
    const PAGE: u64 = 4096;
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = status.split(' ').filter_map(|word| word.parse::<u64>().ok());
    for name in ["process_virtual_memory_bytes", "process_resident_memory_bytes"] {
        if let Some(count) = pages.next() {
            head(text, name, "gauge", "Memory of the process, in bytes.");
            line(text, name, "", count * PAGE);
        }
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        head(text, "process_open_fds", "gauge", "Open file descriptors.");
        line(text, "process_open_fds", "", entries.count());
    }
}
