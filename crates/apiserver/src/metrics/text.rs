//! `/metrics` in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::http::{Method, Response, StatusCode};

use super::{ADMISSION_BUCKETS, BUCKETS, Labels, Metrics, SIZES};
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
    const SLI: &str = "apiserver_request_sli_duration_seconds";
    const SIZE: &str = "apiserver_response_sizes";
    // Shorter ones nobody promises.
    const PROMISED: f64 = 0.05;
    let (mut durations, mut promised, mut sizes) = (String::new(), String::new(), String::new());
    let name = "apiserver_request_total";
    head(text, name, "counter", "Requests answered, by verb, resource and code.");
    for one in metrics.series.lock().values().flatten() {
        for (code, count) in &one.by_code {
            line(text, name, &shown(&one.labels, Some(*code)), count);
        }
        let labels = shown(&one.labels, None);
        let name = "apiserver_request_duration_seconds";
        histogram(&mut durations, name, &labels, BUCKETS.iter().zip(&one.buckets), one.seconds);
        if one.buckets.iter().any(|count| *count > 0) {
            histogram(&mut promised, SLI, &labels, BUCKETS.iter().zip(&one.buckets), one.seconds);
        }
        if one.sizes.iter().any(|count| *count > 0) {
            let labels = labels.replace("dry_run=\"\",", "");
            histogram(&mut sizes, SIZE, &labels, SIZES.iter().zip(&one.sizes), one.bytes);
        }
    }
    head(text, "apiserver_request_duration_seconds", "histogram", "How long answers took, in seconds.");
    text.push_str(&durations);
    head(text, SLI, "histogram", "The same, without what others took.");
    // The first bounds are finer than upstream's.
    let is_fine = |line: &&str| {
        let bound = line.split_once("le=\"").and_then(|(_, rest)| rest.split('"').next()?.parse::<f64>().ok());
        bound.is_none_or(|bound| bound >= PROMISED)
    };
    promised.lines().filter(is_fine).for_each(|line| text.extend([line, "\n"]));
    head(text, SIZE, "histogram", "How large answers were, in bytes.");
    text.push_str(&sizes);
    let name = "apiserver_requested_deprecated_apis";
    head(text, name, "gauge", "What is to go and was asked for all the same.");
    metrics.deprecated.lock().iter().for_each(|labels| line(text, name, labels, 1));
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
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    head(text, "process_max_fds", "gauge", "File descriptors that may be open.");
    line(text, "process_max_fds", "", most.unwrap_or(u64::MAX));
    // Hundredths of a second since the machine began, and of the processor's time: user and system.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields: Vec<f64> = after_name.split(' ').map(|word| word.parse().unwrap_or_default()).collect();
    let ticks = |index: usize| fields.get(index).copied().unwrap_or_default() / 100.0;
    head(text, "process_cpu_seconds_total", "counter", "Time of processors, in seconds.");
    line(text, "process_cpu_seconds_total", "", ticks(11) + ticks(12));
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split(' ').next().and_then(|word| word.parse::<f64>().ok()).unwrap_or_default();
    let now = jiff::Timestamp::now().as_duration().as_secs_f64();
    head(text, "process_start_time_seconds", "gauge", "When it began, in seconds since 1970.");
    line(text, "process_start_time_seconds", "", format!("{:.2}", now - uptime + ticks(19)));
}
