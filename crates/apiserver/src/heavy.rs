//! Work that takes long and leaves room for others: requests with large bodies get threads of their own, and not all of the machine.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use http::{HeaderMap, header};
use rustix::process::{geteuid, setpriority_process};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

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

/// How nice a thread is to all others while it works on something heavy. Less would not do: how soon whoever wakes up gets the processor
/// of a running thread depends on both slices and on this, and ours are short.
const NICE: i32 = 19;

pub(crate) struct Heavy(Semaphore);

impl Default for Heavy {
    /// Half of the processors stay free for everybody else.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Semaphore::new((processors / 2).max(1)))
    }
}

impl Heavy {
    /// Runs a heavy request when it is its turn, so that it keeps no worker from its tasks. While it waits for somebody, it is
    /// another's turn.
    pub(crate) async fn run<F: Future>(&self, request: F) -> F::Output {
        if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return request.await;
        }
        let mut request = pin!(request);
        loop {
            // It is never closed.
            let turn = self.0.acquire().await;
            let step = |cx: &mut Context<'_>| {
                Poll::Ready(tokio::task::block_in_place(|| {
                    let _nice = Nice::begin();
                    // Who has taken over this worker was woken on this processor before that, and would wait for the next tick.
                    std::thread::yield_now();
                    request.as_mut().poll(cx)
                }))
            };
            let polled = poll_fn(step).await;
            drop(turn);
            if let Poll::Ready(output) = polled {
                return output;
            }
            // What it waits for wakes this task.
            let mut woken = false;
            poll_fn(|_| if std::mem::replace(&mut woken, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        }
    }
}

/// This thread gives way to others. Only root may take that back, so nobody else begins.
struct Nice;

impl Nice {
    fn begin() -> Option<Self> {
        (geteuid().is_root() && setpriority_process(None, NICE).is_ok()).then_some(Self)
    }
}

impl Drop for Nice {
    fn drop(&mut self) {
        if let Err(error) = setpriority_process(None, 0) {
            tracing::warn!(%error, "a thread stays nice");
        }
    }
}

#[cfg(test)]
mod tests {
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

    /// With one turn for all, the first is let on by the second, which can only run while the first waits.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_waits_leaves_the_turn_to_others() {
        let heavy = Heavy(Semaphore::new(1));
        let (let_on, waits) = tokio::sync::oneshot::channel::<u8>();
        let first = heavy.run(waits);
        let second = heavy.run(async {
            tokio::task::yield_now().await;
            let_on.send(7)
        });
        let both = futures::future::join(first, second);
        let both = tokio::time::timeout(std::time::Duration::from_secs(10), both).await;
        assert_eq!(both, Ok((Ok(7), Ok(()))));
    }
}
