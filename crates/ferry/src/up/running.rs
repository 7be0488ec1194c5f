//! What a start has begun so far, so that whatever ends it leaves nothing behind.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cli::Up;
use crate::cluster::BRIDGE;
use crate::control_plane;
use crate::preflight::Machine;
use crate::progress::Progress;

pub(super) const CGROUP_ROOT: &str = "/kubepods";
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Filled step by step: each thing is noted before it can leave traces.
pub(super) struct Running {
    pub(super) api_drain: CancellationToken,
    pub(super) control_drain: CancellationToken,
    pub(super) node_drain: CancellationToken,
    pub(super) machine: Option<Machine>,
    pub(super) store: Option<Arc<store::Embedded>>,
    pub(super) api: Option<control_plane::Handle>,
    pub(super) runtime: Option<Arc<runtime::Runtime>>,
    /// The bridge and its rules exist, whole or in part.
    pub(super) network: bool,
    control: Vec<JoinHandle<()>>,
    node: Vec<JoinHandle<()>>,
    failures: mpsc::UnboundedSender<anyhow::Error>,
    failed: mpsc::UnboundedReceiver<anyhow::Error>,
}

impl Running {
    pub(super) fn nothing() -> Self {
        let (failures, failed) = mpsc::unbounded_channel();
        Self {
            api_drain: CancellationToken::new(),
            control_drain: CancellationToken::new(),
            node_drain: CancellationToken::new(),
            machine: None,
            store: None,
            api: None,
            runtime: None,
            network: false,
            control: Vec::new(),
            node: Vec::new(),
            failures,
            failed,
        }
    }

    /// Runs a component that needs only the API.
    pub(super) fn control<F, E>(&mut self, name: &'static str, component: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<anyhow::Error> + Send + 'static,
    {
        self.control.push(supervise(&self.failures, name, component));
    }

    /// Runs a component of the node.
    pub(super) fn node<F, E>(&mut self, name: &'static str, component: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<anyhow::Error> + Send + 'static,
    {
        self.node.push(supervise(&self.failures, name, component));
    }

    /// Waits for a component to end by itself, which none should.
    pub(super) async fn failure(&mut self) -> anyhow::Error {
        self.failed.recv().await.unwrap_or_else(|| anyhow::anyhow!("nothing runs any more"))
    }

    /// Pods first, then the node, then controllers and scheduler, then the API they all need, then the store.
    pub(super) async fn stop(self, options: &Up, progress: &Progress) {
        // A start that was refused before it began anything has nothing to say.
        let Some(store) = self.store else { return };
        let begun = Instant::now();
        progress.line("\nStopping …");
        self.node_drain.cancel();
        finish(self.node).await;
        if !options.keep_pods {
            if let Some(runtime) = &self.runtime {
                stop_pods(runtime, &options.data_dir.join("kubelet")).await;
            }
            // Pods that an earlier start left, and that this one did not come to adopt, keep their network.
            let left = self.runtime.is_none() && has_entries(&options.data_dir.join("runtime/sandboxes"));
            if self.network && !left {
                remove_network().await;
            }
        }
        self.control_drain.cancel();
        finish(self.control).await;
        self.api_drain.cancel();
        finish(self.api.map(|api| api.serving)).await;
        store.close().await;
        progress.done("stopped", begun.elapsed(), if options.keep_pods { "pods left running" } else { "" });
    }
}

async fn finish(tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    for task in tasks {
        let _ = tokio::time::timeout(STOP_GRACE, task).await;
    }
}

async fn stop_pods(runtime: &runtime::Runtime, kubelet_root: &Path) {
    if let Err(error) = kubelet::stop_all_pods(runtime, STOP_GRACE).await {
        tracing::warn!(%error, "not every pod could be stopped");
    }
    if let Err(error) = kubelet::release(kubelet_root, CGROUP_ROOT) {
        tracing::warn!(%error, "not every volume and cgroup could be removed");
    }
}

async fn remove_network() {
    if let Err(error) = proxy::cleanup() {
        tracing::warn!(%error, "the proxy's rules could not be removed");
    }
    if let Err(error) = network::remove(BRIDGE).await {
        tracing::warn!(%error, "the pod network could not be removed");
    }
}

fn has_entries(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// Runs a component. One that fails or panics ends the cluster: half of one would look whole.
fn supervise<F, E>(failures: &mpsc::UnboundedSender<anyhow::Error>, name: &'static str, component: F) -> JoinHandle<()>
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<anyhow::Error> + Send + 'static,
{
    let failures = failures.clone();
    tokio::spawn(async move {
        let outcome = match tokio::spawn(component).await {
            Ok(outcome) => outcome.map_err(Into::into),
            Err(panic) => Err(anyhow::Error::from(panic)),
        };
        if let Err(error) = outcome {
            // Nobody listens any more once the cluster stops.
            let _ = failures.send(error.context(format!("the {name} ended")));
        }
    })
}
