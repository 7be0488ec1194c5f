//! What a connection carries, so that one that carries nothing for a while can be closed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use hyper::Response;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a connection may carry nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// The requests of a connection, and when that last changed.
#[derive(Clone)]
pub(crate) struct Load(Arc<Mutex<Instant>>);

/// One request, or its answer while it is streamed.
pub(crate) struct Carried(Load);

/// A body whose connection is not idle until it has been sent.
pub struct Carrying<B> {
    body: B,
    _carried: Option<Carried>,
}

impl Default for Load {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Load {
    pub(crate) fn begin(&self) -> Carried {
        Carried(self.clone())
    }

    /// Waits until nothing was carried for [`IDLE_TIMEOUT`].
    pub(crate) async fn none(&self) {
        loop {
            // Beside this one, the service holds one.
            let is_none = || Arc::strong_count(&self.0) <= 2;
            let idle_since = if is_none() { *self.0.lock() } else { Instant::now() };
            tokio::time::sleep_until(idle_since + IDLE_TIMEOUT).await;
            if is_none() && self.0.lock().elapsed() >= IDLE_TIMEOUT {
                return;
            }
        }
    }
}

impl Carried {
    /// A body that is streamed is still carried when its answer has begun; one that is there as a whole is not.
    pub(crate) fn until_sent<B: Body>(self, response: Response<B>) -> Response<Carrying<B>> {
        response.map(|body| {
            let is_streamed = body.size_hint().exact().is_none();
            Carrying { body, _carried: is_streamed.then_some(self) }
        })
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        *self.0.0.lock() = Instant::now();
    }
}

impl<B: Body + Unpin> Body for Carrying<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_a_while_after_the_last_thing_it_carried() {
        let load = Load::default();
        let begun = Instant::now();
        let service = load.clone();
        let idle = tokio::spawn(async move {
            load.none().await;
            begun.elapsed().as_secs()
        });
        let step = Duration::from_secs(50);
        tokio::time::sleep(step).await;
        let watch = service.begin();
        tokio::time::sleep(4 * step).await;
        drop(watch);
        assert_eq!(idle.await.unwrap(), 250 + 90);
    }
}
