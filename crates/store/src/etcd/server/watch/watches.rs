//! All watches of a stream, of which only those are looked at that something happened to.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;

use super::follow::{Follow, News};
use crate::{
    Revision,
    etcd::{proto::served::WatchResponse, server::header},
};

#[derive(Default)]
pub(super) struct Watches {
    running: HashMap<i64, Running>,
    rung: Arc<Rung>,
    /// Some have asked to be told when nothing happens.
    pub(super) notified: bool,
}

struct Running {
    follow: Follow,
    bell: Waker,
    /// Something was told since the last notices.
    told: bool,
}

/// The watches that want to be looked at.
#[derive(Default)]
struct Rung {
    ids: Mutex<VecDeque<i64>>,
    session: AtomicWaker,
}

impl Rung {
    fn ring(&self, id: i64) {
        self.ids.lock().push_back(id);
        self.session.wake();
    }
}

/// One watch's waker.
struct Bell {
    id: i64,
    rung: Arc<Rung>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.ring(self.id);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.ring(self.id);
    }
}

impl Watches {
    pub(super) fn add(&mut self, id: i64, follow: Follow) {
        let bell = Waker::from(Arc::new(Bell { id, rung: self.rung.clone() }));
        self.notified |= follow.notify;
        self.running.insert(id, Running { follow, bell, told: false });
        self.rung.ring(id);
    }

    pub(super) fn has(&self, id: i64) -> bool {
        self.running.contains_key(&id)
    }

    /// Whether there was one of this id. Nothing of it is told any more.
    pub(super) fn remove(&mut self, id: i64) -> bool {
        self.running.remove(&id).is_some()
    }

    /// Waits for news of any watch. One that has ended is gone after that.
    pub(super) async fn next(&mut self) -> (i64, News) {
        poll_fn(|cx| {
            // In this order: what rings after the look at the queue wakes the session.
            self.rung.session.register(cx.waker());
            match self.rung() {
                Some(news) => Poll::Ready(news),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn rung(&mut self) -> Option<(i64, News)> {
        loop {
            let id = self.rung.ids.lock().pop_front()?;
            let Some(running) = self.running.get_mut(&id) else { continue };
            let Poll::Ready(news) = running.follow.poll(&mut Context::from_waker(&running.bell)) else { continue };
            running.told = true;
            if news.ended.is_some() {
                self.running.remove(&id);
            } else if news.more {
                self.rung.ring(id);
            }
            return Some((id, news));
        }
    }

    /// Whether all have told everything up to `revision`.
    pub(super) fn have_reached(&self, revision: Revision) -> bool {
        self.running.values().all(|running| running.follow.delivered() >= revision)
    }

    /// How far those are that asked for it and had nothing to tell since they were last asked.
    pub(super) fn notices(&mut self) -> Vec<WatchResponse> {
        let quiet = |(id, running): (&i64, &mut Running)| {
            let quiet = running.follow.notify && !std::mem::take(&mut running.told);
            let header = header(running.follow.delivered());
            quiet.then(|| WatchResponse { header, watch_id: *id, ..Default::default() })
        };
        self.running.iter_mut().filter_map(quiet).collect()
    }
}
