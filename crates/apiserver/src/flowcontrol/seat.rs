//! The seats of one request: taken, kept until its answer is written, given back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, SizeHint};

use super::watchers::Watching;
use super::width::Width;
use super::{Counted, Room, now};
use crate::http::{Body, BoxError};

/// A place in a level, waiting or taken. Dropped, it is given back, or given up.
pub(crate) struct Seat(Option<Kind>);

enum Kind {
    Fair(Fair),
    Counted(Arc<AtomicUsize>),
}

struct Fair {
    room: Arc<Room>,
    id: usize,
    counted: Arc<Counted>,
    width: Width,
    /// When it came; when it went on, once it has.
    since: Duration,
    is_seated: bool,
    is_watch: bool,
}

impl Seat {
    pub(super) fn none() -> Self {
        Self(None)
    }

    pub(super) fn counted(counter: Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(Some(Kind::Counted(counter)))
    }

    pub(super) fn waiting(room: Arc<Room>, id: usize, counted: Arc<Counted>, width: Width, is_watch: bool) -> Self {
        counted.waiting.fetch_add(1, Ordering::Relaxed);
        counted.waiting_seats.fetch_add(width.seats(), Ordering::Relaxed);
        Self(Some(Kind::Fair(Fair { room, id, counted, width, since: now(), is_seated: false, is_watch })))
    }

    /// It goes on.
    pub(super) fn seated(mut self) -> Self {
        if let Some(Kind::Fair(fair)) = &mut self.0 {
            fair.is_seated = true;
            let (counted, seats) = (&fair.counted, fair.width.seats());
            counted.waiting.fetch_sub(1, Ordering::Relaxed);
            counted.waiting_seats.fetch_sub(seats, Ordering::Relaxed);
            counted.executing.fetch_add(1, Ordering::Relaxed);
            counted.executing_seats.fetch_add(seats, Ordering::Relaxed);
            counted.dispatched.fetch_add(1, Ordering::Relaxed);
            let [went_on, _] = &counted.waits;
            let now = now();
            went_on.observe(now.saturating_sub(fair.since).as_secs_f64());
            fair.since = now;
        }
        self
    }

    /// It has waited for too long; after how many seconds it should come again.
    pub(super) fn give_up(self) -> i64 {
        let Some(Kind::Fair(fair)) = &self.0 else { return 1 };
        let [_, _, late] = &fair.counted.rejected;
        late.fetch_add(1, Ordering::Relaxed);
        fair.room.refuse()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        match self.0.take() {
            None => (),
            Some(Kind::Counted(counter)) => {
                counter.fetch_sub(1, Ordering::Relaxed);
            }
            Some(Kind::Fair(fair)) => {
                let (counted, seats) = (&fair.counted, fair.width.seats());
                let (requests, of_seats) = match fair.is_seated {
                    true => (&counted.executing, &counted.executing_seats),
                    false => (&counted.waiting, &counted.waiting_seats),
                };
                requests.fetch_sub(1, Ordering::Relaxed);
                of_seats.fetch_sub(seats, Ordering::Relaxed);
                let now = now();
                let ([_, given_up], [regular, watching]) = (&counted.waits, &counted.executions);
                let seen = match (fair.is_seated, fair.is_watch) {
                    (false, _) => given_up,
                    (true, false) => regular,
                    (true, true) => watching,
                };
                seen.observe(now.saturating_sub(fair.since).as_secs_f64());
                fair.room.set.lock().finish(fair.id, now);
                watch(&fair.room);
            }
        }
    }
}

/// Sees to it that who waits for seats on which somebody lingers gets them in time. Without anybody waiting, they are given back
/// when somebody comes.
pub(super) fn watch(room: &Arc<Room>) {
    let Some(when) = room.set.lock().next_leave() else { return };
    if room.is_watched.swap(true, Ordering::Relaxed) {
        return;
    }
    let room = room.clone();
    tokio::spawn(async move {
        tokio::time::sleep(when.saturating_sub(now())).await;
        room.is_watched.store(false, Ordering::Relaxed);
        room.set.lock().sync(now());
        watch(&room);
    });
}

/// Keeps the seats until the answer is written: a watch until it has told what was there when it began.
pub(super) fn keep(
    response: Response<Body>,
    seat: Option<Seat>,
    watching: Option<Watching>,
    begins: bool,
) -> Response<Body> {
    // What is already written in memory takes no more work.
    let is_whole = response.body().size_hint().exact().is_some();
    if watching.is_none() && (seat.is_none() || is_whole) {
        return response;
    }
    response.map(|body| Seated { body, seat, begins, _watching: watching }.boxed_unsync())
}

struct Seated {
    body: Body,
    seat: Option<Seat>,
    /// Only what is there at once counts.
    begins: bool,
    _watching: Option<Watching>,
}

impl hyper::body::Body for Seated {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        let is_over = match &polled {
            Poll::Pending => this.begins,
            Poll::Ready(frame) => !matches!(frame, Some(Ok(_))),
        };
        if is_over {
            this.seat = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
