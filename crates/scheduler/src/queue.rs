//! Pods that wait for a node: ready to be tried, waiting out a back-off, or waiting for something to change.
//!
//! An event moves only the pods whose rejecting plugins it can help. An event that arrives while a pod is being tried counts for it,
//! too, so that none is missed between the decision and the wait.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::framework::{QueueKey, QueueSort};
use crate::node_info::PodInfo;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Nothing waits for ever on an event that some defect lost.
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(5 * 60);

/// Something that can make a rejected pod schedulable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    NodeAdded,
    NodeAllocatable,
    NodeLabels,
    NodeTaints,
    AssignedPodAdded,
    AssignedPodDeleted,
    /// The waiting pod itself was changed.
    PodUpdated,
}

/// A plugin that said no to at least one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) plugin: &'static str,
    /// Fewer pods on some node could have made it say yes.
    pub(crate) resolvable: bool,
}

/// A pod on its way through the queue.
#[derive(Clone)]
pub(crate) struct Queued {
    pub(crate) pod: Arc<PodInfo>,
    pub(crate) key: QueueKey,
    pub(crate) attempts: u32,
    /// Why it was rejected last time.
    rejected_by: Vec<Rejection>,
    tried: Option<Instant>,
}

enum Place {
    Active,
    /// Until then, unless nothing else is to be done.
    Backoff {
        until: Instant,
        hurry: bool,
    },
    Unschedulable {
        since: Instant,
    },
    /// Being tried; events since then are kept.
    InFlight {
        events: HashSet<Event>,
    },
    Gated,
}

struct Entry {
    queued: Queued,
    place: Place,
}

type Helps = Box<dyn Fn(&str, Event) -> bool + Send + Sync>;

pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
    sort: Box<dyn QueueSort>,
    /// Whether an event can help a pod that a plugin rejected.
    helps: Helps,
}

#[derive(Default)]
struct State {
    entries: HashMap<String, Entry>,
    sequence: u64,
    /// Earliest first; an entry is stale if the pod's place says otherwise.
    timers: BinaryHeap<std::cmp::Reverse<(Instant, String)>>,
}

impl Queue {
    pub(crate) fn new(sort: Box<dyn QueueSort>, helps: impl Fn(&str, Event) -> bool + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), sort, helps: Box::new(helps) }
    }

    /// A new pod, or a new version of one that waits. Changes of status alone change nothing.
    pub(crate) fn set(&self, pod: Arc<PodInfo>) {
        let mut state = self.state.lock();
        let uid = pod.uid().to_owned();
        let gated = is_gated(&pod);
        match state.entries.get_mut(&uid) {
            None => {
                state.sequence += 1;
                let key = QueueKey { priority: pod.priority, added: Instant::now(), sequence: state.sequence };
                let queued = Queued { pod, key, attempts: 0, rejected_by: Vec::new(), tried: None };
                let place = if gated { Place::Gated } else { Place::Active };
                state.entries.insert(uid, Entry { queued, place });
            }
            Some(entry) => {
                let changed = !same_wishes(&entry.queued.pod, &pod);
                entry.queued.key.priority = pod.priority;
                entry.queued.pod = pod;
                match &mut entry.place {
                    Place::Gated if !gated => entry.place = Place::Active,
                    Place::InFlight { events } if changed => drop(events.insert(Event::PodUpdated)),
                    Place::Unschedulable { .. } if changed => state.retry(&uid, Instant::now()),
                    _ => (),
                }
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.state.lock().entries.remove(uid);
    }

    /// The next pod to try. Back-off is cut short when nothing else is to be done.
    pub(crate) async fn pop(&self) -> Queued {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let due = {
                let mut state = self.state.lock();
                let due = state.promote(Instant::now());
                if let Some(queued) = state.take(&*self.sort) {
                    return queued;
                }
                due
            };
            match due {
                Some(due) => drop(tokio::time::timeout_at(due, changed).await),
                None => changed.await,
            }
        }
    }

    /// No node was right: wait for an event that can help, unless one came already.
    pub(crate) fn unschedulable(&self, uid: &str, rejected_by: Vec<Rejection>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let Some(entry) = state.entries.get_mut(uid) else { return };
        let Place::InFlight { events } = &entry.place else { return };
        let helped = events.iter().any(|event| self.is_helpful(&rejected_by, *event));
        entry.queued.rejected_by = rejected_by;
        entry.queued.tried = Some(now);
        entry.place = Place::Unschedulable { since: now };
        state.timers.push(std::cmp::Reverse((now + MAX_UNSCHEDULABLE, uid.to_owned())));
        if helped {
            state.retry(uid, now);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Something went wrong that is not the cluster's state: try again after the back-off, in full.
    pub(crate) fn failed(&self, uid: &str) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let Some(entry) = state.entries.get_mut(uid) else { return };
        entry.queued.tried = Some(now);
        let until = now + backoff(entry.queued.attempts);
        entry.place = Place::Backoff { until, hurry: false };
        state.timers.push(std::cmp::Reverse((until, uid.to_owned())));
        drop(state);
        self.changed.notify_one();
    }

    /// Moves the waiting pods that `event` can help.
    pub(crate) fn on(&self, event: Event) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let mut helped = Vec::new();
        for (uid, entry) in &mut state.entries {
            match &mut entry.place {
                Place::InFlight { events } => drop(events.insert(event)),
                Place::Unschedulable { .. } if self.is_helpful(&entry.queued.rejected_by, event) => {
                    helped.push(uid.clone())
                }
                _ => (),
            }
        }
        for uid in &helped {
            state.retry(uid, now);
        }
        drop(state);
        if !helped.is_empty() {
            self.changed.notify_one();
        }
    }

    fn is_helpful(&self, rejected_by: &[Rejection], event: Event) -> bool {
        let helps = |rejection: &Rejection| {
            (rejection.resolvable || event != Event::AssignedPodDeleted) && (self.helps)(rejection.plugin, event)
        };
        // Without a culprit (no nodes at all) everything is worth a try.
        event == Event::PodUpdated || rejected_by.is_empty() || rejected_by.iter().any(helps)
    }
}

