//! Watchers who are woken together. A change wakes a thousand of them, so this keeps nothing but what that takes: how far they are
//! told the changes have come, and whom to wake.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// So many watchers are woken at once.
pub(super) const GROUP: usize = 16;

/// At most [`GROUP`] watchers. Those of one connection are together: what they are told at once goes out at once.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) connection: Option<u64>,
    /// The sequence number of the newest change they were told of.
    newest: AtomicU64,
    watchers: AtomicUsize,
    /// Who waits for more, each once.
    waiting: Mutex<Vec<(u64, Waker)>>,
    names: AtomicU64,
}

impl Group {
    pub(super) fn new(connection: Option<u64>, newest: u64) -> Self {
        Self {
            connection,
            newest: newest.into(),
            watchers: AtomicUsize::default(),
            waiting: Mutex::default(),
            names: AtomicU64::default(),
        }
    }

    pub(super) fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    /// Wakes those who wait, unless they know already.
    pub(super) fn tell(&self, newest: u64) {
        if self.newest.load(Ordering::Relaxed) == newest {
            return;
        }
        // Whoever comes to wait sees the number, or is seen here.
        let woken = {
            let mut waiting = self.waiting.lock();
            self.newest.store(newest, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// One of a group, until it is dropped.
#[derive(Debug)]
pub(super) struct Member {
    group: Arc<Group>,
    name: u64,
}

impl Member {
    pub(super) fn of(group: &Arc<Group>) -> Self {
        group.watchers.fetch_add(1, Ordering::Relaxed);
        Self { group: group.clone(), name: group.names.fetch_add(1, Ordering::Relaxed) }
    }

    /// How far the changes have come, as far as it was told.
    pub(super) fn told(&self) -> u64 {
        self.group.newest.load(Ordering::Acquire)
    }

    /// Waits until there is more than that.
    pub(super) async fn told_beyond(&self, position: u64) {
        std::future::poll_fn(|context| self.poll_told_beyond(position, context)).await;
    }

    fn poll_told_beyond(&self, position: u64, context: &Context<'_>) -> Poll<()> {
        if self.told() > position {
            return Poll::Ready(());
        }
        let mut waiting = self.group.waiting.lock();
        if self.told() > position {
            return Poll::Ready(());
        }
        match waiting.iter_mut().find(|(name, _)| *name == self.name) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => {
                if waiting.capacity() == 0 {
                    waiting.reserve_exact(self.group.watchers());
                }
                waiting.push((self.name, context.waker().clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.waiting.lock().retain(|(name, _)| *name != self.name);
        self.group.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_is_woken_once_and_who_left_never() {
        let group = Arc::new(Group::new(None, 5));
        let members = [Member::of(&group), Member::of(&group)];
        let [first, second] = [Arc::new(Count::default()), Arc::new(Count::default())];
        for (member, count) in members.iter().zip([&first, &second]) {
            let waker = Waker::from(count.clone());
            // Asked twice, it waits once; and it does not wait for what it was told of.
            assert!(member.poll_told_beyond(5, &Context::from_waker(&waker)).is_pending());
            assert!(member.poll_told_beyond(5, &Context::from_waker(&waker)).is_pending());
            assert!(member.poll_told_beyond(4, &Context::from_waker(&waker)).is_ready());
        }
        let [stays, leaves] = members;
        drop(leaves);
        assert_eq!(Arc::strong_count(&second), 1, "its waker is kept");
        group.tell(5);
        assert_eq!(first.0.load(Ordering::Relaxed), 0, "nothing is new");
        group.tell(7);
        group.tell(8);
        assert_eq!(first.0.load(Ordering::Relaxed), 1);
        assert_eq!((stays.told(), group.watchers()), (8, 1));
    }
}
