//! Requests with large bodies: they take long to read and check, so they get threads of their own, and not all of the machine.

use std::future::Future;

use http::{HeaderMap, header};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Larger than almost every object, small enough to be read in a millisecond.
const LARGE: u64 = 128 << 10;
/// YAML can refer to itself, and a patch can copy what it copied: little text may mean a lot.
const LARGE_IF_IT_GROWS: u64 = 512;

/// From which size on a body of this type is a heavy one.
pub(crate) fn large(headers: &HeaderMap) -> u64 {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if content_type.contains("yaml") || content_type.contains("json-patch") { LARGE_IF_IT_GROWS } else { LARGE }
}

pub(crate) struct Heavy(Semaphore);

impl Default for Heavy {
    /// Half of the processors stay free for everybody else.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Semaphore::new((processors / 2).max(1)))
    }
}

impl Heavy {
    /// Runs a heavy request when it is its turn, so that it keeps no worker from its tasks.
    pub(crate) async fn run<F: Future>(&self, request: F) -> F::Output {
        let handle = Handle::current();
        if handle.runtime_flavor() != RuntimeFlavor::MultiThread {
            return request.await;
        }
        // It is never closed.
        let _turn = self.0.acquire().await;
        tokio::task::block_in_place(|| handle.block_on(request))
    }
}
