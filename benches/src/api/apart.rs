//! What others do, on a thread that is not the measured client's.

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Runtime};

/// One thread with a runtime of its own, until it is dropped.
pub(super) struct Apart(Option<Runtime>);

impl Apart {
    /// `begin` is what the thread does first.
    pub(super) fn new(begin: impl Fn() + Send + Sync + 'static) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().on_thread_start(begin).build()?;
        Ok(Self(Some(runtime)))
    }

    pub(super) fn runtime(&self) -> Result<&Runtime> {
        self.0.as_ref().context("it has not ended")
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // Whoever drops it may be in another runtime, and must not wait there.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
