//! API servers behind this one: a group and version whose APIService names a service is answered by that service.
//!
//! [`controller`] follows the APIServices, looks whether those behind them answer, and keeps the table that requests look
//! into; [`register`] keeps an APIService for every group and version of custom resources; [`proxy`] passes requests on;
//! [`described`] says what the others serve, as they last said it.

mod controller;
pub(crate) mod described;
pub(crate) mod proxy;
mod register;

use std::sync::Arc;

use api::{Object, ObjectExt as _};
use arc_swap::{ArcSwap, ArcSwapOption};
use serde_json::Value;

pub(crate) use self::controller::start;
pub(crate) use self::register::PRIORITIES as CUSTOM_PRIORITIES;
use crate::custom::is_true;
use crate::outbound::{Identity, Outbound, OutboundError};

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";
/// Upstream's, where a service does not say.
const DEFAULT_PORT: u64 = 443;

/// What of an APIService says where it leads.
const LEADS: [&str; 5] = ["group", "version", "service", "caBundle", "insecureSkipTLSVerify"];

/// Those who answer for this server, as they are now.
#[derive(Default)]
pub(crate) struct Aggregator(ArcSwap<Vec<Arc<Remote>>>);

impl Aggregator {
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Remote>>> {
        self.0.load_full()
    }

    /// Who answers a path, if it is not this server.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<Remote>> {
        let all = self.0.load();
        if all.is_empty() {
            return None;
        }
        let mut parts = path.trim_start_matches('/').split('/');
        let (group, version) = match parts.next() {
            Some("apis") => (parts.next()?, parts.next()?),
            Some("api") => ("", parts.next()?),
            _ => return None,
        };
        all.iter().find(|remote| remote.group == group && remote.version == version).cloned()
    }
}

/// An APIService that names a service.
pub(crate) struct Remote {
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) group_priority: i64,
    pub(crate) version_priority: i64,
    pub(crate) is_available: bool,
    namespace: String,
    service: String,
    port: u64,
    spec: Value,
    client: Result<Arc<Outbound>, OutboundError>,
    /// What it said it serves when last asked.
    resources: Arc<ArcSwapOption<Value>>,
}

impl Remote {
    /// `None` for one that this server answers itself. What is known of it as it was is kept where nothing else is meant now.
    fn of(object: &Object, known: Option<&Arc<Self>>, identity: Option<&Identity>) -> Option<Self> {
        let spec = object.at(&["spec"])?;
        spec.get("service").filter(|service| service.is_object())?;
        let number = |path: &[&str]| object.at(path).and_then(Value::as_i64).unwrap_or_default();
        let text = |path: &[&str]| object.text(path).to_owned();
        let port = object.at(&["spec", "service", "port"]).and_then(Value::as_u64).unwrap_or(DEFAULT_PORT);
        let leads = |spec: &Value| LEADS.map(|field| spec.get(field).cloned());
        let same = known.filter(|known| leads(&known.spec) == leads(spec));
        let client = match same.map(|known| &known.client) {
            Some(Ok(client)) => Ok(client.clone()),
            _ => Outbound::from_client_config(spec.as_object()?).map(|mut client| {
                client.identity = identity.cloned();
                Arc::new(client)
            }),
        };
        Some(Self {
            name: object.name().to_owned(),
            group: text(&["spec", "group"]),
            version: text(&["spec", "version"]),
            group_priority: number(&["spec", "groupPriorityMinimum"]),
            version_priority: number(&["spec", "versionPriority"]),
            is_available: is_true(object, "Available"),
            namespace: text(&["spec", "service", "namespace"]),
            service: text(&["spec", "service", "name"]),
            port,
            spec: spec.clone(),
            client,
            resources: same.map(|known| known.resources.clone()).unwrap_or_default(),
        })
    }

    /// What it must answer, whatever it serves.
    fn discovery_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}
