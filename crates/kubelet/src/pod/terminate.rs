//! The end of a pod: stop its containers within their grace, remove what it left, and only then its object.

use cri::v1::RemovePodSandboxRequest;
use tonic::Status;

use super::kill;
use super::observed::{Observed, observe, unless_gone};
use super::worker::{Next, Worker};
use super::writer;
use crate::eviction::EVICTED;
use crate::spec;
use crate::volumes::mounts;

impl Worker {
    pub(super) async fn terminate(&mut self) -> Result<Next, Status> {
        let uid = spec::uid(&self.pod).to_owned();
        let observed = observe(self.context.cri.as_ref(), &uid).await?;
        let alive = observed.running().next().is_some() || observed.sandboxes.iter().any(|sandbox| sandbox.ready);
        if alive {
            self.probes.stop_all_but_readiness();
            self.report(&observed, false);
            if !self.stop(&observed).await? {
                return Ok(Next::Wait(None));
            }
        }
        self.probes.stop();
        let observed = observe(self.context.cri.as_ref(), &uid).await?;
        if observed.running().next().is_some() {
            return Ok(Next::Wait(Some(self.retry_at())));
        }
        self.reasons.clear();
        self.report(&observed, true);
        if !self.gone && !spec::is_deleted(&self.pod) {
            if self.is_evicted() {
                // It was to make room.
                self.remove(&observed).await?;
                self.release().await;
                self.remove_files().await;
            } else {
                self.release().await;
            }
            self.context.release(&uid);
            return Ok(Next::Wait(None));
        }
        self.remove(&observed).await?;
        self.release().await;
        self.remove_files().await;
        self.context.release(&uid);
        if !self.gone {
            self.writer.flushed().await;
            writer::delete(&self.context.client, &self.pod).await;
        }
        Ok(Next::Done)
    }

    /// Stops everything; a deletion with a shorter grace that arrives meanwhile shortens it. False at the node's drain.
    async fn stop(&mut self, observed: &Observed) -> Result<bool, Status> {
        loop {
            let (context, pod, drain) = (self.context.clone(), self.pod.clone(), self.drain.clone());
            let grace = self.grace();
            let mut kill = std::pin::pin!(kill::pod(&context, &pod, observed, grace));
            loop {
                tokio::select! {
                    biased;
                    done = &mut kill => return done.map(|()| true),
                    () = drain.cancelled() => return Ok(false),
                    () = self.next_signal() => (),
                }
                if self.grace() < grace || (grace.is_none() && self.grace().is_some()) {
                    break;
                }
                let now = observe(self.context.cri.as_ref(), spec::uid(&pod)).await?;
                self.report(&now, false);
            }
        }
    }

    /// The shorter one of the deletion's and the eviction's; without both each container has its own.
    fn grace(&self) -> Option<i64> {
        let evicted = self.rejected.as_ref().and_then(|rejection| rejection.grace_seconds);
        [self.pod.metadata.deletion_grace_period_seconds, evicted].into_iter().flatten().min()
    }

    fn is_evicted(&self) -> bool {
        self.rejected.as_ref().is_some_and(|rejection| rejection.reason == EVICTED)
    }

    /// Dead containers go with their sandboxes.
    async fn remove(&mut self, observed: &Observed) -> Result<(), Status> {
        for sandbox in &observed.sandboxes {
            let request = RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
            unless_gone(self.context.cri.remove_pod_sandbox(request).await)?;
        }
        Ok(())
    }

    /// Volumes and cgroup: what a finished pod must not hold any longer.
    async fn release(&mut self) {
        self.volumes.clear();
        let (context, uid) = (self.context.clone(), spec::uid(&self.pod).to_owned());
        let folder = context.pod_dir(&uid);
        let released = tokio::task::spawn_blocking(move || {
            let volumes = ["volume-subpaths", "volumes"].map(|name| mounts::remove_all(&folder.join(name)));
            (volumes, context.cgroups.remove(&uid))
        });
        let Ok((volumes, cgroup)) = released.await else { return };
        for error in volumes.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "volume could not be removed");
        }
        if let Err(error) = cgroup {
            tracing::warn!(%error, "cgroup could not be removed");
        }
    }

    async fn remove_files(&mut self) {
        let (pod_dir, logs) = (self.context.pod_dir(spec::uid(&self.pod)), self.context.pod_log_dir(&self.pod));
        let removed = tokio::task::spawn_blocking(move || {
            let _ = std::fs::remove_dir_all(logs);
            mounts::remove_all(&pod_dir)
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%error, "pod folder could not be removed");
        }
    }
}
