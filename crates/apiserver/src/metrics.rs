//! What the server has done, under upstream's names, for Prometheus.
//!
//! A request costs one look-up under a lock and a few additions. Series come only from what is served, so nobody can make
//! new ones by asking for odd paths.

mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub(crate) use self::text::answer;
use crate::http::Query;
use crate::request_info::RequestInfo;

/// Upstream's, in seconds.
const BUCKETS: [f64; 24] = [
    0.005,
    0.025,
    0.05,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    1.25,
    1.5,
    2.0,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    10.0,
    15.0,
    20.0,
    30.0,
    45.0,
    60.0,
    f64::INFINITY,
];

/// Upstream's for admission, in seconds.
const ADMISSION_BUCKETS: [f64; 9] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0, f64::INFINITY];

/// Upstream's for what is answered, in bytes.
const SIZES: [f64; 8] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, f64::INFINITY];

#[derive(Default)]
pub(crate) struct Metrics {
    /// By the hash of their labels; those that share one are told apart by the labels themselves.
    series: Mutex<HashMap<u64, Vec<Series>>>,
    reading: AtomicI64,
    mutating: AtomicI64,
    long_running: AtomicI64,
    /// By name and labels.
    counters: Mutex<BTreeMap<(&'static str, String), u64>>,
    durations: Mutex<BTreeMap<(&'static str, String), Durations>>,
    /// What was asked for though it is to go, by its labels.
    deprecated: Mutex<BTreeSet<String>>,
}

/// How often something took how long.
#[derive(Default)]
struct Durations {
    buckets: [u64; ADMISSION_BUCKETS.len()],
    seconds: f64,
}

#[derive(Clone, PartialEq, Eq)]
struct Labels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    dry_run: bool,
}

struct Series {
    labels: Labels,
    by_code: Vec<(u16, u64)>,
    buckets: [u64; BUCKETS.len()],
    seconds: f64,
    /// How large what was read is.
    sizes: [u64; SIZES.len()],
    bytes: f64,
}

/// A request under way; it is counted as such until this is dropped.
pub(crate) struct InFlight {
    metrics: Arc<Metrics>,
    kind: Kind,
    since: Instant,
}

#[derive(Clone, Copy)]
enum Kind {
    Reading,
    Mutating,
    LongRunning,
}

impl Metrics {
    fn gauge(&self, kind: Kind) -> &AtomicI64 {
        match kind {
            Kind::Reading => &self.reading,
            Kind::Mutating => &self.mutating,
            Kind::LongRunning => &self.long_running,
        }
    }

    /// Counts one of something, by its labels as they are written.
    pub(crate) fn count(&self, name: &'static str, labels: String) {
        *self.counters.lock().entry((name, labels)).or_default() += 1;
    }

    /// Counts something by how long it took.
    pub(crate) fn took(&self, name: &'static str, labels: String, took: Duration) {
        let seconds = took.as_secs_f64();
        let mut durations = self.durations.lock();
        let one = durations.entry((name, labels)).or_default();
        one.seconds += seconds;
        let bucket = ADMISSION_BUCKETS.iter().position(|most| seconds <= *most);
        bucket.and_then(|index| one.buckets.get_mut(index)).into_iter().for_each(|count| *count += 1);
    }

    pub(crate) fn begin(self: &Arc<Self>, info: &RequestInfo) -> InFlight {
        let kind = match info.verb {
            _ if info.is_long_running() => Kind::LongRunning,
            "get" | "list" => Kind::Reading,
            _ => Kind::Mutating,
        };
        self.gauge(kind).fetch_add(1, Ordering::Relaxed);
        InFlight { metrics: self.clone(), kind, since: Instant::now() }
    }

    /// Forgets what was counted; what is under way stays.
    fn reset(&self) {
        self.series.lock().clear();
        self.counters.lock().clear();
        self.durations.lock().clear();
    }

    /// Something that is to go was asked for.
    pub(crate) fn deprecated(&self, info: &RequestInfo) {
        let labels = format!(
            "group=\"{}\",removed_release=\"\",resource=\"{}\",subresource=\"{}\",version=\"{}\"",
            info.group, info.resource, info.subresource, info.version
        );
        self.deprecated.lock().insert(labels);
    }

    /// Counts an answer to a path that is served; `size` is known of what is not a stream.
    pub(crate) fn observe(&self, info: &RequestInfo, query: &Query, code: u16, took: Duration, size: Option<u64>) {
        let verb = verb(info);
        let scope = match info {
            _ if !info.is_resource => "",
            _ if !info.name.is_empty() || info.verb == "create" => "resource",
            _ if !info.namespace.is_empty() => "namespace",
            _ => "cluster",
        };
        let dry_run = query.get("dryRun").is_some();
        let mut hasher = DefaultHasher::new();
        let parts = (verb, &info.group, &info.version, &info.resource, &info.subresource, scope, dry_run);
        parts.hash(&mut hasher);
        let mut series = self.series.lock();
        let found = series.entry(hasher.finish()).or_default();
        let is_this = |one: &Series| {
            let l = &one.labels;
            parts == (l.verb, &l.group, &l.version, &l.resource, &l.subresource, l.scope, l.dry_run)
        };
        let index = found.iter().position(is_this).unwrap_or_else(|| {
            let labels = Labels {
                verb,
                group: info.group.clone(),
                version: info.version.clone(),
                resource: info.resource.clone(),
                subresource: info.subresource.clone(),
                scope,
                dry_run,
            };
            let (buckets, sizes) = ([0; BUCKETS.len()], [0; SIZES.len()]);
            found.push(Series { labels, by_code: Vec::new(), buckets, seconds: 0.0, sizes, bytes: 0.0 });
            found.len() - 1
        });
        let Some(one) = found.get_mut(index) else { return };
        match one.by_code.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => one.by_code.push((code, 1)),
        }
        let place = |bounds: &[f64], value: f64| bounds.iter().position(|most| value <= *most);
        // How long a watch lasts says nothing of the server.
        if !info.is_long_running() {
            let seconds = took.as_secs_f64();
            one.seconds += seconds;
            let bucket = place(&BUCKETS, seconds).and_then(|index| one.buckets.get_mut(index));
            bucket.into_iter().for_each(|count| *count += 1);
        }
        if let Some(size) = size.filter(|_| matches!(verb, "GET" | "LIST")) {
            // As exact as a sum of sizes need be.
            let size = u32::try_from(size).map_or(f64::from(u32::MAX), f64::from);
            one.bytes += size;
            let bucket = place(&SIZES, size).and_then(|index| one.sizes.get_mut(index));
            bucket.into_iter().for_each(|count| *count += 1);
        }
    }
}

impl InFlight {
    pub(crate) fn took(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.gauge(self.kind).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Verbs as upstream's metrics have them.
fn verb(info: &RequestInfo) -> &'static str {
    match (info.verb, info.subresource.as_str()) {
        (_, "exec" | "attach" | "portforward" | "proxy") => "CONNECT",
        ("get", _) => "GET",
        ("list", _) => "LIST",
        ("watch", _) => "WATCH",
        ("create", _) => "POST",
        ("update", _) => "PUT",
        ("patch", _) => "PATCH",
        ("delete", _) => "DELETE",
        ("deletecollection", _) => "DELETECOLLECTION",
        _ => "other",
    }
}
