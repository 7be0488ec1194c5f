//! The requests of one priority level: who may go on now, who waits in which queue, who is turned away.
//!
//! Fair queuing for requests as upstream has it: a flow is dealt a hand of queues and waits in the one with the least work; the
//! next to go on is the head of the queue that is furthest behind in `R`, the seat-seconds that each busy queue has been
//! due. Nothing here has a clock or waits: time is an argument, and who waits is woken through a channel.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use slab::Slab;
use tokio::sync::oneshot;

use super::demand::Demand;
use super::histogram::{self, Lasting};
use super::width::Width;

/// How long a request is thought to take before it has.
const ESTIMATED: f64 = 0.003;

/// What a level does with what it cannot take at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queuing {
    /// It takes everything.
    Exempt,
    Reject,
    Queue {
        queues: usize,
        hand_size: usize,
        length: usize,
    },
}

/// Who asks, for those who want to see what goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct Asker {
    pub(super) schema: String,
    pub(super) user: String,
    pub(super) verb: &'static str,
    pub(super) path: String,
    pub(super) flow: String,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) asker: Asker,
    pub(super) width: Width,
    pub(super) queue: Option<usize>,
    pub(super) arrived: Duration,
    /// `None` while it waits.
    pub(super) started: Option<Duration>,
    arrival_r: f64,
    wake: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) waiting: VecDeque<usize>,
    pub(super) executing: usize,
    pub(super) seats_in_use: usize,
    pub(super) next_dispatch_r: f64,
    pub(super) seats_waiting: usize,
    /// Seat-seconds of those who wait.
    pub(super) work: f64,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0
    }
}

#[derive(Debug)]
pub(super) enum Start {
    /// Why, as upstream's metric has it.
    Rejected(&'static str),
    Execute(usize),
    /// Until the channel says so.
    Wait(usize, oneshot::Receiver<()>),
}

#[derive(Debug)]
pub(super) struct QueueSet {
    queuing: Queuing,
    /// How many seats there are now.
    limit: usize,
    pub(super) queues: Vec<Queue>,
    pub(super) requests: Slab<Request>,
    /// When those who linger leave their seats.
    leaving: BinaryHeap<Reverse<(Duration, usize)>>,
    r: f64,
    last: Duration,
    robin: usize,
    enqueues: usize,
    /// Queues with anybody in them.
    active: usize,
    pub(super) waiting: usize,
    pub(super) executing: usize,
    pub(super) seats_in_use: usize,
    pub(super) seats_waiting: usize,
    pub(super) dispatched: u64,
    pub(super) rejected: u64,
    pub(super) cancelled: u64,
    pub(super) demand: Demand,
    /// What the last division of seats aimed at.
    pub(super) target: f64,
    /// Seats by the configured shares.
    pub(super) nominal: usize,
    pub(super) shares: Shares,
    /// How long its queue was with the last that was put into one.
    pub(super) enqueued: Option<usize>,
}

/// For how long what part of a level was in use.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) seats: Lasting,
    pub(super) executing: Lasting,
    pub(super) waiting: Lasting,
    /// Of the nominal seats.
    pub(super) demand: Lasting,
}

impl QueueSet {
    pub(super) fn new(queuing: Queuing, limit: usize, now: Duration) -> Self {
        let mut set = Self {
            queuing,
            limit: 0,
            queues: Vec::new(),
            requests: Slab::new(),
            leaving: BinaryHeap::new(),
            r: 0.0,
            last: now,
            robin: 0,
            enqueues: 0,
            active: 0,
            waiting: 0,
            executing: 0,
            seats_in_use: 0,
            seats_waiting: 0,
            dispatched: 0,
            rejected: 0,
            cancelled: 0,
            demand: Demand::new(now),
            target: 0.0,
            nominal: limit,
            shares: Shares {
                seats: Lasting::new(histogram::SEAT_SHARES),
                executing: Lasting::new(histogram::REQUEST_SHARES),
                waiting: Lasting::new(histogram::REQUEST_SHARES),
                demand: Lasting::new(histogram::DEMANDS),
            },
            enqueued: None,
        };
        set.configure(queuing, limit, now);
        set
    }

