//! Large answers, a chunk at a time, and only some of them at once: whoever asks for little does not wait for all who ask for much.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tokio::sync::Semaphore;
use tokio_util::sync::PollSemaphore;

use super::{Body, BoxError};
use crate::heavy::give_way;

/// What is sent in one turn.
pub(crate) const CHUNK: usize = 128 << 10;

/// Half of the processors stay free for everybody else.
static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    Arc::new(Semaphore::new((processors / 2).max(1)))
});

/// A body of these chunks, of which some client's next is sent when it is its turn.
pub(crate) fn in_turns(chunks: impl Iterator<Item = Bytes> + Send + Unpin + 'static, size: Option<usize>) -> Body {
    let left = size.and_then(|size| u64::try_from(size).ok());
    InTurns { chunks, left, turns: PollSemaphore::new(TURNS.clone()) }.boxed_unsync()
}

/// The same of bytes that are all there.
pub(super) fn whole_in_turns(mut bytes: Bytes) -> Body {
    let size = bytes.len();
    let chunks = std::iter::from_fn(move || {
        let chunk = bytes.split_to(CHUNK.min(bytes.len()));
        (!chunk.is_empty()).then_some(chunk)
    });
    in_turns(chunks, Some(size))
}

struct InTurns<I> {
    chunks: I,
    /// `None` where nobody knows.
    left: Option<u64>,
    turns: PollSemaphore,
}

impl<I: Iterator<Item = Bytes> + Unpin> hyper::body::Body for InTurns<I> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let turn = ready!(this.turns.poll_acquire(context));
        let chunk = this.chunks.next();
        if chunk.is_some() {
            // It ends when the chunk has been sent as far as the connection takes it, which it does before it lets go of this thread,
            // and when everything that has come meanwhile has been seen to. A client that does not read keeps no turn.
            tokio::spawn(async move {
                give_way().await;
                drop(turn);
            });
        }
        let sent = chunk.as_ref().and_then(|chunk| u64::try_from(chunk.len()).ok()).unwrap_or_default();
        this.left = this.left.map(|left| left.saturating_sub(sent));
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    #[tokio::test]
    async fn everything_is_sent_and_its_size_is_known() {
        let bytes: Bytes = (0..CHUNK * 3 + 7).map(|index| index as u8).collect();
        let bodies = [0, 1, 2].map(|_| whole_in_turns(bytes.clone()));
        let sizes = bodies.each_ref().map(|body| body.size_hint().exact());
        assert_eq!(sizes, [Some(bytes.len() as u64); 3]);
        let read = futures::future::join_all(bodies.into_iter().map(|body| body.collect())).await;
        for body in read {
            assert_eq!(body.unwrap().to_bytes(), bytes);
        }
    }

    /// Those who have been given a chunk and do not come back for the next keep nobody waiting.
    #[tokio::test]
    async fn who_does_not_read_keeps_no_turn() {
        let bytes = Bytes::from(vec![7; CHUNK * 2]);
        let mut stalled: Vec<_> = (0..100).map(|_| whole_in_turns(bytes.clone())).collect();
        for body in &mut stalled {
            assert!(body.frame().await.unwrap().is_ok());
        }
        assert_eq!(whole_in_turns(bytes.clone()).collect().await.unwrap().to_bytes(), bytes);
    }
}
