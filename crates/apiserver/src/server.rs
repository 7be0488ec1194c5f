//! The API server as an object: what it is built from, and what its handlers share.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::addresses::Range;
use api::{ApiError, Object};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::allocate::Allocator;
use crate::admission::policy::Policies;
use crate::admission::webhook::Webhooks;
use crate::admission::{AdmissionError, AdmissionSettings, Chain};
use crate::aggregator::Aggregator;
use crate::audit::Audit;
use crate::auth::authenticator::Authenticator;
use crate::auth::authorizer::Authorizer;
use crate::auth::keys::ServiceAccountKeys;
use crate::auth::node::NodeAuthorizer;
use crate::auth::rbac::Rbac;
use crate::auth::settings::{AuthError, AuthSettings};
use crate::auth::x509::Certificates;
use crate::cors::Cors;
use crate::custom;
use crate::debug::SetVerbosity;
use crate::flowcontrol::{FlowControl, FlowSettings};
use crate::health::{Health, Phase};
use crate::heavy::Heavy;
use crate::metrics::Metrics;
use crate::registry::{Registry, Served};
use crate::runtime_config::RuntimeConfig;
use crate::service_ranges::ServiceRanges;
use crate::storage::{Encryption, EncryptionError, EncryptionSettings, Feed};

/// How the API server is set up; upstream's flags of the same names fill it.
pub struct Config {
    pub advertise_address: IpAddr,
    pub secure_port: u16,
    pub service_cluster_ip_range: ServiceRanges,
    pub service_node_port_range: std::ops::RangeInclusive<u16>,
    /// Sign service-account tokens and check them.
    pub service_account_keys: ServiceAccountKeys,
    pub service_account_issuer: String,
    /// Client certificates signed by these authorities are believed, in DER.
    pub client_ca: Vec<Vec<u8>>,
    pub kubelet: KubeletClient,
    /// As whom it shows itself to API servers behind it; what it says of users is believed for that.
    pub proxy_client: Option<Arc<dyn rustls::client::ResolvesClientCert>>,
    /// Pages of which origins may use the API.
    pub cors: Cors,
    pub auth: AuthSettings,
    pub admission: AdmissionSettings,
    /// `None` logs nothing.
    pub audit: Option<Arc<Audit>>,
    /// `None` where the levels of the log stay as they are.
    pub set_verbosity: Option<SetVerbosity>,
    /// `None` keeps everything as it is.
    pub encryption: Option<EncryptionSettings>,
    pub flow: FlowSettings,
    /// Which versions and resources of the built-in API are served.
    pub runtime_config: RuntimeConfig,
    /// How long a request may take that is neither a watch nor a stream.
    pub request_timeout: Duration,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// For how many seconds pods that do not say stay on a node that is not ready, and on one that is unreachable.
    pub toleration_seconds: [i64; 2],
}

impl Config {
    /// What is so where no flag says otherwise.
    pub fn new(advertise_address: IpAddr, service_account_keys: ServiceAccountKeys, kubelet: KubeletClient) -> Self {
        Self {
            advertise_address,
            secure_port: 6443,
            service_cluster_ip_range: ServiceRanges {
                primary: Range { address: [10, 96, 0, 0].into(), bits: 16 },
                secondary: None,
            },
            service_node_port_range: 30000..=32767,
            service_account_keys,
            service_account_issuer: "https://kubernetes.default.svc".into(),
            client_ca: Vec::new(),
            kubelet,
            proxy_client: None,
            cors: Cors::default(),
            auth: AuthSettings::default(),
            admission: AdmissionSettings::default(),
            audit: None,
            set_verbosity: None,
            encryption: None,
            flow: FlowSettings::default(),
            runtime_config: RuntimeConfig::default(),
            request_timeout: Duration::from_secs(60),
            event_ttl: Duration::from_secs(60 * 60),
            toleration_seconds: [300, 300],
        }
    }

    /// Whom a token that is good for the API is meant for.
    pub(crate) fn api_audiences(&self) -> &[String] {
        match self.auth.api_audiences.as_slice() {
            [] => std::slice::from_ref(&self.service_account_issuer),
            audiences => audiences,
        }
    }
}

