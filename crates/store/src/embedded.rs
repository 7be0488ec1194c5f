//! The engine of a single machine: all keys in memory, every change in a log on disk.
//!
//! Reads look at the published state and never wait. Changes go through one commit thread; see [`commit`]. Old history
//! and old segments are given up by the keeper thread; see [`keeper`].

mod commit;
mod deadlines;
pub mod disk;
pub(crate) mod frame;
mod full;
mod keeper;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod record;
mod recover;
mod request;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc as std_mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use self::{
    commit::{Command, Committer, Reply},
    deadlines::Deadlines,
    disk::{Disk, RealDisk},
    frame::FrameBuffer,
    full::Reserve,
    keeper::{Keeper, Note},
    lock::DirLock,
};
use crate::{
    Keys, Lease, LeaseStatus, OpenError, Range, RangeResult, Revision, Snapshot, Store, StoreError, Txn, TxnResult,
    Watch, snapshot::Encoder, watch::Published,
};

/// Commands that may wait for the commit thread; whoever comes later waits to queue.
const QUEUE: usize = 4096;

#[derive(Clone)]
pub struct Options {
    /// How long what was replaced or deleted stays readable and watchable.
    pub history: Duration,
    /// How much memory history may take, whatever its age.
    pub history_bytes: usize,
    /// A log segment that has grown this large is finished and a new one started.
    pub segment_bytes: u64,
    /// The largest sum of keys and values in one transaction; etcd's default.
    pub request_bytes: usize,
    /// The most operations in one transaction; etcd's default.
    pub max_ops: usize,
    /// How much of the disk is set aside, so that what fills it can still be deleted. A small disk spares less.
    pub reserve_bytes: u64,
    pub disk: Arc<dyn Disk>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history: Duration::from_secs(300),
            history_bytes: 256 << 20,
            segment_bytes: 16 << 20,
            request_bytes: 3 << 19,
            max_ops: 128,
            reserve_bytes: 8 << 20,
            disk: Arc::new(RealDisk),
        }
    }
}

/// The embedded engine. Dropping it finishes what is being written and stops its threads, as [`Embedded::close`] does.
pub struct Embedded {
    published: Arc<Published>,
    deadlines: Arc<Deadlines>,
    commands: mpsc::Sender<Command>,
    options: Options,
    running: Mutex<Option<Running>>,
}

/// What ends with the engine.
struct Running {
    stopping: Arc<AtomicBool>,
    notes: std_mpsc::Sender<Note>,
    threads: [(JoinHandle<()>, oneshot::Receiver<()>); 2],
    _lock: DirLock,
}

impl Embedded {
    /// Opens the store in `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// If another process has it open, if it cannot be written, or if its files are damaged.
    pub fn open(dir: &Path, mut options: Options) -> Result<Embedded, OpenError> {
        let disk = options.disk.clone();
        disk.create_dir(dir).map_err(|source| recover::refusal("create", dir, source))?;
        let lock = DirLock::take(dir)?;
        let reserve = Reserve::fit(&mut options, dir).map_err(|source| recover::refusal("measure", dir, source))?;
        let names = disk.list(dir).map_err(|source| recover::refusal("list", dir, source))?;
        let is_new = !names.iter().any(|name| log::seq_of(name, "log").is_some());
        let full = reserve.open(&options, dir, is_new)?;
        let now = Instant::now();
        let recovered = recover::recover(disk.as_ref(), dir, &names, &reserve, now)?;
        let state = recovered.state;
        let deadlines = Arc::new(Deadlines::default());
        for (id, ttl_seconds) in &state.leases {
            deadlines.set(Lease { id: *id, ttl_seconds: *ttl_seconds }, now);
        }
        let published = Published::new(state.clone());
        let (commands, queue) = mpsc::channel(QUEUE);
        let (notes, notes_queue) = std_mpsc::channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let keeper = Keeper {
            notes: notes_queue,
            to_self: notes.clone(),
            commands: commands.clone(),
            published: published.clone(),
            deadlines: deadlines.clone(),
            options: options.clone(),
            dir: dir.to_owned(),
            sealed: recovered.sealed,
            retry_at: None,
            base_bytes: recovered.base_bytes,
            stopping: stopping.clone(),
            writer: None,
        };
        let committer = Committer {
            queue,
            keeper: notes.clone(),
            published: published.clone(),
            deadlines: deadlines.clone(),
            options: options.clone(),
            dir: dir.to_owned(),
            log: recovered.log,
            working: state,
            frame: FrameBuffer::new(),
            finishes: Vec::new(),
            notes: Vec::new(),
            poisoned: None,
            reserve,
            full,
            leases: Vec::new(),
        };
        let failed = |source| recover::refusal("start the threads of", dir, source);
        let commit = || {
            // Everybody who writes waits for this thread, which itself does little but wait for the disk.
            threads::be_prompt();
            committer.run();
        };
        let committer = spawn("store-commit", commit).map_err(failed)?;
        let keeper = spawn("store-keeper", || keeper.run()).map_err(failed)?;
        let running = Running { stopping, notes, threads: [keeper, committer], _lock: lock };
        Ok(Embedded { published, deadlines, commands, options, running: Mutex::new(Some(running)) })
    }

