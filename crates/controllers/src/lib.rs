//! Ferry's controllers: the loops that turn what users want into what is, one folder each, on shared informers and work queues.
//!
//! Every controller is a pure `plan` and a thin `reconcile`. They know the API and nothing else: no controller calls another.

mod certificates;
mod claim;
mod cluster_role_aggregation;
mod controller;
mod daemon_set;
mod deployment;
mod discovery;
mod disruption;
mod endpoint_slice;
mod endpoints;
mod expectations;
mod garbage_collector;
mod guarded;
mod hash;
mod history;
mod int_or_percent;
mod job;
mod meta;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod placement;
mod pod;
mod pod_control;
mod pod_gc;
mod pv_protection;
mod pvc_protection;
mod replica_set;
mod resource_quota;
mod root_ca;
mod service;
mod service_account;
mod service_cidrs;
mod taint_eviction;
mod vac_protection;
mod validating_admission_policy_status;
mod written;

use std::sync::Arc;
use std::time::Duration;

pub use certificates::{Signing, SigningError};
use client::{Drain, Informers};
pub use controller::Accounts;
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;
pub use node_ipam::CidrError;
use tokio::task::JoinSet;

use crate::controller::Context;
use crate::node_ipam::NodeCidrs;

/// Work in flight ends by itself in milliseconds, unless the API server is gone already.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// What a controller manager is started with.
pub struct Config {
    /// PEM, published to every namespace.
    pub root_ca: String,
    pub cluster_cidr: String,
    pub node_cidr_mask_size: u8,
    /// Who holds the leader lease.
    pub identity: String,
    /// Whom each controller acts as.
    pub accounts: Accounts,
    /// What approved requests for certificates are signed with; `None` leaves them to others.
    pub signing: Option<Arc<Signing>>,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("node address ranges")]
    Cidr(#[from] CidrError),
    /// Another replica leads now, or the lease could not be renewed: start again to wait for the next turn.
    #[error("leadership lost")]
    LeadershipLost,
    #[error("a controller ended unexpectedly")]
    Controller(#[from] tokio::task::JoinError),
}

/// Waits for the lease, then runs every controller until `drain` fires. `ready` is called when all caches are filled.
pub async fn run(
    client: kube::Client,
    config: Config,
    ready: impl FnOnce() + Send + 'static,
    drain: Drain,
) -> Result<(), RunError> {
    let node_cidrs = NodeCidrs::parse(&config.cluster_cidr, config.node_cidr_mask_size)?;
    let lease = ("kube-system", "kube-controller-manager");
    let Some(leadership) = client::lead(client.clone(), lease.0, lease.1, &config.identity, drain.clone()).await else {
        return Ok(());
    };
    let lost = leadership.lost();
    let context = Context {
        informers: Informers::new(client.clone(), lost.clone()),
        client,
        accounts: config.accounts,
        drain: lost.clone(),
        root_ca: config.root_ca,
        node_cidrs,
        signing: config.signing,
        clock: Arc::new(jiff::Timestamp::now),
    };
    let controllers = build(&context);
    let mut running = JoinSet::new();
    if lost.run_until_cancelled(context.informers.synced()).await.is_some() {
        controllers.into_iter().for_each(|controller| drop(running.spawn(controller)));
        ready();
    }
    let ended = async {
        while let Some(ended) = running.join_next().await {
            ended?;
        }
        Ok::<_, RunError>(())
    };
    let overdue = async {
        lost.cancelled().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        ended = ended => ended?,
        () = overdue => tracing::warn!("work in flight was given up, the API server does not answer"),
    }
    running.shutdown().await;
    if tokio::time::timeout(RELEASE_TIMEOUT, leadership.release()).await.is_err() {
        tracing::debug!("lease not released, it will run out");
    }
    if drain.is_cancelled() { Ok(()) } else { Err(RunError::LeadershipLost) }
}

/// Every controller asks for its informers here; nothing runs until all of them are filled.
fn build(context: &Context) -> Vec<BoxFuture<'static, ()>> {
    vec![
        context.start::<node_lifecycle::NodeLifecycle>(),
        context.start::<node_ipam::NodeIpam>(),
        context.start::<service_account::ServiceAccounts>(),
        context.start::<root_ca::RootCaPublisher>(),
        context.start::<certificates::Certificates>(),
        context.start::<cluster_role_aggregation::ClusterRoleAggregation>(),
        context.start::<deployment::Deployments>(),
        context.start::<replica_set::ReplicaSets<ReplicaSet>>(),
        context.start::<replica_set::ReplicaSets<ReplicationController>>(),
        context.start::<daemon_set::DaemonSets>(),
        context.start::<job::Jobs>(),
        context.start::<endpoint_slice::EndpointSlices>(),
        context.start::<endpoints::Endpoints>(),
        context.start::<service_cidrs::ServiceCidrs>(),
        context.start::<namespace::Namespaces>(),
        context.start::<resource_quota::ResourceQuotas>(),
        context.start::<pod_gc::PodGc>(),
        context.start::<taint_eviction::TaintEviction>(),
        context.start::<disruption::Disruption>(),
        context.start::<disruption::stale::StaleDisruptions>(),
        context.start::<pvc_protection::PvcProtection>(),
        context.start::<pv_protection::PvProtection>(),
        context.start::<vac_protection::VacProtection>(),
        context.start::<validating_admission_policy_status::PolicyStatus>(),
        garbage_collector::start(&context.of("generic-garbage-collector")),
    ]
}
