//! The commit thread: the only one that changes the store.
//!
//! It takes all commands that wait, applies them to its own copy of the state, writes what changed as one frame, syncs
//! once, publishes the copy, and only then answers. Where the disk is full the copy is thrown away and the changes are
//! refused; see [`full`](super::full). After any other failed write or sync every further change is refused too: nobody can know
//! what the disk holds until it is read again.

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
    disk::is_full,
    frame::FrameBuffer,
    full::{Full, MAX_GROWTH, Reserve},
    keeper::Note,
    log::{AppendError, Log, Sealed, log_path},
    record,
};
use crate::{
    Lease, Revision, StoreError, Txn, TxnResult,
    state::{Need, State},
    watch::Published,
};

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
    pub(crate) reserve: Reserve,
    pub(crate) full: Option<Full>,
    /// The leases that this frame grants or revokes.
    pub(crate) leases: Vec<i64>,
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
            Command::Txn(txn, reply) if self.is_full() && !self.is_spared(&txn) => {
                self.change(reply, |_, _| Err(StoreError::Full));
            }
            Command::Txn(txn, reply) => self.change(reply, |this, now| this.working.apply(txn, now)),
            Command::Grant(_, reply) if self.is_full() => self.change(reply, |_, _| Err(StoreError::Full)),
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
        self.leases.push(lease.id);
        self.deadlines.set(lease, now);
        self.notes.push(Note::Wake);
        Ok(())
    }

    fn revoke(&mut self, id: i64, now: Instant) -> Result<Revision, StoreError> {
        self.working.revoke(id, now)?;
        self.leases.push(id);
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
            _ => self.write().err(),
        };
        if failed.is_none() && self.frame.payload_len() > 0 {
            self.publish();
        }
        self.frame.clear();
        self.leases.clear();
        for finish in self.finishes.drain(..) {
            finish(failed.as_ref());
        }
        if self.working.revision > before {
            self.published.wake(before);
        }
        for note in self.notes.drain(..) {
            let _ = self.keeper.send(note);
        }
        if self.log.bytes >= self.options.segment_bytes && self.poisoned.is_none() && self.full.is_none() {
            self.roll();
        }
    }

    /// Makes the frame durable; on a full disk with the space that is reserved for it.
    fn write(&mut self) -> Result<(), StoreError> {
        match self.log.append(&mut self.frame) {
            Ok(()) => return Ok(()),
            Err(AppendError::Full(error)) => self.use_reserve(&error)?,
            Err(AppendError::Unknown(error)) => return Err(self.poison(error)),
        }
        match self.log.append(&mut self.frame) {
            Ok(()) => Ok(()),
            Err(AppendError::Full(_)) => Err(self.refuse()),
            Err(AppendError::Unknown(error)) => Err(self.poison(error)),
        }
    }

    /// Goes on in the reserve, if it is still there.
    fn use_reserve(&mut self, cause: &io::Error) -> Result<(), StoreError> {
        if self.full.is_none() {
            tracing::warn!(error = %cause, dir = %self.dir.display(), "the disk of the store is full: only what takes no space is done");
            let _ = self.keeper.send(Note::Tight);
        }
        let (disk, seq) = (self.options.disk.as_ref(), self.log.seq + 1);
        match Log::adopt(disk, &self.dir, &self.reserve.path, seq, self.published.load().revision) {
            Ok(next) => {
                self.full = Some(Full::now(self.reserve.for_updates()));
                self.seal(next);
                Ok(())
            }
            Err(AppendError::Full(_)) => {
                self.full.get_or_insert_with(|| Full::now(0));
                Err(self.refuse())
            }
            Err(AppendError::Unknown(error)) => Err(self.poison(error)),
        }
    }

    fn is_full(&mut self) -> bool {
        let Some(full) = &mut self.full else { return false };
        if full.is_over(&self.reserve, &self.options, &self.dir) {
            tracing::info!(dir = %self.dir.display(), "the disk of the store has space again");
            self.full = None;
            let _ = self.keeper.send(Note::Tight);
        }
        self.full.is_some()
    }

    /// Whether a full disk has room for this: it deletes, or makes what is stored a little longer.
    fn is_spared(&self, txn: &Txn) -> bool {
        let updates_until = self.full.as_ref().map_or(0, |full| full.updates_until);
        match self.working.need(txn) {
            Need::Nothing => true,
            Need::Growth(bytes) => {
                bytes <= MAX_GROWTH && self.log.bytes + (self.frame.payload_len() as u64) < updates_until
            }
            Need::Key => false,
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
        let (disk, seq) = (self.options.disk.clone(), self.log.seq + 1);
        match Log::create(disk.as_ref(), &self.dir, seq, self.working.revision) {
            Ok(next) => self.seal(next),
            // The old segment goes on: it must be the last one, with nothing behind it.
            Err(error) if is_full(&error) => match disk.remove(&log_path(&self.dir, seq)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => drop(self.poison(error)),
                _ => {}
            },
            Err(error) => drop(self.poison(error)),
        }
    }

    /// Goes on with `next`. Everything in the old segment is published.
    fn seal(&mut self, next: Log) {
        let old = std::mem::replace(&mut self.log, next);
        let _ = self.keeper.send(Note::Sealed(Sealed::new(old.seq, old.bytes, &self.published.load())));
    }

    fn poison(&mut self, error: io::Error) -> StoreError {
        tracing::error!(%error, "a write failed: the store refuses changes until it is opened again");
        let error = StoreError::Poisoned(Arc::new(error));
        self.discard();
        self.poisoned = Some(error.clone());
        error
    }

    /// Refuses what is in the frame, of which nothing is on disk.
    fn refuse(&mut self) -> StoreError {
        self.discard();
        StoreError::Full
    }

    /// Takes the changes in the frame back.
    fn discard(&mut self) {
        let published = self.published.load();
        let now = Instant::now();
        for id in self.leases.drain(..) {
            match published.leases.get(&id) {
                // One that could not be ended lasts once more.
                Some(ttl_seconds) => self.deadlines.set(Lease { id, ttl_seconds: *ttl_seconds }, now),
                None => self.deadlines.remove(id),
            }
        }
        self.working = State::clone(&published);
        self.notes.clear();
    }
}