impl State {
    fn retry(&mut self, uid: &str, now: Instant) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let until = entry.queued.tried.map_or(now, |tried| tried + backoff(entry.queued.attempts));
        if until <= now {
            entry.place = Place::Active;
        } else {
            entry.place = Place::Backoff { until, hurry: true };
            self.timers.push(std::cmp::Reverse((until, uid.to_owned())));
        }
    }

    /// Activates what is due, and tells when the next is.
    fn promote(&mut self, now: Instant) -> Option<Instant> {
        while let Some(std::cmp::Reverse((due, _))) = self.timers.peek() {
            if *due > now {
                return Some(*due);
            }
            let std::cmp::Reverse((_, uid)) = self.timers.pop()?;
            let Some(entry) = self.entries.get_mut(&uid) else { continue };
            match entry.place {
                Place::Backoff { until, .. } if until <= now => entry.place = Place::Active,
                Place::Unschedulable { since } if since + MAX_UNSCHEDULABLE <= now => entry.place = Place::Active,
                _ => (),
            }
        }
        None
    }

    fn take(&mut self, sort: &dyn QueueSort) -> Option<Queued> {
        let best = |wanted: fn(&Place) -> bool, state: &Self| {
            let candidates = state.entries.values().filter(|entry| wanted(&entry.place));
            candidates
                .min_by(|a, b| sort.before(&a.queued.key, &b.queued.key))
                .map(|entry| entry.queued.pod.uid().to_owned())
        };
        let uid = best(|place| matches!(place, Place::Active), self)
            .or_else(|| best(|place| matches!(place, Place::Backoff { hurry: true, .. }), self))?;
        let entry = self.entries.get_mut(&uid)?;
        entry.queued.attempts += 1;
        entry.place = Place::InFlight { events: HashSet::new() };
        Some(entry.queued.clone())
    }
}

fn backoff(attempts: u32) -> Duration {
    let doubled = INITIAL_BACKOFF.saturating_mul(1u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(MAX_BACKOFF)
}

pub(crate) fn is_gated(pod: &PodInfo) -> bool {
    pod.spec().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
}

fn same_wishes(a: &PodInfo, b: &PodInfo) -> bool {
    a.pod.spec == b.pod.spec && a.labels() == b.labels()
}

#[cfg(test)]
mod tests;
