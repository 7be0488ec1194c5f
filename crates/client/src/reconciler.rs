//! The loop every controller runs in: take a key, reconcile it, come back later if it asks to or fails.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use tokio::task::JoinSet;

use crate::{Drain, Key, WorkQueue};

/// Brings one object's world from what is observed to what is wanted. Safe to repeat, and to cancel at any `.await`.
#[async_trait]
pub trait Reconciler: Send + Sync + 'static {
    const NAME: &'static str;
    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError>;
}

/// When to look at the object again if nothing about it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    OnChange,
    After(Duration),
}

/// Why a pass failed; it is repeated with back-off.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("{0}")]
    Other(String),
}

impl ReconcileError {
    pub fn other(error: impl std::fmt::Display) -> Self {
        Self::Other(error.to_string())
    }

    /// Someone else wrote first. The watch brings what they wrote; nothing is wrong.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_conflict())
    }
}

/// Returns once `drain` has fired and the passes in flight are done.
pub async fn run_reconciler<R: Reconciler>(reconciler: Arc<R>, queue: WorkQueue, workers: usize, drain: Drain) {
    let mut running = JoinSet::new();
    for _ in 0..workers.max(1) {
        let (reconciler, queue) = (reconciler.clone(), queue.clone());
        running.spawn(async move {
            while let Some(key) = queue.get().await {
                pass(&*reconciler, &queue, &key).await;
                queue.done(&key);
            }
        });
    }
    drain.cancelled().await;
    queue.shut_down();
    running.join_all().await;
}

async fn pass<R: Reconciler>(reconciler: &R, queue: &WorkQueue, key: &Key) {
    // A panic is a defect in the code for one object; the other objects must not lose their worker to it.
    let outcome = AssertUnwindSafe(reconciler.reconcile(key)).catch_unwind().await;
    match outcome.unwrap_or_else(|_| Err(ReconcileError::Other("reconcile panicked".into()))) {
        Ok(next) => {
            queue.forget(key);
            if let Next::After(delay) = next {
                queue.add_after(key.clone(), delay);
            }
        }
        Err(error) => {
            if error.is_conflict() {
                tracing::debug!(controller = R::NAME, object = %key, "reconcile again after a conflict");
            } else {
                tracing::warn!(controller = R::NAME, object = %key, %error, "reconcile failed");
            }
            queue.add_rate_limited(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    type Outcome = Box<dyn FnOnce() -> Result<Next, ReconcileError> + Send>;

    /// Gives prepared outcomes in turn and reports when each pass ran.
    struct Scripted {
        outcomes: Mutex<Vec<Outcome>>,
        ran: mpsc::UnboundedSender<Instant>,
    }

    #[async_trait]
    impl Reconciler for Scripted {
        const NAME: &'static str = "scripted";
        async fn reconcile(&self, _: &Key) -> Result<Next, ReconcileError> {
            self.ran.send(Instant::now()).unwrap();
            let outcome = self.outcomes.lock().pop();
            outcome.map_or(Ok(Next::OnChange), |outcome| outcome())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn errors_and_panics_are_retried_with_backoff_and_asked_delays_are_kept() {
        let (ran, mut passes) = mpsc::unbounded_channel();
        let outcomes: Vec<Outcome> = vec![
            Box::new(|| Ok(Next::After(Duration::from_secs(7)))),
            Box::new(|| panic!("a defect")),
            Box::new(|| Err(ReconcileError::other("not yet"))),
        ];
        let (queue, drain) = (WorkQueue::new(), Drain::new());
        let reconciler = Arc::new(Scripted { outcomes: Mutex::new(outcomes), ran });
        let running = tokio::spawn(run_reconciler(reconciler, queue.clone(), 2, drain.clone()));
        let start = Instant::now();
        queue.add(Key::new("default", "web"));
        for want in [0, 5, 15, 7015] {
            let at = passes.recv().await.unwrap();
            assert_eq!(at.duration_since(start).as_millis(), want);
        }
        drain.cancel();
        running.await.unwrap();
    }
}