    pub(super) fn configure(&mut self, queuing: Queuing, limit: usize, now: Duration) {
        self.sync(now);
        (self.queuing, self.limit) = (queuing, limit);
        if let Queuing::Queue { queues, .. } = queuing
            && queues > self.queues.len()
        {
            self.queues.resize_with(queues, Queue::default);
        }
        self.drop_unwanted();
        self.dispatch(now);
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.executing == 0
    }

    /// A queue too many goes once nobody is in it.
    fn drop_unwanted(&mut self) {
        let wanted = if let Queuing::Queue { queues, .. } = self.queuing { queues } else { 0 };
        while self.queues.len() > wanted
            && self.queues.last().is_some_and(|queue| queue.is_idle() && queue.seats_in_use == 0)
        {
            self.queues.pop();
        }
        self.robin = self.robin.min(self.queues.len().saturating_sub(1));
    }

    /// Brings the virtual time to `now`, and lets those go who have lingered long enough. First in every change.
    pub(super) fn sync(&mut self, now: Duration) {
        let mut left = false;
        while let Some(Reverse((when, id))) = self.leaving.peek().copied().filter(|Reverse((when, _))| *when <= now) {
            self.leaving.pop();
            self.advance(when);
            self.leave(id, when);
            left = true;
        }
        self.advance(now);
        if left {
            self.dispatch(now);
        }
    }

    fn advance(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        if !elapsed.is_zero() {
            self.note_shares(elapsed);
        }
        if self.active > 0 {
            let busy = (self.seats_in_use + self.seats_waiting).min(self.limit);
            self.r += busy as f64 / self.active as f64 * elapsed.as_secs_f64();
        }
    }

    fn note_shares(&mut self, elapsed: Duration) {
        let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        let places = if let Queuing::Queue { queues, length, .. } = self.queuing { queues * length } else { 1 };
        let wanted = self.seats_in_use + self.seats_waiting;
        self.shares.seats.add(share(self.seats_in_use, self.limit), elapsed);
        self.shares.executing.add(share(self.executing, self.limit), elapsed);
        self.shares.waiting.add(share(self.waiting, places), elapsed);
        self.shares.demand.add(share(wanted, self.nominal), elapsed);
    }

    pub(super) fn r(&self) -> f64 {
        self.r
    }

    /// When somebody leaves that others wait for.
    pub(super) fn next_leave(&self) -> Option<Duration> {
        self.leaving.peek().filter(|_| self.waiting > 0).map(|Reverse((when, _))| *when)
    }

    fn fits(&self, seats: usize) -> bool {
        match self.queuing {
            Queuing::Exempt => true,
            // More than there are at all: once everybody else is gone.
            _ if seats > self.limit => self.executing == 0,
            _ => self.seats_in_use + seats <= self.limit,
        }
    }

