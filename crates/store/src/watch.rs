//! Watches: a stream for the reader, and the registry that wakes only those whose keys changed.
//!
//! A watcher holds no events. It remembers the first revision that concerns it and reads on from there in the published
//! history when it is polled, so a slow reader costs nothing; it ends when history has moved past it.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use arc_swap::ArcSwap;
use futures::{Stream, stream::BoxStream};
use parking_lot::Mutex;

use crate::{Batch, Event, Keys, Revision, StoreError, state::State};

/// Revisions looked through in one poll before other tasks get their turn.
const POLL_BUDGET: usize = 4096;

/// Batches of events, in order. After an error it ends.
pub struct Watch(Box<dyn Source>);

/// A stream of batches that can tell how far it is.
trait Source: Stream<Item = Result<Batch, StoreError>> + Send + Unpin {
    fn delivered(&self) -> Revision;
}

impl Watch {
    pub fn new(stream: impl Stream<Item = Result<Batch, StoreError>> + Send + 'static) -> Watch {
        Watch(Box::new(Plain { stream: Box::pin(stream), last: 0 }))
    }

    /// Every event up to this revision has been handed out.
    pub fn delivered(&self) -> Revision {
        self.0.delivered()
    }
}

/// A stream of which nothing is known but what it handed out.
struct Plain {
    stream: BoxStream<'static, Result<Batch, StoreError>>,
    last: Revision,
}

impl Stream for Plain {
    type Item = Result<Batch, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = self.stream.as_mut().poll_next(cx);
        if let Poll::Ready(Some(Ok(batch))) = &item {
            self.last = batch.revision;
        }
        item
    }
}

impl Source for Plain {
    fn delivered(&self) -> Revision {
        self.last
    }
}

impl Stream for Watch {
    type Item = Result<Batch, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(cx)
    }
}

/// The published state and those who wait for the next one.
pub(crate) struct Published {
    state: ArcSwap<State>,
    watchers: Mutex<Watchers>,
}

#[derive(Default)]
struct Watchers {
    next_id: u64,
    slots: BTreeMap<u64, Arc<Slot>>,
    /// Every watcher has been told of all revisions up to this one.
    told: Revision,
    closed: bool,
}

struct Slot {
    keys: Keys,
    signal: Mutex<Signal>,
}

#[derive(Default)]
struct Signal {
    /// The first revision with an event for this watcher that it has not been told of.
    pending: Option<Revision>,
    closed: bool,
    waker: Option<Waker>,
}

impl Published {
    pub(crate) fn new(state: State) -> Arc<Published> {
        let watchers = Mutex::new(Watchers { told: state.revision, ..Watchers::default() });
        Arc::new(Published { state: ArcSwap::from_pointee(state), watchers })
    }

    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<State>> {
        self.state.load()
    }

    pub(crate) fn store(&self, state: State) {
        self.state.store(Arc::new(state));
    }

    /// Wakes every watcher that a revision after `after` concerns.
    pub(crate) fn wake(&self, after: Revision) {
        let state = self.load();
        let mut watchers = self.watchers.lock();
        watchers.told = state.revision;
        for slot in watchers.slots.values() {
            let mut signal = slot.signal.lock();
            if signal.pending.is_some() {
                continue;
            }
            signal.pending =
                state.since(after + 1).find(|past| slot.concerns(&past.batch)).map(|past| past.batch.revision);
            if signal.pending.is_some()
                && let Some(waker) = signal.waker.take()
            {
                waker.wake();
            }
        }
    }

