//! The keeper thread: what must be done some day, off the write path. It ends leases, compacts history that is old
//! enough, has old segments replaced by a base, and drops what compaction gave up. It sleeps until the next deadline, or
//! for good if there is none. A base is written by a thread of its own, so that leases end in time meanwhile.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc as std_mpsc,
    },
    thread::JoinHandle,
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
    /// The disk became full, or has a little space again.
    Tight,
    /// A base was written in place of all segments before this one, or not: its length, or why.
    Based(u64, io::Result<u64>),
    /// History that compaction gave up, to be dropped here.
    Dropped(#[expect(dead_code, reason = "only dropped")] Vector<Past>),
    Stop,
}

/// How long a compaction waits that found the disk full.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) struct Keeper {
    pub(crate) notes: std_mpsc::Receiver<Note>,
    pub(crate) to_self: std_mpsc::Sender<Note>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) published: Arc<Published>,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    /// Oldest first.
    pub(crate) sealed: Vec<Sealed>,
    /// When history is compacted again, after a full disk kept it from that.
    pub(crate) retry_at: Option<Instant>,
    pub(crate) base_bytes: u64,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) writer: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn run(mut self) {
        self.keep();
        // It is told to stop, and must be gone before another process may open the directory.
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }

    fn keep(&mut self) {
        loop {
            let mut tight = false;
            let note = match self.next_deadline() {
                Some(at) => self.notes.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => self.notes.recv().map_err(|_| std_mpsc::RecvTimeoutError::Disconnected),
            };
            match note {
                Ok(Note::Stop) | Err(std_mpsc::RecvTimeoutError::Disconnected) => return,
                Ok(Note::Sealed(sealed)) => {
                    self.sealed.push(sealed);
                    tight = self.is_tight();
                }
                Ok(Note::Tight) => tight = true,
                Ok(Note::Based(seq, result)) => self.finish_base(seq, result),
                Ok(Note::Wake | Note::Dropped(_)) | Err(std_mpsc::RecvTimeoutError::Timeout) => {}
            }
            // A store that refuses changes has nothing left to keep.
            if self.end_leases().and_then(|()| self.compact_history(tight)).is_err() {
                return;
            }
            self.replace_segments(tight);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let history = compaction_due(&self.published.load(), self.options.history);
        let history = history.map(|due| self.retry_at.map_or(due, |retry| due.max(retry)));
        [history, self.deadlines.next()].into_iter().flatten().min()
    }

    /// Whether the next base might not fit on the disk. History is then given up early, so that old segments can go.
    fn is_tight(&self) -> bool {
        let logs: u64 = self.sealed.iter().map(|segment| segment.bytes).sum();
        let needed = self.base_bytes + logs + 2 * self.options.segment_bytes;
        self.options.disk.space(&self.dir).is_ok_and(|space| space.free < needed)
    }

    fn end_leases(&self) -> Result<(), StoreError> {
        for id in self.deadlines.expired(Instant::now()) {
            match self.ask(|reply| Command::Expire(id, reply)) {
                Ok(_) | Err(StoreError::LeaseNotFound(_) | StoreError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives up history that is old enough, or all of it if the disk is `tight`.
    fn compact_history(&mut self, tight: bool) -> Result<(), StoreError> {
        let now = Instant::now();
        let state = self.published.load();
        let is_due = |due: Instant| due <= now && self.retry_at.is_none_or(|retry| retry <= now);
        if !tight && !compaction_due(&state, self.options.history).is_some_and(is_due) {
            return Ok(());
        }
        let old = state.history.iter().take_while(|past| tight || past.at + self.options.history <= now);
        let Some(revision) = old.last().map(|past| past.batch.revision) else { return Ok(()) };
        drop(state);
        self.retry_at = None;
        match self.ask(|reply| Command::Compact(revision, reply)) {
            Ok(()) | Err(StoreError::Compacted { .. }) => {}
            Err(StoreError::Full) => self.retry_at = Some(now + RETRY),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.commands.blocking_send(command(reply)).map_err(|_| StoreError::Closed)?;
        answer.blocking_recv().map_err(|_| StoreError::Closed)?
    }

    /// Has a base written of the newest segment whose history nobody can ask for; but only if what it replaces is at
    /// least as much, so that writing again costs no more than writing did.
    fn replace_segments(&mut self, tight: bool) {
        if self.writer.is_some() {
            return;
        }
        let compacted = self.published.load().compacted;
        let given_up = self.sealed.partition_point(|segment| segment.end < compacted);
        let bytes: u64 = self.sealed.iter().take(given_up).map(|segment| segment.bytes).sum();
        let newest = given_up.checked_sub(1).and_then(|index| self.sealed.get_mut(index));
        let worth = if tight { self.base_bytes / 2 } else { self.base_bytes };
        if bytes >= worth.max(self.options.segment_bytes)
            && let Some((seq, state)) = newest.and_then(|newest| Some((newest.seq + 1, newest.state.take()?)))
        {
            self.write_base(seq, state);
        }
        // The others are not needed, and holding them would hold old values: the next full segment brings its own.
        self.sealed.iter_mut().take(given_up).for_each(|segment| segment.state = None);
    }

    fn write_base(&mut self, seq: u64, state: State) {
        let (disk, dir) = (self.options.disk.clone(), self.dir.clone());
        let (stopping, done) = (self.stopping.clone(), self.to_self.clone());
        let write = move || {
            let result = write_base(&disk, &dir, seq, &state, || !stopping.load(Ordering::Relaxed));
            drop(state);
            let _ = done.send(Note::Based(seq, result));
        };
        match std::thread::Builder::new().name("store-base".to_owned()).spawn(write) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => self.finish_base(seq, Err(error)),
        }
    }

    fn finish_base(&mut self, seq: u64, result: io::Result<u64>) {
        self.writer = None;
        match result {
            Ok(base_bytes) => {
                self.base_bytes = base_bytes;
                let replaced = self.sealed.partition_point(|segment| segment.seq < seq);
                let replaced: Vec<Sealed> = self.sealed.drain(..replaced).collect();
                self.remove(&replaced);
                tracing::debug!(seq, base_bytes, "replaced old segments by a base");
            }
            Err(_) if self.stopping.load(Ordering::Relaxed) => {}
            Err(error) => tracing::warn!(%error, "could not replace old segments by a base; they are kept"),
        }
    }

    /// What fails to go now goes at the next open.
    fn remove(&self, replaced: &[Sealed]) {
        for segment in replaced {
            for path in [log_path(&self.dir, segment.seq), base_path(&self.dir, segment.seq)] {
                match self.options.disk.remove(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
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
