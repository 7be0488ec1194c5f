//! client-go's work queue: de-duplicating, never the same item at two workers, with delayed and rate-limited adds.
//!
//! Delayed items are moved by whoever waits in [`WorkQueue::get`], on a timer for the earliest one: an empty queue sets none.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Key;

/// Upstream's item back-off: 5 ms, doubled at each failure, 1000 s at most.
const BASE_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(1000);

pub struct WorkQueue<T = Key> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

struct State<T> {
    ready: VecDeque<T>,
    /// Wanted, whether in `ready` or in work: an item added while in work goes to `ready` when it is done.
    dirty: HashSet<T>,
    processing: HashSet<T>,
    /// Due times; only the one that equals `waiting` counts, so an earlier second add needs no search.
    timers: BinaryHeap<Reverse<Timer<T>>>,
    waiting: HashMap<T, Instant>,
    failures: HashMap<T, u32>,
    shutting_down: bool,
}

struct Timer<T> {
    due: Instant,
    item: T,
}

impl<T> PartialEq for Timer<T> {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl<T> Eq for Timer<T> {}
impl<T> PartialOrd for Timer<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Timer<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

impl<T> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T: Clone + Eq + Hash> Default for WorkQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone + Eq + Hash> WorkQueue<T> {
    pub fn new() -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            processing: HashSet::new(),
            timers: BinaryHeap::new(),
            waiting: HashMap::new(),
            failures: HashMap::new(),
            shutting_down: false,
        };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), changed: Notify::new() }) }
    }

    pub fn add(&self, item: T) {
        if self.inner.state.lock().add(item) {
            self.inner.changed.notify_one();
        }
    }

    /// The earliest of several delayed adds of one item wins.
    pub fn add_after(&self, item: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(item);
        }
        let due = Instant::now() + delay;
        let mut state = self.inner.state.lock();
        if state.shutting_down || state.waiting.get(&item).is_some_and(|known| *known <= due) {
            return;
        }
        state.waiting.insert(item.clone(), due);
        state.timers.push(Reverse(Timer { due, item }));
        self.inner.changed.notify_one();
    }

    pub fn add_rate_limited(&self, item: T) {
        let delay = {
            let mut state = self.inner.state.lock();
            let failures = state.failures.entry(item.clone()).or_insert(0);
            let delay = backoff(*failures);
            *failures += 1;
            delay
        };
        self.add_after(item, delay);
    }

    /// The item succeeded: its next rate-limited add starts at the base delay again.
    pub fn forget(&self, item: &T) {
        self.inner.state.lock().failures.remove(item);
    }

    /// The next item, which is then in work until [`WorkQueue::done`]. `None` once the queue is shut down, whatever is left in it.
    pub async fn get(&self) -> Option<T> {
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            let earliest = {
                let mut state = self.inner.state.lock();
                if state.shutting_down {
                    return None;
                }
                state.promote(Instant::now());
                if let Some(item) = state.take() {
                    if !state.ready.is_empty() {
                        self.inner.changed.notify_one();
                    }
                    return Some(item);
                }
                state.timers.peek().map(|Reverse(timer)| timer.due)
            };
            match earliest {
                Some(due) => {
                    let _woken_or_due = tokio::time::timeout_at(due, changed).await;
                }
                None => changed.await,
            }
        }
    }

    pub fn done(&self, item: &T) {
        let mut state = self.inner.state.lock();
        state.processing.remove(item);
        if state.dirty.contains(item) {
            state.ready.push_back(item.clone());
            self.inner.changed.notify_one();
        }
    }

    pub fn shut_down(&self) {
        self.inner.state.lock().shutting_down = true;
        self.inner.changed.notify_waiters();
    }
}

impl<T: Clone + Eq + Hash> State<T> {
    /// Whether a waiting worker has something new to take.
    fn add(&mut self, item: T) -> bool {
        if self.shutting_down || !self.dirty.insert(item.clone()) || self.processing.contains(&item) {
            return false;
        }
        self.ready.push_back(item);
        true
    }

