//! Work that takes long and leaves room for others: requests with large bodies get threads of their own, and not all of the machine.

use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use http::{HeaderMap, header};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

/// Larger than almost every object, small enough to be read in a millisecond.
const LARGE: usize = 128 << 10;
/// Less than this cannot grow to much.
const LITTLE: usize = 512;

/// Little text may mean a lot: YAML that refers to itself, a patch that copies what it copied. All else takes as long as it is.
pub(crate) fn is_heavy(headers: &HeaderMap, body: &[u8]) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let grows = match content_type {
        kind if kind.contains("yaml") => body.contains(&b'*') && body.contains(&b'&'),
        kind if kind.contains("json-patch") => body.windows(4).any(|word| word == b"copy"),
        _ => false,
    };
    body.len() > LARGE || (grows && body.len() > LITTLE)
}

/// A body that is heavy whatever it says, or may be, has at least this size.
pub(crate) fn may_be_heavy(size: Option<u64>) -> bool {
    size.is_none_or(|size| size > LITTLE as u64)
}

/// Lets all others go first: whatever this process has been asked meanwhile, and other processes. A thread that is always busy is taken
/// off its processor only at the next tick of the clock, and who wants to run there waits for milliseconds.
pub(crate) async fn give_way() {
    tokio::task::yield_now().await;
    std::thread::yield_now();
}

/// Threads for what is heavy, from the first time on that something is.
#[derive(Default)]
pub(crate) struct Heavy(OnceLock<Option<Runtime>>);

impl Heavy {
    /// Half of the processors stay free for everybody else.
    fn start() -> Option<Runtime> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads((processors / 2).max(1)).thread_name("heavy").on_thread_start(threads::be_patient);
        runtime.build().inspect_err(|error| tracing::warn!(%error, "there are no threads for what is heavy")).ok()
    }

    /// Does this where it keeps no worker from its tasks. While it waits for somebody, another's work is done.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let Some(threads) = self.0.get_or_init(Self::start) else { return work.await };
        let work = Within { server: Handle::current(), work: Box::pin(work.in_current_span()) };
        match AbortOnDropHandle::new(threads.spawn(work)).await {
            Ok(output) => output,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl Drop for Heavy {
    fn drop(&mut self) {
        // Whoever drops it may be a task, which must not wait for threads.
        if let Some(threads) = self.0.take().flatten() {
            threads.shutdown_background();
        }
    }
}

/// Work whose timers, connections and tasks are the server's, on whatever thread it is done.
struct Within<F> {
    server: Handle,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _within = this.server.enter();
        this.work.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_can_grow_is_heavy_before_it_is_large() {
        let check = |kind: &str, body: &str, want: bool| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]);
            assert_eq!(is_heavy(&headers, body.as_bytes()), want, "{} bytes of {kind}", body.len());
        };
        let long = "x".repeat(1000);
        check("application/json", &long, false);
        check("application/json", &"x".repeat(LARGE + 1), true);
        check("application/apply-patch+yaml", &long, false);
        check("application/apply-patch+yaml", &format!("a: &a {long}\nb: *a"), true);
        check("application/yaml", "a: &a []\nb: *a", false);
        check("application/json-patch+json", &long, false);
        check("application/json-patch+json", &format!("[{{\"op\":\"copy\"}}]{long}"), true);
    }

    /// The first is let on by the second, which can only run while the first waits: on this machine there may be one thread for both.
    #[tokio::test]
    async fn whoever_waits_leaves_the_turn_to_others() {
        let heavy = Heavy::default();
        let (let_on, waits) = tokio::sync::oneshot::channel::<u8>();
        let first = heavy.run(waits);
        let second = heavy.run(async {
            // Timers are the server's; these threads have none.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let_on.send(7)
        });
        let both = tokio::time::timeout(Duration::from_secs(10), futures::future::join(first, second)).await;
        assert_eq!(both, Ok((Ok(7), Ok(()))));
    }

    #[tokio::test]
    async fn nobody_works_for_a_client_that_has_gone() {
        let heavy = Heavy::default();
        let (held, gone) = tokio::sync::oneshot::channel::<()>();
        let request = heavy.run(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        let mut request = Box::pin(request);
        assert!(futures::poll!(&mut request).is_pending());
        drop(request);
        assert!(tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap().is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "too heavy")]
    async fn a_panic_is_of_whoever_asked() {
        Heavy::default().run(async { panic!("too heavy") }).await
    }
}