    /// A request comes; `hash` is its flow's.
    pub(super) fn start(&mut self, asker: Asker, width: Width, hash: u64, now: Duration) -> Start {
        self.sync(now);
        let seats = width.seats();
        let mut request =
            Request { asker, width, queue: None, arrived: now, started: None, arrival_r: self.r, wake: None };
        let Queuing::Queue { queues, hand_size, length } = self.queuing else {
            if !self.fits(seats) {
                self.rejected += 1;
                return Start::Rejected("concurrency-limit");
            }
            let id = self.requests.insert(request);
            self.begin(id, now);
            return Start::Execute(id);
        };
        let index = self.choose(hash, queues, hand_size);
        let (full, r) = (self.seats_in_use >= self.limit, self.r);
        let goes_on = self.waiting == 0 && self.fits(seats);
        let Some(queue) = self.queues.get_mut(index).filter(|queue| !full || queue.waiting.len() < length) else {
            self.rejected += 1;
            return Start::Rejected("queue-full");
        };
        if queue.is_idle() {
            queue.next_dispatch_r = r;
            self.active += 1;
        }
        request.queue = Some(index);
        if goes_on {
            self.enqueued = Some(1);
            // Nobody is before it, so that there is nothing to compare.
            self.robin = index;
            let id = self.requests.insert(request);
            self.limit_width(id);
            self.begin(id, now);
            return Start::Execute(id);
        }
        let (wake, woken) = oneshot::channel();
        request.wake = Some(wake);
        queue.seats_waiting += seats;
        queue.work += width.work(ESTIMATED);
        let id = self.requests.insert(request);
        queue.waiting.push_back(id);
        self.enqueued = Some(queue.waiting.len());
        self.waiting += 1;
        self.seats_waiting += seats;
        self.note_demand(now);
        self.bound(index);
        self.dispatch(now);
        match self.requests.get(id).is_some_and(|request| request.started.is_some()) {
            true => Start::Execute(id),
            false => Start::Wait(id, woken),
        }
    }

    /// The queue with the least work of those that the flow was dealt; the first look goes round.
    fn choose(&mut self, mut hash: u64, queues: usize, hand_size: usize) -> usize {
        const MOST: usize = 32;
        let mut hand = [0_usize; MOST];
        let size = hand_size.clamp(1, MOST).min(queues.max(1));
        let mut drawn = [0_usize; MOST];
        for i in 0..size {
            let left = (queues - i).max(1) as u64;
            let draw = usize::try_from(hash % left).unwrap_or_default();
            hash /= left;
            let mut card = draw;
            for earlier in drawn.iter().take(i).rev() {
                card += usize::from(card >= *earlier);
            }
            if let (Some(drawn), Some(held)) = (drawn.get_mut(i), hand.get_mut(i)) {
                (*drawn, *held) = (draw, card);
            }
        }
        let offset = self.enqueues % size;
        self.enqueues += 1;
        let held = hand.iter().take(size);
        let (mut best, mut least) = (0, f64::INFINITY);
        for index in held.clone().skip(offset).chain(held.take(offset)) {
            let work = self.queues.get(*index).map_or(f64::INFINITY, |queue| queue.work);
            if work < least {
                (best, least) = (*index, work);
            }
        }
        best
    }