    fn take(&mut self) -> Option<T> {
        let item = self.ready.pop_front()?;
        self.dirty.remove(&item);
        self.processing.insert(item.clone());
        Some(item)
    }

    fn promote(&mut self, now: Instant) {
        while self.timers.peek().is_some_and(|Reverse(timer)| timer.due <= now) {
            let Some(Reverse(timer)) = self.timers.pop() else { return };
            if self.waiting.get(&timer.item) == Some(&timer.due) {
                self.waiting.remove(&timer.item);
                self.add(timer.item);
            }
        }
    }
}

fn backoff(failures: u32) -> Duration {
    BASE_DELAY.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX)).min(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(queue: &WorkQueue<&'static str>) -> Option<&'static str> {
        tokio::time::timeout(Duration::from_millis(1), queue.get()).await.ok().flatten()
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_is_handed_out_once_and_again_if_added_while_in_work() {
        let queue = WorkQueue::new();
        queue.add("a");
        queue.add("a");
        assert_eq!(next(&queue).await, Some("a"));
        assert_eq!(next(&queue).await, None);
        queue.add("a");
        assert_eq!(next(&queue).await, None, "still in work");
        queue.done(&"a");
        assert_eq!(next(&queue).await, Some("a"));
        queue.done(&"a");
        assert_eq!(next(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_items_come_in_order_of_time_and_the_earliest_add_wins() {
        let queue = WorkQueue::new();
        let start = Instant::now();
        queue.add_after("late", Duration::from_secs(30));
        queue.add_after("early", Duration::from_secs(20));
        queue.add_after("late", Duration::from_secs(10));
        queue.add_after("late", Duration::from_secs(40));
        assert_eq!(queue.get().await, Some("late"));
        assert_eq!(start.elapsed().as_secs(), 10);
        queue.done(&"late");
        assert_eq!(queue.get().await, Some("early"));
        assert_eq!(start.elapsed().as_secs(), 20);
        assert!(
            tokio::time::timeout(Duration::from_secs(100), queue.get()).await.is_err(),
            "superseded timers are dropped"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failures_double_the_delay_until_forgotten() {
        let queue = WorkQueue::new();
        for want in [5, 10, 20, 40] {
            let start = Instant::now();
            queue.add_rate_limited("a");
            assert_eq!(queue.get().await, Some("a"));
            assert_eq!(start.elapsed().as_millis(), want);
            queue.done(&"a");
        }
        queue.forget(&"a");
        let start = Instant::now();
        queue.add_rate_limited("a");
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(start.elapsed().as_millis(), 5);
        assert_eq!(backoff(17), Duration::from_millis(655_360));
        assert_eq!(backoff(18), MAX_DELAY);
        assert_eq!(backoff(64), MAX_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_delay_wakes_a_worker_that_waits_for_a_later_one() {
        let queue = WorkQueue::new();
        queue.add_after("late", Duration::from_secs(60));
        let worker = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        tokio::task::yield_now().await;
        queue.add_after("early", Duration::from_secs(1));
        assert_eq!(worker.await.unwrap(), Some("early"));
    }

    #[tokio::test]
    async fn every_item_reaches_a_worker_and_shut_down_ends_them_all() {
        let queue = WorkQueue::new();
        let (seen, mut taken) = tokio::sync::mpsc::unbounded_channel();
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (queue, seen) = (queue.clone(), seen.clone());
                tokio::spawn(async move {
                    while let Some(item) = queue.get().await {
                        seen.send(item).unwrap();
                        queue.done(&item);
                    }
                })
            })
            .collect();
        for item in 0..100u32 {
            queue.add(item);
        }
        let mut items = Vec::new();
        while items.len() < 100 {
            items.push(taken.recv().await.unwrap());
        }
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        queue.shut_down();
        for worker in workers {
            worker.await.unwrap();
        }
    }
}
