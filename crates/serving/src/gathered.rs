//! Writes that go out together: many streams of one HTTP/2 connection have something to say at the same moment, and a TLS record and a
//! call to the kernel for each of them is most of what saying it costs.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::COPIED_AT_ONCE;

/// What is gathered at most; a piece of this size gains nothing.
const GATHERED: usize = 64 << 10;
/// Where the first piece is larger, so are those that follow.
const SMALL: usize = 4 << 10;

/// A stream whose small writes wait for the flush. The buffer exists only between a write and a flush.
pub(crate) struct Gathered<S> {
    stream: S,
    waiting: BytesMut,
    /// Otherwise everything is passed on at once, for those who do not flush.
    is_gathering: bool,
    /// A flush has let the other tasks go first: those that were woken together write together.
    has_waited: bool,
}

impl<S: AsyncWrite + Unpin> Gathered<S> {
    pub(crate) fn new(stream: S, is_gathering: bool) -> Self {
        Self { stream, waiting: BytesMut::new(), is_gathering, has_waited: false }
    }

    fn gather(&mut self, bytes: &[u8]) {
        bytes.chunks(COPIED_AT_ONCE).for_each(|part| self.waiting.extend_from_slice(part));
    }

    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, &self.waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.waiting.advance(written),
            }
        }
        self.waiting = BytesMut::new();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.is_gathering {
            return Pin::new(&mut this.stream).poll_write(context, bytes);
        }
        if this.waiting.len() + bytes.len() > GATHERED {
            ready!(this.poll_drain(context))?;
            if bytes.len() >= GATHERED {
                return Pin::new(&mut this.stream).poll_write(context, bytes);
            }
        }
        this.gather(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        if !this.is_gathering || size > GATHERED {
            ready!(this.poll_drain(context))?;
            return Pin::new(&mut this.stream).poll_write_vectored(context, pieces);
        }
        if this.waiting.len() + size > GATHERED {
            ready!(this.poll_drain(context))?;
        }
        if this.waiting.is_empty() && size > SMALL {
            this.waiting.reserve(GATHERED);
        }
        pieces.iter().for_each(|piece| this.gather(piece));
        Poll::Ready(Ok(size))
    }

    fn is_write_vectored(&self) -> bool {
        self.is_gathering || self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.waiting.is_empty() && !std::mem::replace(&mut this.has_waited, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(this.poll_drain(context))?;
        this.has_waited = false;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Remembers each write, and takes at most so much of it.
    struct Written(Arc<Mutex<Vec<Vec<u8>>>>, usize);

    impl AsyncWrite for Written {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.1);
            self.0.lock().unwrap().push(bytes[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn everything_arrives_in_order_and_in_few_pieces() {
        for takes in [usize::MAX, 1000, 7] {
            let written = Arc::new(Mutex::new(Vec::new()));
            let mut stream = Gathered::new(Written(written.clone(), takes), true);
            let mut sent = Vec::new();
            for round in 0..40_usize {
                let piece = vec![round as u8; round * 137];
                stream.write_all(&piece).await.unwrap();
                sent.extend(piece);
            }
            let large = vec![200; GATHERED + 1];
            stream.write_all(&large).await.unwrap();
            sent.extend(large);
            stream.write_all(b"end").await.unwrap();
            sent.extend(b"end");
            assert_ne!(written.lock().unwrap().concat(), sent, "the end waits");
            stream.flush().await.unwrap();
            let written = written.lock().unwrap();
            assert_eq!(written.concat(), sent);
            assert!(takes < usize::MAX || written.len() < 6, "{} writes", written.len());
        }
    }
}