    /// Ends every watch, and those that come later.
    pub(crate) fn close(&self) {
        let mut watchers = self.watchers.lock();
        watchers.closed = true;
        for slot in watchers.slots.values() {
            let mut signal = slot.signal.lock();
            signal.closed = true;
            signal.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) fn watch(self: &Arc<Self>, keys: Keys, from: Revision) -> Result<Watch, StoreError> {
        let slot = Arc::new(Slot { keys, signal: Mutex::default() });
        let mut watchers = self.watchers.lock();
        if watchers.closed {
            return Err(StoreError::Closed);
        }
        // Registered before the state is read: what is published after that read is signalled.
        let id = watchers.next_id;
        watchers.next_id += 1;
        watchers.slots.insert(id, slot.clone());
        drop(watchers);
        let state = self.load();
        // Nothing happened at the revision a store starts from, 1 or where a snapshot left off: there is no event to wait for.
        let next = if from > 0 { from.max(state.oldest()) } else { state.revision + 1 };
        let cursor = Cursor { published: self.clone(), slot, id, next, reading: next <= state.revision, ended: false };
        if from > 0 && from < state.compacted {
            return Err(StoreError::Compacted { oldest: state.compacted });
        }
        Ok(Watch(Box::new(cursor)))
    }
}

impl Slot {
    fn concerns(&self, batch: &Batch) -> bool {
        batch.events.iter().any(|event| self.keys.contains(&event.kv.key))
    }

    /// The part of a batch that this watcher asked for, shared if it is all of it.
    fn pick(&self, batch: &Batch) -> Option<Batch> {
        let matching = batch.events.iter().filter(|event| self.keys.contains(&event.kv.key)).count();
        match matching {
            0 => None,
            all if all == batch.events.len() => Some(batch.clone()),
            _ => {
                let events = batch.events.iter().filter(|event| self.keys.contains(&event.kv.key));
                Some(Batch { revision: batch.revision, events: events.cloned().collect::<Arc<[Event]>>() })
            }
        }
    }
}

/// One watcher's place in history.
struct Cursor {
    published: Arc<Published>,
    slot: Arc<Slot>,
    id: u64,
    /// Nothing before this revision is of interest any more.
    next: Revision,
    /// There may be something between `next` and the published revision.
    reading: bool,
    ended: bool,
}

impl Cursor {
    fn end(&mut self, error: StoreError) -> Poll<Option<Result<Batch, StoreError>>> {
        self.ended = true;
        Poll::Ready(Some(Err(error)))
    }

    /// Reads on in history. `Ready(None)`: the end is reached; `Pending`: the budget is.
    fn read(&mut self) -> Poll<Option<Result<Batch, StoreError>>> {
        let state = self.published.load();
        if self.next < state.oldest() {
            drop(state);
            return self.end(StoreError::SlowWatcher);
        }
        for (seen, past) in state.since(self.next).enumerate() {
            if seen == POLL_BUDGET {
                return Poll::Pending;
            }
            self.next = past.batch.revision + 1;
            if let Some(batch) = self.slot.pick(&past.batch) {
                return Poll::Ready(Some(Ok(batch)));
            }
        }
        self.reading = false;
        Poll::Ready(None)
    }
}

impl Stream for Cursor {
    type Item = Result<Batch, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        loop {
            if this.reading {
                match this.read() {
                    Poll::Ready(None) => {}
                    Poll::Ready(item) => return Poll::Ready(item),
                    Poll::Pending => {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
            let mut signal = this.slot.signal.lock();
            match signal.pending.take() {
                Some(first) => {
                    this.next = this.next.max(first);
                    this.reading = true;
                }
                None if signal.closed => {
                    drop(signal);
                    return this.end(StoreError::Closed);
                }
                None => {
                    signal.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Source for Cursor {
    fn delivered(&self) -> Revision {
        // In this order: whatever is signalled between the two is seen in `pending`.
        let told = self.published.watchers.lock().told;
        let first = match self.slot.signal.lock().pending {
            _ if self.reading || self.ended => self.next,
            Some(pending) => self.next.max(pending),
            None => self.next.max(told + 1),
        };
        let state = self.published.load();
        if self.ended || first < state.oldest() {
            return (first - 1).min(state.revision);
        }
        let concerning = state.since(first).find(|past| self.slot.concerns(&past.batch));
        concerning.map_or(state.revision, |past| past.batch.revision - 1)
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.published.watchers.lock().slots.remove(&self.id);
    }
}