/// How the API server reaches kubelets: with its own client certificate.
#[derive(Clone)]
pub struct KubeletClient {
    pub tls: Arc<rustls::ClientConfig>,
    /// For those who do not want to know whose words they read.
    pub(crate) unverified: Arc<rustls::ClientConfig>,
    /// Which of a node's addresses to take: the first of these that it has.
    pub preferred_address_types: Vec<String>,
}

impl KubeletClient {
    pub fn new(tls: Arc<rustls::ClientConfig>) -> Self {
        // Upstream begins with the name, which nobody need be able to look up.
        let types = ["InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"];
        let unverified = crate::outbound::connect::unverified(&tls);
        Self { tls, unverified, preferred_address_types: types.map(ToOwned::to_owned).into() }
    }

    /// The same where no authority says who is a kubelet.
    #[must_use]
    pub fn believing_anybody(self) -> Self {
        Self { tls: self.unverified.clone(), ..self }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    #[error("authentication or authorization cannot be set up: {0}")]
    Auth(#[from] AuthError),
    #[error("encryption at rest cannot be set up")]
    Encryption(#[from] EncryptionError),
    #[error("admission cannot be set up")]
    Admission(#[from] AdmissionError),
    #[error("the first objects of the cluster cannot be written: {0}")]
    Bootstrap(#[from] ApiError),
}

/// The API server. Cheap to share; [`ApiServer::handle`] answers requests from the network and from within the process.
pub struct ApiServer {
    pub(crate) config: Config,
    pub(crate) feed: Arc<Feed>,
    pub(crate) encryption: Option<Arc<Encryption>>,
    /// What is built in.
    pub(crate) registry: Registry,
    /// What is answered by others.
    pub(crate) aggregator: Aggregator,
    /// What is defined by users.
    pub(crate) custom: custom::Resources,
    /// The definitions whose objects are being removed, by their identity.
    pub(crate) cleaning: Mutex<HashSet<String>>,
    pub(crate) certificates: ArcSwap<Certificates>,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Authorizer,
    pub(crate) rbac: Rbac,
    pub(crate) node_authorizer: NodeAuthorizer,
    pub(crate) admission: Chain,
    pub(crate) validating_policies: Policies,
    pub(crate) mutating_policies: Policies,
    pub(crate) validating_webhooks: Webhooks,
    pub(crate) mutating_webhooks: Webhooks,
    pub(crate) allocator: Allocator,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) heavy: Heavy,
    pub(crate) flow: FlowControl,
    pub(crate) health: Health,
    /// Since when it runs.
    pub(crate) begun: jiff::Timestamp,
    pub(crate) drain: CancellationToken,
    /// What must have ended before serving has.
    pub(crate) tasks: TaskTracker,
}

impl ApiServer {
    /// Reads the store, follows it, and writes what every cluster has.
    pub async fn start(
        config: Config,
        mut store: Arc<dyn Store>,
        drain: CancellationToken,
    ) -> Result<Arc<Self>, StartError> {
        let mut encryption = None;
        if let Some(settings) = config.encryption.clone() {
            let started = Encryption::start(store, settings).await?;
            (store, encryption) = (started.clone(), Some(started));
        }
        let feed = Feed::new(store, config.event_ttl);
        let registry = Registry::builtin(&feed, &config);
        feed.load(true).await?;
        tokio::spawn(feed.clone().run());
        let (rbac, node_authorizer) = (Rbac::new(&registry), NodeAuthorizer::new(&registry));
        let admission = Chain::new(&config.admission)?;
        let certificates = Certificates::new(&config.client_ca, &config.auth.request_header.client_ca);
        let (authenticator, authorizer) = (config.auth.authenticator()?, config.auth.authorizer()?);
        let (validating_policies, mutating_policies) = (Policies::validating(&registry), Policies::mutating(&registry));
        let webhooks = |plural: &str, plugin: &str| Webhooks::new(&registry, plural, admission.logins(plugin));
        let validating_webhooks = webhooks("validatingwebhookconfigurations", "ValidatingAdmissionWebhook");
        let mutating_webhooks = webhooks("mutatingwebhookconfigurations", "MutatingAdmissionWebhook");
        let allocator = Allocator::new(config.service_cluster_ip_range, config.service_node_port_range.clone());
        let flow = FlowControl::new(config.flow.clone());
        let server = Arc::new(Self {
            config,
            feed,
            encryption,
            registry,
            aggregator: Aggregator::default(),
            custom: custom::Resources::default(),
            cleaning: Mutex::default(),
            certificates: ArcSwap::from_pointee(certificates),
            authenticator,
            authorizer,
            rbac,
            node_authorizer,
            admission,
            validating_policies,
            mutating_policies,
            validating_webhooks,
            mutating_webhooks,
            allocator,
            metrics: Arc::default(),
            heavy: Heavy::default(),
            flow,
            health: Health::default(),
            begun: jiff::Timestamp::now(),
            drain,
            tasks: TaskTracker::new(),
        });
        server.health.reach(Phase::Read);
        custom::start(&server).await?;
        server.health.reach(Phase::Defined);
        crate::bootstrap::run(&server).await?;
        crate::flowcontrol::controller::start(&server);
        server.health.reach(Phase::Fair);
        crate::aggregator::start(&server);
        server.health.reach(Phase::Aggregated);
        crate::auth::reload::start(&server);
        Ok(server)
    }

    /// Believes clients and front proxies with certificates of these authorities, in DER, and of no others: on open connections too, from
    /// their next request on.
    pub fn believe(self: &Arc<Self>, client_ca: &[Vec<u8>], proxy_ca: &[Vec<u8>]) {
        self.certificates.store(Arc::new(Certificates::new(client_ca, proxy_ca)));
        let server = self.clone();
        let published = async move {
            if let Err(error) = crate::bootstrap::publish_trust(&server).await {
                tracing::warn!(%error, "the new authorities of clients could not be published");
            }
        };
        self.tasks.spawn(self.drain.clone().run_until_cancelled_owned(published));
    }

    /// An object as the cache has it; `key` is `namespace/name`, or `name`.
    pub(crate) fn cached(&self, group: &str, plural: &str, key: &str) -> Option<Object> {
        let stored = self.registry.stored(group, plural)?.cache.as_ref()?.get(key)?;
        Some(stored.decode())
    }

    /// All objects of a resource in a namespace, or everywhere if it is empty.
    pub(crate) fn cached_all(&self, group: &str, plural: &str, namespace: &str) -> Vec<Object> {
        let cache = self.registry.stored(group, plural).and_then(|served| served.cache.clone());
        let Some(snapshot) = cache.map(|cache| cache.snapshot()) else { return Vec::new() };
        if namespace.is_empty() {
            return snapshot.objects.values().map(|stored| stored.decode()).collect();
        }
        let start: Arc<str> = format!("{namespace}/").into();
        let own = snapshot.objects.range(start..).map(|(_, stored)| stored);
        own.take_while(|stored| stored.namespace() == namespace).map(|stored| stored.decode()).collect()
    }

    /// What a path leads to.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        let builtin = self.registry.find(group, version, plural).filter(|served| served.is_enabled);
        builtin.cloned().or_else(|| self.custom.find(group, version, plural))
    }

    /// Everything that is served, the built-in first.
    pub(crate) fn all_served(&self) -> Vec<Arc<Served>> {
        self.registry.all().iter().chain(self.custom.load().all()).cloned().collect()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &**self.feed.store()
    }
}

impl From<crate::storage::WriteError> for ServerError {
    fn from(error: crate::storage::WriteError) -> Self {
        match error {
            crate::storage::WriteError::Unmet(revision) => Self::Unmet(revision),
            crate::storage::WriteError::Claimed(revision) => Self::Claimed(revision),
            crate::storage::WriteError::Store(error) => Self::Api(store_error(error)),
        }
    }
}

/// Inside a write: either what the client is told, or that the object, or what it claims, changed meanwhile.
pub(crate) enum ServerError {
    Unmet(i64),
    Claimed(i64),
    Api(ApiError),
}

impl From<ApiError> for ServerError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

/// The one place where store errors become API errors.
pub(crate) fn store_error(error: StoreError) -> ApiError {
    match error {
        StoreError::Compacted { .. } => ApiError::expired("The resourceVersion for the provided list is too old."),
        StoreError::TooLarge { .. } => ApiError::too_large(error.to_string()),
        StoreError::Poisoned(_) | StoreError::Closed | StoreError::Unavailable(_) => {
            ApiError::unavailable(error.to_string())
        }
        other => ApiError::internal(other),
    }
}
