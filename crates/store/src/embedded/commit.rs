//! The commit thread: the only one that changes the store.
//!
//! It takes all commands that wait, applies them to its own copy of the state, writes what changed as one frame, syncs
//! once, publishes the copy, and only then answers. After a failed write or sync the copy is thrown away and every
//! further change is refused: nobody can know what the disk holds until it is read again.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, mpsc as std_mpsc},
    time::Instant,
};

use tokio::sync::{mpsc, oneshot};

use super::{
    Options,
    deadlines::Deadlines,
    frame::FrameBuffer,
    keeper::Note,
    log::{Log, Sealed},
    record,
};
use crate::{Lease, Revision, StoreError, Txn, TxnResult, state::State, watch::Published};

/// Commands taken at once. More only adds latency: the sync is amortized long before.
const MAX_COMMANDS: usize = 1024;
/// So many commands at once come from many writers.
const CROWD: usize = 4;
/// A frame that is this full is written even if more commands wait, so that memory stays bounded.
const MAX_FRAME_BYTES: usize = 4 << 20;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub(crate) enum Command {
    Txn(Txn, Reply<TxnResult>),
    Grant(Lease, Reply<()>),
    Revoke(i64, Reply<Revision>),
    /// Revokes a lease if its time is over, which a keep-alive may just have changed.
    Expire(i64, Reply<Revision>),
    Compact(Revision, Reply<()>),
    Stop,
}

/// What is left to do for a command once its frame is durable (`None`), or is known not to be.
type Finish = Box<dyn FnOnce(Option<&StoreError>) + Send>;

pub(crate) struct Committer {
    pub(crate) queue: mpsc::Receiver<Command>,
    pub(crate) keeper: std_mpsc::Sender<Note>,
    pub(crate) published: Arc<Published>,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    pub(crate) log: Log,
    /// The published state plus what is in `frame`.
    pub(crate) working: State,
    pub(crate) frame: FrameBuffer,
    pub(crate) finishes: Vec<Finish>,
    /// Told to the keeper once published, so that the last reference is dropped there.
    pub(crate) notes: Vec<Note>,
    pub(crate) poisoned: Option<StoreError>,
}

impl Committer {
    pub(crate) fn run(mut self) {
        let mut waiting = Vec::new();
        while self.queue.blocking_recv_many(&mut waiting, MAX_COMMANDS) > 0 {
            self.let_in(&mut waiting);
            for command in waiting.drain(..) {
                if matches!(command, Command::Stop) {
                    self.flush();
                    return;
                }
                self.take(command);
                if self.frame.payload_len() >= MAX_FRAME_BYTES {
                    self.flush();
                }
            }
            self.flush();
        }
    }

    /// Where many write, those who are about to ask and only lack a processor are let in: a sync costs the same for all.
    fn let_in(&mut self, waiting: &mut Vec<Command>) {
        let mut before = 0;
        while waiting.len() >= CROWD.max(before + 1) && waiting.len() < MAX_COMMANDS {
            before = waiting.len();
            std::thread::yield_now();
            while waiting.len() < MAX_COMMANDS
                && let Ok(command) = self.queue.try_recv()
            {
                waiting.push(command);
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Txn(txn, reply) => self.change(reply, |this, now| this.working.apply(txn, now)),
            Command::Grant(lease, reply) => self.change(reply, |this, now| this.grant(lease, now)),
            Command::Revoke(id, reply) => self.change(reply, |this, now| this.revoke(id, now)),
            Command::Expire(id, reply) => self.change(reply, |this, now| match this.deadlines.take_expired(id, now) {
                true => this.revoke(id, now),
                false => Ok(this.working.revision),
            }),
            Command::Compact(revision, reply) => self.change(reply, |this, _| this.compact(revision)),
            Command::Stop => {}
        }
    }

    /// Makes one change, records the revision it may have made, and has it answered when that is durable.
    fn change<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        change: impl FnOnce(&mut Self, Instant) -> Result<T, StoreError>,
    ) {
        let before = self.working.revision;
        let changed = match &self.poisoned {
            Some(error) => Err(error.clone()),
            None => change(self, Instant::now()),
        };
        if self.working.revision > before
            && let Some(past) = self.working.history.back()
        {
            record::txn(self.frame.payload(), &past.batch);
        }
        self.finishes.push(Box::new(move |failed| {
            // Whoever asked may have gone; the change stands.
            let _ = reply.send(match failed {
                Some(error) => changed.and(Err(error.clone())),
                None => changed,
            });
        }));
    }

    fn grant(&mut self, lease: Lease, now: Instant) -> Result<(), StoreError> {
        if self.working.leases.contains_key(&lease.id) {
            return Err(StoreError::LeaseExists(lease.id));
        }
        self.working.leases.insert(lease.id, lease.ttl_seconds);
        record::grant(self.frame.payload(), lease.id, lease.ttl_seconds);
        self.deadlines.set(lease, now);
        self.notes.push(Note::Wake);
        Ok(())
    }

    fn revoke(&mut self, id: i64, now: Instant) -> Result<Revision, StoreError> {
        self.working.revoke(id, now)?;
        self.deadlines.remove(id);
        record::revoke(self.frame.payload(), id);
        Ok(self.working.revision)
    }

    fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        if revision > self.working.revision {
            return Err(StoreError::FutureRevision { asked: revision, current: self.working.revision });
        }
        if revision <= self.working.compacted {
            return Err(StoreError::Compacted { oldest: self.working.compacted });
        }
        record::compact(self.frame.payload(), revision);
        self.notes.push(Note::Dropped(self.working.compact(revision)));
        Ok(())
    }

    /// Writes, publishes and answers everything taken so far.
    fn flush(&mut self) {
        if let Some(revision) = self.working.excess(self.options.history_bytes) {
            // Cannot fail: `excess` never names a revision that is compacted or to come.
            let _ = self.compact(revision);
        }
        let before = self.published.load().revision;
        let failed = match self.frame.payload_len() {
            0 => None,
            _ => self.log.append(&mut self.frame).err().map(|error| self.poison(error)),
        };
        if failed.is_none() && self.frame.payload_len() > 0 {
            self.publish();
        }
        self.frame.clear();
        for finish in self.finishes.drain(..) {
            finish(failed.as_ref());
        }
        if self.working.revision > before {
            self.published.wake(before);
        }
        for note in self.notes.drain(..) {
            let _ = self.keeper.send(note);
        }
        if self.log.bytes >= self.options.segment_bytes && self.poisoned.is_none() {
            self.roll();
        }
    }

    fn publish(&mut self) {
        // The keeper sleeps while there is nothing to compact.
        if self.published.load().history.len() < 2 && self.working.history.len() >= 2 {
            self.notes.push(Note::Wake);
        }
        self.published.store(self.working.clone());
    }

    /// Starts the next segment. Everything in the old one is published, so its end is the published state.
    fn roll(&mut self) {
        match Log::create(self.options.disk.as_ref(), &self.dir, self.log.seq + 1, self.working.revision) {
            Ok(next) => {
                let old = std::mem::replace(&mut self.log, next);
                let _ = self.keeper.send(Note::Sealed(Sealed::new(old.seq, old.bytes, &self.working)));
            }
            Err(error) => drop(self.poison(error)),
        }
    }

    fn poison(&mut self, error: io::Error) -> StoreError {
        tracing::error!(%error, "a write failed: the store refuses changes until it is opened again");
        let error = StoreError::Poisoned(Arc::new(error));
        self.working = State::clone(&self.published.load());
        self.notes.clear();
        self.poisoned = Some(error.clone());
        error
    }
}
