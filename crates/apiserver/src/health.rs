//! `/healthz`, `/livez`, `/readyz` with each check named, what their results were, and `/version`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use ::http::{Response, StatusCode};
use parking_lot::Mutex;
use serde_json::json;

use crate::http::{Body, respond_bytes, respond_lines, respond_text};
use crate::pipeline::Context;
use crate::server::ApiServer;

/// Upstream's.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const VERSION: &str = "v1.36.4";
const TEXT: &str = "text/plain; charset=utf-8";

/// How far the server has started, in this order. Upstream starts the same things in hooks, each of which is a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The store has been read, and is followed; who may do what, and what is admitted, is known.
    Read = 1,
    /// Custom resources are served.
    Defined,
    /// The namespaces that every cluster has are there.
    Namespaced,
    /// So are roles, priority classes, flow schemas and the APIServices of what is served here.
    Bootstrapped,
    /// Whom the server believes is published.
    Trusted,
    /// Addresses and ports that services hold are claimed, and looked after.
    Repaired,
    /// Pods find this server as `kubernetes.default`.
    Published,
    /// Flow schemas are followed, and decide who is answered when.
    Fair,
    /// APIServices are followed, and what is behind them described.
    Aggregated,
}

enum Check {
    /// Whoever can ask has been answered.
    Ping,
    /// The store answers.
    Store,
    /// What is cached came from it.
    Cached,
    /// Those who encrypt values answer.
    Kms,
    Started(Phase),
    /// It is not about to stop.
    Serving,
}

const EVERYWHERE: &[&str] = &["healthz", "livez", "readyz"];
const ALIVE: &[&str] = &["healthz", "livez"];
const READY: &[&str] = &["readyz"];

/// In upstream's order, each with where it is asked.
static CHECKS: [(&str, &[&str], Check); 38] = [
    ("ping", EVERYWHERE, Check::Ping),
    ("log", EVERYWHERE, Check::Ping),
    // What runs in this process asks without a certificate.
    ("loopback-serving-certificate", ALIVE, Check::Ping),
    ("etcd", EVERYWHERE, Check::Store),
    ("etcd-readiness", READY, Check::Store),
    ("informer-sync", READY, Check::Cached),
    ("poststarthook/start-apiserver-admission-initializer", EVERYWHERE, Check::Started(Phase::Read)),
    ("poststarthook/generic-apiserver-start-informers", EVERYWHERE, Check::Started(Phase::Read)),
    ("poststarthook/priority-and-fairness-config-consumer", EVERYWHERE, Check::Started(Phase::Fair)),
    ("poststarthook/priority-and-fairness-filter", EVERYWHERE, Check::Started(Phase::Fair)),
    ("poststarthook/storage-object-count-tracker-hook", EVERYWHERE, Check::Started(Phase::Read)),
    ("poststarthook/start-apiextensions-informers", EVERYWHERE, Check::Started(Phase::Defined)),
    ("poststarthook/start-apiextensions-controllers", EVERYWHERE, Check::Started(Phase::Defined)),
    ("poststarthook/crd-informer-synced", EVERYWHERE, Check::Started(Phase::Defined)),
    ("poststarthook/start-system-namespaces-controller", EVERYWHERE, Check::Started(Phase::Namespaced)),
    ("poststarthook/peer-endpoint-reconciler-controller", EVERYWHERE, Check::Started(Phase::Published)),
    ("poststarthook/start-cluster-authentication-info-controller", EVERYWHERE, Check::Started(Phase::Trusted)),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", EVERYWHERE, Check::Started(Phase::Published)),
    (
        "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
        EVERYWHERE,
        Check::Started(Phase::Published),
    ),
    ("poststarthook/storage-readiness", EVERYWHERE, Check::Started(Phase::Read)),
    ("poststarthook/start-legacy-token-tracking-controller", EVERYWHERE, Check::Started(Phase::Bootstrapped)),
    ("poststarthook/start-service-ip-repair-controllers", EVERYWHERE, Check::Started(Phase::Repaired)),
    ("poststarthook/rbac/bootstrap-roles", EVERYWHERE, Check::Started(Phase::Bootstrapped)),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", EVERYWHERE, Check::Started(Phase::Bootstrapped)),
    ("poststarthook/priority-and-fairness-config-producer", EVERYWHERE, Check::Started(Phase::Bootstrapped)),
    ("poststarthook/bootstrap-controller", EVERYWHERE, Check::Started(Phase::Published)),
    ("poststarthook/start-kubernetes-service-cidr-controller", EVERYWHERE, Check::Started(Phase::Repaired)),
    ("poststarthook/start-kube-aggregator-informers", EVERYWHERE, Check::Started(Phase::Aggregated)),
    ("poststarthook/apiservice-status-local-available-controller", EVERYWHERE, Check::Started(Phase::Bootstrapped)),
    ("poststarthook/apiservice-status-remote-available-controller", EVERYWHERE, Check::Started(Phase::Aggregated)),
    ("poststarthook/apiservice-registration-controller", EVERYWHERE, Check::Started(Phase::Aggregated)),
    ("poststarthook/apiservice-discovery-controller", EVERYWHERE, Check::Started(Phase::Aggregated)),
    ("poststarthook/kube-apiserver-autoregistration", EVERYWHERE, Check::Started(Phase::Bootstrapped)),
    ("autoregister-completion", EVERYWHERE, Check::Started(Phase::Bootstrapped)),
    ("poststarthook/apiservice-openapi-controller", EVERYWHERE, Check::Started(Phase::Aggregated)),
    ("poststarthook/apiservice-openapiv3-controller", EVERYWHERE, Check::Started(Phase::Aggregated)),
    ("kms-providers", EVERYWHERE, Check::Kms),
    ("shutdown", READY, Check::Serving),
];

