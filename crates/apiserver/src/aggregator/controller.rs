//! Follows the APIServices: looks whether those behind them answer, says so in their status, and keeps the table of them.
//!
//! One is looked at when it, its service or the service's endpoints change, every half minute besides, and sooner while it
//! does not answer. Where nobody stands behind this server, nothing happens here but for new groups of custom resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, header};
use api::{ApiError, Object, ObjectExt as _, UserInfo};
use futures::future::{BoxFuture, FutureExt as _, select_ok};
use futures::stream::{FuturesUnordered, StreamExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{GROUP, PLURAL, Remote, proxy, register};
use crate::field_manager::Tracking;
use crate::handlers::Writer;
use crate::outbound::Outbound;
use crate::server::ApiServer;
use crate::storage::{Cache, Change, Place};
use crate::streaming::service_endpoint;

/// Upstream's intervals.
const RESYNC: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_millis(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Of several endpoints one that answers is enough.
const ATTEMPTS: usize = 5;

/// A place in a cache; one that fell behind begins anew, and its caller looks at everything.
struct Following {
    cache: Arc<Cache>,
    place: Place,
}

impl Following {
    fn new(server: &ApiServer, group: &str, plural: &str) -> Option<Self> {
        let cache = server.registry.stored(group, plural)?.cache.clone()?;
        let (place, _) = cache.watch_from(None).ok()?;
        Some(Self { cache, place })
    }

    /// What changed; `None` if anything may have.
    async fn next(&mut self) -> Option<Vec<Arc<Change>>> {
        match self.place.next().await {
            Ok(changes) => Some(changes),
            Err(_) => {
                if let Ok((place, _)) = self.cache.watch_from(None) {
                    self.place = place;
                }
                None
            }
        }
    }
}

pub(crate) fn start(server: &Arc<ApiServer>) {
    let follow = |group: &str, plural: &str| Following::new(server, group, plural);
    let (Some(apis), Some(services), Some(slices)) =
        (follow(GROUP, PLURAL), follow("", "services"), follow("discovery.k8s.io", "endpointslices"))
    else {
        return;
    };
    let controller = Controller {
        server: server.clone(),
        remotes: BTreeMap::new(),
        due: BTreeMap::new(),
        failures: BTreeMap::new(),
        checks: FuturesUnordered::new(),
        registered: BTreeSet::new(),
    };
    let run = controller.run(apis, services, slices);
    server.tasks.spawn(server.drain.clone().run_until_cancelled_owned(run));
}

struct Controller {
    server: Arc<ApiServer>,
    remotes: BTreeMap<String, Arc<Remote>>,
    /// When each is to be looked at next; one that is being looked at has no time.
    due: BTreeMap<String, Instant>,
    failures: BTreeMap<String, u32>,
    checks: FuturesUnordered<BoxFuture<'static, (String, Condition)>>,
    /// The APIServices of custom resources.
    registered: BTreeSet<String>,
}

impl Controller {
    async fn run(mut self, mut apis: Following, mut services: Following, mut slices: Following) {
        self.look_at_all(&apis.cache).await;
        loop {
            let has_remotes = !self.remotes.is_empty();
            let next = self.due.values().min().copied();
            tokio::select! {
                changes = apis.next() => match changes {
                    Some(changes) => for change in changes {
                        self.changed(&change.object.key, (!change.deleted).then(|| change.object.decode())).await;
                    },
                    None => self.look_at_all(&apis.cache).await,
                },
                changes = services.next(), if has_remotes => self.touched(changes, false),
                changes = slices.next(), if has_remotes => self.touched(changes, true),
                () = self.server.custom.changed() => self.register().await,
                Some((name, condition)) = self.checks.next(), if !self.checks.is_empty() => {
                    self.checked(name, condition).await;
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => self.begin_checks(),
            }
        }
    }

    async fn look_at_all(&mut self, cache: &Arc<Cache>) {
        let snapshot = cache.snapshot();
        let gone: Vec<String> =
            self.remotes.keys().filter(|name| !snapshot.objects.contains_key(name.as_str())).cloned().collect();
        for name in gone {
            self.changed(&name, None).await;
        }
        for stored in snapshot.objects.values() {
            self.changed(&stored.key, Some(stored.decode())).await;
        }
        self.registered.extend(snapshot.objects.keys().map(ToString::to_string));
        self.register().await;
    }

    /// An APIService is another now, or gone.
    async fn changed(&mut self, name: &str, object: Option<Object>) {
        let before = self.remotes.get(name);
        let identity = self.server.config.proxy_client.as_ref();
        let remote = object.as_ref().and_then(|object| Remote::of(object, before, identity)).map(Arc::new);
        let is_new = match (&remote, before) {
            (Some(now), Some(before)) => now.spec != before.spec,
            (now, _) => now.is_some(),
        };
        let is_remote = remote.is_some() || before.is_some();
        match remote {
            Some(remote) => drop(self.remotes.insert(name.to_owned(), remote)),
            None => {
                self.remotes.remove(name);
                self.due.remove(name);
                self.failures.remove(name);
            }
        }
        if is_remote {
            self.server.aggregator.0.store(Arc::new(self.remotes.values().cloned().collect()));
        }
        if is_new {
            self.due.insert(name.to_owned(), Instant::now());
        }
        if !self.remotes.contains_key(name) && object.is_some() {
            let local =
                Condition { status: "True", reason: "Local", message: "Local APIServices are always available".into() };
            told(write(&self.server, name, &local).await, name);
        }
        // Somebody may have changed or removed what the server keeps.
        if self.registered.contains(name) {
            told(register::settle(&self.server, name, true).await, name);
        }
    }

    /// Services or endpoints changed.
    fn touched(&mut self, changes: Option<Vec<Arc<Change>>>, are_slices: bool) {
        let concerns = |change: &Change, remote: &Remote| {
            let object = &change.object;
            let name = if are_slices { object.label("kubernetes.io/service-name") } else { Some(object.name()) };
            object.namespace() == remote.namespace && name == Some(remote.service.as_str())
        };
        for (name, remote) in &self.remotes {
            if changes.as_ref().is_none_or(|changes| changes.iter().any(|change| concerns(change, remote))) {
                self.due.insert(name.clone(), Instant::now());
            }
        }
    }

    /// Makes APIServices for groups of custom resources that are new, and removes those whose are gone.
    async fn register(&mut self) {
        let wanted = register::wanted(&self.server);
        for name in self.registered.symmetric_difference(&wanted) {
            told(register::settle(&self.server, name, wanted.contains(name)).await, name);
        }
        self.registered = wanted;
    }

    fn begin_checks(&mut self) {
        let now = Instant::now();
        let ready: Vec<String> = self.due.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in ready {
            self.due.remove(&name);
            if let Some(remote) = self.remotes.get(&name).cloned() {
                let server = self.server.clone();
                self.checks.push(async move { (name, check(&server, &remote).await) }.boxed());
            }
        }
    }

    async fn checked(&mut self, name: String, condition: Condition) {
        if !self.remotes.contains_key(&name) {
            return;
        }
        let written = write(&self.server, &name, &condition).await;
        let pause = match condition.reason == "FailedDiscoveryCheck" || written.is_err() {
            true => {
                let failures = self.failures.entry(name.clone()).or_default();
                *failures = failures.saturating_add(1);
                FIRST_RETRY.saturating_mul(1 << (*failures - 1).min(16)).min(RESYNC)
            }
            false => {
                self.failures.remove(&name);
                RESYNC
            }
        };
        told(written, &name);
        // It may have changed meanwhile, and be due at once.
        self.due.entry(name).or_insert(Instant::now() + pause);
    }
}

fn told(written: Result<(), ApiError>, name: &str) {
    if let Err(error) = written {
        tracing::error!(apiservice = %name, message = %error.message, "an APIService cannot be written");
    }
}

/// What an APIService says of who is behind it.
#[derive(Debug, PartialEq)]
struct Condition {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Condition {
    fn no(reason: &'static str, message: String) -> Self {
        Self { status: "False", reason, message }
    }
}

async fn check(server: &Arc<ApiServer>, remote: &Arc<Remote>) -> Condition {
    if let Some(problem) = problem(server, remote) {
        return problem;
    }
    let client = match &remote.client {
        Ok(client) => client,
        Err(error) => return Condition::no("FailedDiscoveryCheck", error.to_string()),
    };
    let path = remote.discovery_path();
    let attempts = (0..ATTEMPTS).map(|_| ask(server, client, &path).boxed());
    match select_ok(attempts).await {
        Ok((resources, _)) => {
            remote.resources.store(Some(Arc::new(resources)));
            Condition { status: "True", reason: "Passed", message: "all checks passed".into() }
        }
        Err(why) => Condition::no("FailedDiscoveryCheck", why),
    }
}

/// What is wrong with the service, without asking it.
fn problem(server: &ApiServer, remote: &Remote) -> Option<Condition> {
    let Remote { namespace, service: name, port, .. } = remote;
    let what = format!("service/{name} in {namespace:?}");
    let Some(service) = server.cached("", "services", &format!("{namespace}/{name}")) else {
        return Some(Condition::no("ServiceNotFound", format!("{what} is not present")));
    };
    if service.text(&["spec", "type"]) != "ClusterIP" {
        return None;
    }
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
    let port_of = |entry: &&Value| entry.get("port").and_then(Value::as_u64) == Some(*port);
    let Some(found) = ports.into_iter().find(port_of) else {
        return Some(Condition::no("ServicePortError", format!("{what} is not listening on port {port}")));
    };
    let cache = server.registry.stored("discovery.k8s.io", "endpointslices").and_then(|served| served.cache.clone());
    let snapshot = cache.map(|cache| cache.snapshot())?;
    let own = |slice: &crate::storage::Stored| {
        slice.namespace() == namespace && slice.label("kubernetes.io/service-name") == Some(name)
    };
    if !snapshot.objects.values().any(|slice| own(slice)) {
        return Some(Condition::no("EndpointsNotFound", format!("cannot find endpointslices for {what}")));
    }
    if service_endpoint(server, namespace, name, Some(&port.to_string())).is_none() {
        let port = found.get("name").and_then(Value::as_str).unwrap_or_default();
        let message = format!("endpointslices for {what} have no addresses with port name {port:?}");
        return Some(Condition::no("MissingEndpoints", message));
    }
    None
}

/// Asks for what it serves, as one who may see everything.
async fn ask(server: &ApiServer, client: &Outbound, path: &str) -> Result<Value, String> {
    let mut headers = HeaderMap::new();
    proxy::identify(
        &mut headers,
        &UserInfo { groups: vec!["system:masters".into()], ..named("system:kube-aggregator") },
    );
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    let url = client.place(server).map(|place| format!("https://{}:{}{path}", place.host, place.port));
    let url = url.map_err(|error| error.to_string())?;
    let failed = |why: String| format!("failing or missing response from {url}: {why}");
    let answer = client.fetch(server, path, headers, CHECK_TIMEOUT).await.map_err(|error| failed(error.to_string()))?;
    match answer.0.is_success() {
        true => serde_json::from_slice(&answer.2).map_err(|error| failed(error.to_string())),
        false => Err(failed(format!("bad status from {url}: {}", answer.0.as_u16()))),
    }
}

pub(super) fn named(name: &str) -> UserInfo {
    UserInfo { name: name.to_owned(), ..UserInfo::default() }
}

/// Writes the condition, if it says anything new.
async fn write(server: &Arc<ApiServer>, name: &str, condition: &Condition) -> Result<(), ApiError> {
    let known = server.cached(GROUP, PLURAL, name);
    if known.is_none_or(|known| described(&known, condition) == known) {
        return Ok(());
    }
    let served = server.registry.stored(GROUP, PLURAL).ok_or_else(ApiError::no_such_resource)?;
    let tracking = Tracking::Update("kube-apiserver");
    let writer = Writer { server, served, context: None, subresource: "status", dry_run: false, tracking };
    let written = writer.update("", name, |current| Ok(described(current, condition))).await;
    written.map(|_| ()).or_else(|error| if error.code == 404 { Ok(()) } else { Err(error) })
}

/// An APIService with this condition.
fn described(object: &Object, condition: &Condition) -> Object {
    let Condition { status, reason, message } = condition;
    let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array);
    let known =
        conditions.into_iter().flatten().find(|known| known.get("type").is_some_and(|kind| kind == "Available"));
    let since = known.filter(|known| known.get("status").is_some_and(|was| was == status));
    let since = since.and_then(|known| known.get("lastTransitionTime").cloned());
    let since = since.unwrap_or_else(|| crate::handlers::now().into());
    let mut new = object.clone();
    let entry = json!({
        "type": "Available", "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
    });
    new.at_mut(&["status"]).insert("conditions".into(), json!([entry]));
    new
}
