//! Requests with large bodies: they take long to read and check, so they get threads of their own, and not all of the machine.

use std::future::Future;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Larger than almost every object, small enough to be read in a millisecond.
pub(crate) const LARGE: u64 = 128 << 10;

pub(crate) struct Heavy(Semaphore);

impl Default for Heavy {
    /// Half of the processors stay free for everybody else.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Semaphore::new((processors / 2).max(1)))
    }
}

impl Heavy {
    /// Runs a request whose body has `size` bytes. A large one waits for its turn, and keeps no worker from its tasks.
    pub(crate) async fn run<F: Future>(&self, size: u64, request: F) -> F::Output {
        let handle = Handle::current();
        if size <= LARGE || handle.runtime_flavor() != RuntimeFlavor::MultiThread {
            return request.await;
        }
        // It is never closed.
        let _turn = self.0.acquire().await;
        tokio::task::block_in_place(|| handle.block_on(request))
    }
}
