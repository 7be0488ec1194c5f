//! Ferry's scheduler: gives every pod a node, by upstream's framework and plugins.
//!
//! One loop decides, one pod at a time, on a cache that counts pods it has placed before anybody else knows; binding happens beside it.

mod cache;
mod fit;
mod framework;
mod node_info;
mod plugins;
mod queue;
mod resources;
mod schedule;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use client::{Drain, Informers, Recorder};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};

use crate::cache::Cache;
use crate::queue::Queue;
use crate::schedule::Scheduler;

pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// The API server may be gone before the lease is given back.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// What a scheduler is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who holds the leader lease.
    pub identity: String,
    /// Pods that name another scheduler are left to it.
    pub scheduler_name: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { identity: String::new(), scheduler_name: DEFAULT_SCHEDULER.into() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another replica leads now, or the lease could not be renewed: start again to wait for the next turn.
    #[error("leadership lost")]
    LeadershipLost,
}

/// Waits for the lease, then schedules until `drain` fires. `ready` is called when the caches are filled.
pub async fn run(
    client: kube::Client,
    config: Config,
    ready: impl FnOnce() + Send + 'static,
    drain: Drain,
) -> Result<(), RunError> {
    let lease = ("kube-system", "kube-scheduler");
    let Some(leadership) = client::lead(client.clone(), lease.0, lease.1, &config.identity, drain.clone()).await else {
        return Ok(());
    };
    let lost = leadership.lost();
    let informers = Informers::new(client.clone(), lost.clone());
    let (pods, nodes) = (informers.of::<Pod>(), informers.of::<Node>());
    let namespaces = informers.of::<Namespace>();
    let framework = plugins::default_profile(client.clone());
    let cache = Arc::new(Cache::default());
    let queue = Arc::new(Queue::new(Box::new(plugins::priority_sort::PrioritySort), plugins::is_helped_by));
    watch::subscribe(&nodes, &pods, &namespaces, &cache, &queue, &config.scheduler_name);
    let recorder = Recorder::new(client.clone(), DEFAULT_SCHEDULER, "", lost.clone());
    let scheduler = Arc::new(Scheduler::new(client, framework, cache, queue, pods, recorder));
    if lost.run_until_cancelled(informers.synced()).await.is_some() {
        ready();
        lost.run_until_cancelled(scheduler.run()).await;
    }
    if tokio::time::timeout(RELEASE_TIMEOUT, leadership.release()).await.is_err() {
        tracing::debug!("lease not released, it will run out");
    }
    if drain.is_cancelled() { Ok(()) } else { Err(RunError::LeadershipLost) }
}