    /// Finishes every transaction that was accepted, ends all watches, stops the threads and frees the directory. Later
    /// requests are refused.
    pub async fn close(&self) {
        let Some(running) = self.running.lock().take() else { return };
        self.published.close();
        running.stopping.store(true, Ordering::Relaxed);
        let _ = running.notes.send(Note::Stop);
        let [(keeper, keeper_done), (committer, committer_done)] = running.threads;
        let _ = keeper_done.await;
        let _ = self.commands.send(Command::Stop).await;
        let _ = committer_done.await;
        join([keeper, committer]);
    }

    /// Sends a command to the commit thread and waits for its answer.
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    fn open_state(&self) -> Result<arc_swap::Guard<Arc<crate::state::State>>, StoreError> {
        if self.commands.is_closed() {
            return Err(StoreError::Closed);
        }
        Ok(self.published.load())
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let Some(running) = self.running.get_mut().take() else { return };
        self.published.close();
        running.stopping.store(true, Ordering::Relaxed);
        let _ = running.notes.send(Note::Stop);
        let [(keeper, _), (committer, _)] = running.threads;
        join([keeper]);
        // The last other sender went with the keeper; without any, the commit thread ends when the queue is empty.
        drop(std::mem::replace(&mut self.commands, mpsc::channel(1).0));
        join([committer]);
    }
}

/// A thread, and a receiver that resolves when it has ended.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<(JoinHandle<()>, oneshot::Receiver<()>)> {
    let (done, ended) = oneshot::channel::<()>();
    let body = move || {
        let _done = done;
        run();
    };
    Ok((std::thread::Builder::new().name(name.to_owned()).spawn(body)?, ended))
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread of the store panicked");
        }
    }
}

#[async_trait::async_trait]
impl Store for Embedded {
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        request::check_key(&range.start)?;
        self.open_state()?.range(&range)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError> {
        request::check(&txn, &self.options)?;
        if txn.success.iter().chain(&txn.failure).any(crate::Op::writes) {
            return self.ask(|reply| Command::Txn(txn, reply)).await;
        }
        // Nothing to write: a copy of the published state answers, and is thrown away.
        let mut state = crate::state::State::clone(&*self.open_state()?);
        state.apply(txn, Instant::now())
    }

    async fn watch(&self, start: Bytes, end: Option<Bytes>, from: Revision) -> Result<Watch, StoreError> {
        request::check_key(&start)?;
        self.published.watch(Keys::new(start, end), from)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.ask(|reply| Command::Compact(revision, reply)).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.open_state()?.revision)
    }

    async fn size(&self) -> Result<u64, StoreError> {
        Ok(self.open_state()?.keys.values().map(|kv| (kv.key.len() + kv.value.len()) as u64).sum())
    }

    async fn lease_grant(&self, ttl_seconds: i64, id: i64) -> Result<Lease, StoreError> {
        let lease = request::lease(ttl_seconds, id, &self.open_state()?.leases)?;
        self.ask(|reply| Command::Grant(lease, reply)).await?;
        Ok(lease)
    }

    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError> {
        self.ask(|reply| Command::Revoke(id, reply)).await
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        let ttl_seconds = self.open_state()?.leases.get(&id).copied().ok_or(StoreError::LeaseNotFound(id))?;
        let lease = Lease { id, ttl_seconds };
        match self.deadlines.renew(lease, Instant::now()) {
            true => Ok(lease),
            false => Err(StoreError::LeaseNotFound(id)),
        }
    }

    async fn lease_time_to_live(&self, id: i64) -> Result<LeaseStatus, StoreError> {
        let state = self.open_state()?;
        let granted = state.leases.get(&id).copied().ok_or(StoreError::LeaseNotFound(id))?;
        let remaining = self.deadlines.remaining(id, Instant::now()).ok_or(StoreError::LeaseNotFound(id))?;
        Ok(LeaseStatus {
            id,
            granted_ttl_seconds: granted,
            remaining_seconds: i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX),
            keys: state.keys_of(id),
        })
    }

    async fn leases(&self) -> Result<Vec<i64>, StoreError> {
        Ok(self.open_state()?.leases.keys().copied().collect())
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let state = self.open_state()?.clone();
        let encoder = Encoder::new(&state);
        let (revision, bytes) = (state.revision, encoder.bytes());
        Ok(Snapshot { revision, bytes, chunks: Box::pin(futures::stream::iter(encoder)) })
    }
}