    /// Takes its seats.
    fn begin(&mut self, id: usize, now: Duration) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.started = Some(now);
        let (seats, work) = (request.width.seats(), request.width.work(ESTIMATED));
        if let Some(queue) = request.queue.and_then(|index| self.queues.get_mut(index)) {
            queue.executing += 1;
            queue.seats_in_use += seats;
            queue.next_dispatch_r += work;
        }
        self.executing += 1;
        self.dispatched += 1;
        self.seats_in_use += seats;
        self.note_demand(now);
    }

    fn note_demand(&mut self, now: Duration) {
        self.demand.set(self.seats_in_use + self.seats_waiting, now);
    }

    /// Lets go on whoever can.
    fn dispatch(&mut self, now: Duration) {
        while self.waiting > 0 && self.seats_in_use < self.limit && self.dispatch_one(now) {}
    }

    /// The head of the queue whose next request would be done first in virtual time; equals take turns.
    fn dispatch_one(&mut self, now: Duration) -> bool {
        let (mut best, mut least) = (None, f64::INFINITY);
        let count = self.queues.len();
        for step in 1..=count {
            let index = (self.robin + step) % count;
            let Some(queue) = self.queues.get(index) else { continue };
            let Some(head) = queue.waiting.front().and_then(|id| self.requests.get(*id)) else { continue };
            let finish = queue.next_dispatch_r + head.width.work(ESTIMATED);
            if finish < least {
                (best, least) = (Some(index), finish);
            }
        }
        let Some((index, queue)) = best.and_then(|index| Some((index, self.queues.get_mut(index)?))) else {
            return false;
        };
        let Some(id) = queue.waiting.front().copied() else { return false };
        let Some(seats) = self.requests.get(id).map(|request| request.width.seats()) else { return false };
        if !self.fits(seats) {
            return false;
        }
        self.robin = index;
        self.unqueue(id);
        let wake = self.requests.get_mut(id).and_then(|request| request.wake.take());
        if wake.is_some_and(|wake| wake.send(()).is_ok()) {
            self.limit_width(id);
            self.begin(id, now);
        } else {
            // It has gone, and will say so itself; its queue has nothing to do with it any more.
            self.requests.get_mut(id).into_iter().for_each(|request| request.queue = None);
            self.active -= usize::from(self.queues.get(index).is_some_and(Queue::is_idle));
        }
        self.bound(index);
        self.note_demand(now);
        true
    }

    /// No more seats at the end than there are; it keeps them for longer instead.
    fn limit_width(&mut self, id: usize) {
        let limit = self.limit;
        if let Some(request) = self.requests.get_mut(id) {
            request.width = request.width.narrowed(limit);
        }
    }

    /// Takes a request out of its queue.
    fn unqueue(&mut self, id: usize) {
        let Some(request) = self.requests.get(id) else { return };
        let (seats, work) = (request.width.seats(), request.width.work(ESTIMATED));
        let Some(queue) = request.queue.and_then(|index| self.queues.get_mut(index)) else { return };
        let Some(at) = queue.waiting.iter().position(|waiting| *waiting == id) else { return };
        queue.waiting.remove(at);
        queue.seats_waiting -= seats;
        // Sums of fractions do not come back to nothing by themselves.
        queue.work = if queue.waiting.is_empty() { 0.0 } else { queue.work - work };
        self.waiting -= 1;
        self.seats_waiting -= seats;
    }

    /// In virtual time, too, nothing is dispatched before it came.
    fn bound(&mut self, index: usize) {
        let Some(queue) = self.queues.get_mut(index) else { return };
        let Some(head) = queue.waiting.front().and_then(|id| self.requests.get(*id)) else { return };
        queue.next_dispatch_r = queue.next_dispatch_r.max(head.arrival_r);
    }

    /// A request is done, or was given up while it waited; `true` if it had begun.
    pub(super) fn finish(&mut self, id: usize, now: Duration) -> bool {
        self.sync(now);
        let Some(request) = self.requests.get_mut(id) else { return false };
        let Some(started) = request.started else {
            let index = request.queue;
            self.unqueue(id);
            self.requests.try_remove(id);
            self.cancelled += 1;
            self.rejected += 1;
            if let Some(index) = index {
                self.active -= usize::from(self.queues.get(index).is_some_and(Queue::is_idle));
                self.bound(index);
            }
            self.note_demand(now);
            self.drop_unwanted();
            return false;
        };
        let queue = request.queue;
        let (seats, extra) = (request.width.initial, request.width.extra);
        self.executing -= 1;
        if let Some((index, queue)) = queue.and_then(|index| Some((index, self.queues.get_mut(index)?))) {
            queue.executing -= 1;
            // What it took less than was thought is given back, and what it took more is owed.
            let took = now.saturating_sub(started).as_secs_f64();
            queue.next_dispatch_r -= seats as f64 * (ESTIMATED - took);
            if queue.is_idle() {
                self.active -= 1;
            }
            self.bound(index);
        }
        match extra.is_zero() {
            true => self.leave(id, now),
            false => self.leaving.push(Reverse((now + extra, id))),
        }
        self.dispatch(now);
        true
    }

    /// Gives its seats back.
    fn leave(&mut self, id: usize, now: Duration) {
        let Some(request) = self.requests.try_remove(id) else { return };
        let seats = request.width.seats();
        self.seats_in_use -= seats;
        if let Some(queue) = request.queue.and_then(|index| self.queues.get_mut(index)) {
            queue.seats_in_use -= seats;
        }
        self.note_demand(now);
        self.drop_unwanted();
    }
}