type Asked = (&'static str, &'static str);

/// What was found, and how far the server has come.
#[derive(Default)]
pub(crate) struct Health {
    reached: AtomicU8,
    /// By check and where it was asked: the last result, and how many were good and bad.
    results: Mutex<BTreeMap<Asked, (bool, u64, u64)>>,
}

impl Health {
    pub(crate) fn reach(&self, phase: Phase) {
        self.reached.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// `/metrics/slis`
    pub(crate) fn metrics(&self) -> Response<Body> {
        let results = self.results.lock();
        let mut text =
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
                        # TYPE kubernetes_healthcheck gauge\n"
                .to_owned();
        for ((name, endpoint), (passes, ..)) in &*results {
            let _ = writeln!(text, "kubernetes_healthcheck{{name={name:?},type={endpoint:?}}} {}", u8::from(*passes));
        }
        text.push_str(
            "# HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
             # TYPE kubernetes_healthchecks_total counter\n",
        );
        for ((name, endpoint), (_, good, bad)) in &*results {
            for (status, count) in [("error", bad), ("success", good)].into_iter().filter(|(_, count)| **count > 0) {
                let labels = format!("name={name:?},status={status:?},type={endpoint:?}");
                let _ = writeln!(text, "kubernetes_healthchecks_total{{{labels}}} {count}");
            }
        }
        respond_bytes(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", text)
    }
}

/// `/readyz`, `/readyz/etcd`
pub(crate) fn is_check(path: &str) -> bool {
    let mut parts = path.splitn(3, '/');
    parts.next() == Some("") && parts.next().is_some_and(|endpoint| EVERYWHERE.contains(&endpoint))
}

/// The paths of all checks.
pub(crate) fn paths(server: &ApiServer) -> impl Iterator<Item = String> + use<'_> {
    EVERYWHERE.iter().flat_map(move |endpoint| {
        let below = checks(server, endpoint).map(move |(name, ..)| format!("/{endpoint}/{name}"));
        std::iter::once(format!("/{endpoint}")).chain(below)
    })
}

fn checks(
    server: &ApiServer,
    endpoint: &str,
) -> impl Iterator<Item = &'static (&'static str, &'static [&'static str], Check)> {
    // Only where values are encrypted by others, or may come to be.
    let encrypts = server.encryption.as_ref().is_some_and(|encryption| encryption.has_check());
    CHECKS
        .iter()
        .filter(move |(_, asked, check)| asked.contains(&endpoint) && (encrypts || !matches!(check, Check::Kms)))
}

