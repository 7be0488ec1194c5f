//! A connection that is driven by whoever waits for an answer on it.
//!
//! A task of its own would be woken up for every request, and would wake up whoever waits for the answer: on a call to a
//! webhook that is a good part of the time. While nobody waits, nobody looks; what was closed meanwhile is found when the
//! connection is wanted again.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use ::http::{Request, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::SendRequest;

use crate::http::{Body, BoxError};

/// A connection and the way to ask on it.
pub(crate) struct Line {
    sender: SendRequest<Body>,
    connection: Connection,
}

/// Nothing once it is over.
struct Connection(Option<BoxFuture<'static, hyper::Result<()>>>);

impl Connection {
    fn poll(&mut self, context: &mut Context<'_>) {
        // What went wrong is told to whoever waits for the answer.
        if self.0.as_mut().is_some_and(|connection| connection.as_mut().poll(context).is_ready()) {
            self.0 = None;
        }
    }

    /// Carries bytes for as long as `work` waits for them.
    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.poll(context);
            work.as_mut().poll(context)
        })
        .await
    }
}

impl Line {
    pub(super) fn new(sender: SendRequest<Body>, connection: BoxFuture<'static, hyper::Result<()>>) -> Self {
        Self { sender, connection: Connection(Some(connection)) }
    }

    /// Asks; the request comes back if it was not sent.
    pub(super) async fn ask(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        // One that is closed says so itself.
        let _ = self.connection.drive(self.sender.ready()).await;
        self.connection.drive(self.sender.try_send_request(request)).await
    }

    pub(super) async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        self.connection.drive(work).await
    }

    /// Whether the other side left it open, as far as is known, and nothing is on its way on it: an answer may be there before
    /// the whole request was sent.
    pub(super) fn is_free(&mut self) -> bool {
        self.connection.poll(&mut Context::from_waker(Waker::noop()));
        self.connection.0.is_some() && self.sender.is_ready()
    }

    /// From here on it is nobody's: for what is carried long after the answer.
    pub(crate) fn detach(self) -> SendRequest<Body> {
        if let Some(connection) = self.connection.0 {
            tokio::spawn(connection);
        }
        self.sender
    }
}

/// The body of an answer, which comes as it is read; its line goes where `done` says once it was read to the end.
pub(crate) struct Answer<F: FnOnce(Line)> {
    body: Incoming,
    has_ended: bool,
    lent: Option<(Line, F)>,
}

impl<F: FnOnce(Line)> Answer<F> {
    pub(crate) fn new(body: Incoming, line: Line, done: F) -> Self {
        Self { body, has_ended: false, lent: Some((line, done)) }
    }
}

impl<F: FnOnce(Line) + Unpin> hyper::body::Body for Answer<F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let answer = self.get_mut();
        if let Some((line, _)) = &mut answer.lent {
            line.connection.poll(context);
        }
        let frame = Pin::new(&mut answer.body).poll_frame(context);
        answer.has_ended |= matches!(frame, Poll::Ready(None));
        frame.map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: FnOnce(Line)> Drop for Answer<F> {
    fn drop(&mut self) {
        // Whoever left before the end wants no more of it: the line is closed, and the other side knows.
        if let Some((line, done)) = self.lent.take_if(|_| self.has_ended || self.body.is_end_stream()) {
            done(line);
        }
    }
}
