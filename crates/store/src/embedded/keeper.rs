//! The keeper thread: what must be done some day, off the write path. It ends leases, compacts history that is old
//! enough, replaces old segments by a base, and drops what compaction gave up. It sleeps until the next deadline, or
//! for good if there is none.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc as std_mpsc,
    },
    time::{Duration, Instant},
};

use imbl::Vector;
use tokio::sync::{mpsc, oneshot};

use super::{
    Options,
    commit::{Command, Reply},
    deadlines::Deadlines,
    log::{Sealed, base_path, log_path, write_base},
};
use crate::{
    StoreError,
    state::{Past, State},
    watch::Published,
};

pub(crate) enum Note {
    /// There may be a new deadline.
    Wake,
    /// A segment is full.
    Sealed(Sealed),
    /// History that compaction gave up, to be dropped here.
    Dropped(#[expect(dead_code, reason = "only dropped")] Vector<Past>),
    Stop,
}

pub(crate) struct Keeper {
    pub(crate) notes: std_mpsc::Receiver<Note>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) published: Arc<Published>,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    /// Oldest first.
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) base_bytes: u64,
    pub(crate) stopping: Arc<AtomicBool>,
}

impl Keeper {
    pub(crate) fn run(mut self) {
        loop {
            let note = match self.next_deadline() {
                Some(at) => self.notes.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => self.notes.recv().map_err(|_| std_mpsc::RecvTimeoutError::Disconnected),
            };
            match note {
                Ok(Note::Stop) | Err(std_mpsc::RecvTimeoutError::Disconnected) => return,
                Ok(Note::Sealed(sealed)) => self.sealed.push(sealed),
                Ok(Note::Wake | Note::Dropped(_)) | Err(std_mpsc::RecvTimeoutError::Timeout) => {}
            }
            // A store that refuses changes has nothing left to keep.
            if self.end_leases().and_then(|()| self.compact_history()).is_err() {
                return;
            }
            self.replace_segments();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let history = compaction_due(&self.published.load(), self.options.history);
        [history, self.deadlines.next()].into_iter().flatten().min()
    }

    fn end_leases(&self) -> Result<(), StoreError> {
        for id in self.deadlines.expired(Instant::now()) {
            match self.ask(|reply| Command::Expire(id, reply)) {
                Ok(_) | Err(StoreError::LeaseNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn compact_history(&self) -> Result<(), StoreError> {
        let now = Instant::now();
        let state = self.published.load();
        if compaction_due(&state, self.options.history).is_none_or(|due| due > now) {
            return Ok(());
        }
        let old = state.history.iter().take_while(|past| past.at + self.options.history <= now);
        let Some(revision) = old.last().map(|past| past.batch.revision) else { return Ok(()) };
        drop(state);
        match self.ask(|reply| Command::Compact(revision, reply)) {
            Ok(()) | Err(StoreError::Compacted { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.commands.blocking_send(command(reply)).map_err(|_| StoreError::Closed)?;
        answer.blocking_recv().map_err(|_| StoreError::Closed)?
    }

    /// Writes a base of the newest segment whose history nobody can ask for, and removes what it replaces; but only if
    /// that is at least as much as the base, so that writing it twice costs no more than writing it did.
    fn replace_segments(&mut self) {
        let compacted = self.published.load().compacted;
        let given_up = self.sealed.partition_point(|segment| segment.end < compacted);
        let Some(newest) = given_up.checked_sub(1).and_then(|index| self.sealed.get(index)) else { return };
        let bytes: u64 = self.sealed.iter().take(given_up).map(|segment| segment.bytes).sum();
        if let Some(state) = newest.state.as_ref().filter(|_| bytes >= self.base_bytes.max(self.options.segment_bytes))
        {
            let seq = newest.seq + 1;
            let go_on = || !self.stopping.load(Ordering::Relaxed);
            match write_base(&self.options.disk, &self.dir, seq, state, go_on) {
                Ok(base_bytes) => {
                    self.base_bytes = base_bytes;
                    let replaced: Vec<Sealed> = self.sealed.drain(..given_up).collect();
                    self.remove(&replaced);
                    tracing::debug!(seq, base_bytes, log_bytes = bytes, "replaced old segments by a base");
                    return;
                }
                Err(_) if self.stopping.load(Ordering::Relaxed) => return,
                Err(error) => tracing::warn!(%error, "could not replace old segments by a base; they are kept"),
            }
        }
        // Not now: the next segment that fills up brings its own state. Holding this one would hold old values too.
        self.sealed.iter_mut().take(given_up).for_each(|segment| segment.state = None);
    }

    /// What fails to go now goes at the next open.
    fn remove(&self, replaced: &[Sealed]) {
        for segment in replaced {
            for path in [log_path(&self.dir, segment.seq), base_path(&self.dir, segment.seq)] {
                match self.options.disk.remove(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        tracing::warn!(%error, file = %path.display(), "could not remove an old segment");
                    }
                    _ => {}
                }
            }
        }
    }
}

/// When something in history will be old enough. The first revision held is the compaction point and stays. A tenth is
/// added so that a steady writer is compacted ten times per period, not with every write.
fn compaction_due(state: &State, history: Duration) -> Option<Instant> {
    state.history.get(1).map(|past| past.at + history + history / 10)
}