/// `None` where there is no such check.
pub(crate) async fn answer(server: &Arc<ApiServer>, context: &Context) -> Option<Response<Body>> {
    let mut parts = context.info.path.trim_start_matches('/').splitn(2, '/');
    let (endpoint, single) = (parts.next().unwrap_or_default(), parts.next());
    let endpoint = EVERYWHERE.iter().find(|known| **known == endpoint)?;
    if let Some(single) = single {
        let (name, _, check) = checks(server, endpoint).find(|(name, ..)| *name == single)?;
        return Some(match passes(server, endpoint, name, check).await {
            true => respond_bytes(StatusCode::OK, TEXT, "ok"),
            false => respond_text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {name} failed\n")),
        });
    }
    let mut excluded: Vec<&str> = context.query.all("exclude").filter(|name| !name.is_empty()).collect();
    let (mut lines, mut has_failed) = (String::new(), false);
    let left_out = |name: &str| excluded.iter().position(|wanted| *wanted == name);
    let mut used = Vec::new();
    for (name, _, check) in checks(server, endpoint) {
        if let Some(at) = left_out(name) {
            used.push(at);
            let _ = writeln!(lines, "[+]{name} excluded: ok");
            continue;
        }
        let passes = passes(server, endpoint, name, check).await;
        has_failed |= !passes;
        let _ = match passes {
            true => writeln!(lines, "[+]{name} ok"),
            false => writeln!(lines, "[-]{name} failed: reason withheld"),
        };
    }
    used.sort_unstable();
    for at in used.into_iter().rev() {
        excluded.remove(at);
    }
    if !excluded.is_empty() {
        let quoted: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let _ = writeln!(lines, "warn: some health checks cannot be excluded: no matches for {}", quoted.join(", "));
    }
    Some(if has_failed {
        respond_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n"))
    } else if context.query.first("verbose").is_some() {
        respond_text(StatusCode::OK, format!("{lines}{endpoint} check passed\n"))
    } else {
        respond_text(StatusCode::OK, "ok")
    })
}

async fn passes(server: &ApiServer, endpoint: &'static str, name: &'static str, check: &Check) -> bool {
    let passes = match check {
        Check::Ping => true,
        // Whoever cannot reach the store should not be sent requests.
        Check::Store => store_answers(server).await,
        // Nothing is served before the store has been read.
        Check::Cached => server.feed.applied() > 0,
        Check::Kms => match &server.encryption {
            Some(encryption) => encryption.check().await,
            None => true,
        },
        Check::Started(phase) => server.health.reached.load(Ordering::Relaxed) >= *phase as u8,
        Check::Serving => !server.drain.is_cancelled(),
    };
    let mut results = server.health.results.lock();
    let (last, good, bad) = results.entry((name, endpoint)).or_default();
    *last = passes;
    *(if passes { good } else { bad }) += 1;
    passes
}

pub(crate) async fn store_answers(server: &ApiServer) -> bool {
    matches!(tokio::time::timeout(STORE_TIMEOUT, server.store().revision()).await, Ok(Ok(_)))
}

pub(crate) fn version() -> Response<Body> {
    respond_lines(
        StatusCode::OK,
        &json!({
            "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1",
            "minCompatibilityMinor": "35", "gitVersion": VERSION, "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "ferry", "compiler": "rustc", "platform": "linux/amd64",
        }),
    )
}
