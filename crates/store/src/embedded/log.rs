//! The log on disk: segments that are only ever appended to, and the base segment that replaces old ones.
//!
//! `log-N` holds changes in order; `base-N` holds the keys as they were where `log-N` starts. Loading the newest base and
//! every log from its number on gives the state; older files are leftovers. Behind a log's last frame there may be zeros.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    disk::{Disk, DiskFile, is_full},
    frame::FrameBuffer,
    record,
};
use crate::{Revision, state::State};

/// How much of a base segment is written and synced at once. Small, because a journaling file system may make the
/// log's sync wait for data another file has not yet written.
const BASE_CHUNK: usize = 1 << 20;

/// How much of a log is made ready at once: enough for some hundred usual writes, not so much that one of them waits for it.
const AHEAD: u64 = 256 << 10;

/// The segment that is being written.
pub(crate) struct Log {
    pub(crate) seq: u64,
    pub(crate) bytes: u64,
    file: Box<dyn DiskFile>,
    salt: u32,
}

/// A finished segment.
pub(crate) struct Sealed {
    pub(crate) seq: u64,
    pub(crate) bytes: u64,
    /// The state where it ends, until it is known whether a base will be made of it.
    pub(crate) state: Option<State>,
    pub(crate) end: Revision,
}

impl Sealed {
    pub(crate) fn new(seq: u64, bytes: u64, state: &State) -> Sealed {
        Sealed { seq, bytes, state: Some(state.without_history()), end: state.revision }
    }
}

/// Why a frame was not made durable.
pub(crate) enum AppendError {
    /// The disk is full. The log is as it was before.
    Full(io::Error),
    /// Nobody knows how much of the frame the disk holds.
    Unknown(io::Error),
}

impl Log {
    /// Starts segment `seq`, durable in its directory before anything is written to it.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, seq: u64, revision: Revision) -> io::Result<Log> {
        let mut file = disk.create(&log_path(dir, seq))?;
        let (salt, bytes) = begin(file.as_mut(), revision)?;
        file.sync()?;
        disk.sync_dir(dir)?;
        Ok(Log { seq, bytes, file, salt })
    }

    /// Makes segment `seq` of the `reserve`, a file of allocated zeros. It appears under its name when its first frame is durable.
    ///
    /// # Errors
    /// [`AppendError::Full`] means that there is no such segment, whatever the cause.
    pub(crate) fn adopt(
        disk: &dyn Disk,
        dir: &Path,
        reserve: &Path,
        seq: u64,
        revision: Revision,
    ) -> Result<Log, AppendError> {
        let begun = disk.overwrite(reserve).and_then(|mut file| {
            let (salt, bytes) = begin(file.as_mut(), revision)?;
            file.sync()?;
            Ok(Log { seq, bytes, file, salt })
        });
        let log = begun.map_err(AppendError::Full)?;
        disk.rename(reserve, &log_path(dir, seq)).map_err(|error| match is_full(&error) {
            true => AppendError::Full(error),
            false => AppendError::Unknown(error),
        })?;
        disk.sync_dir(dir).map_err(AppendError::Unknown)?;
        Ok(log)
    }

    /// Goes on with an existing segment. What it holds is made durable first: it may have been read from memory only.
    pub(crate) fn reopen(disk: &dyn Disk, dir: &Path, seq: u64, bytes: u64, salt: u32) -> io::Result<Log> {
        let mut file = disk.reopen(&log_path(dir, seq), bytes)?;
        file.sync()?;
        Ok(Log { seq, bytes, file, salt })
    }

    /// Writes a frame and returns when it is durable.
    pub(crate) fn append(&mut self, frame: &mut FrameBuffer) -> Result<(), AppendError> {
        let frame = frame.seal(self.salt).map_err(AppendError::Unknown)?;
        let end = self.bytes + frame.len() as u64;
        // Space is taken before anything is written: a full disk then leaves the log as it is.
        if end > self.file.prepared()
            && self.file.prepare(end + AHEAD).is_err()
            && let Err(error) = self.file.prepare(end)
        {
            return Err(if is_full(&error) { AppendError::Full(error) } else { AppendError::Unknown(error) });
        }
        match self.file.append(frame).and_then(|()| self.file.sync()) {
            Ok(()) => {
                self.bytes = end;
                Ok(())
            }
            // File systems that copy on write, or allocate late, notice only now. What is cut off is gone.
            Err(error) if is_full(&error) => match self.file.rewind(self.bytes) {
                Ok(()) => Err(AppendError::Full(error)),
                Err(error) => Err(AppendError::Unknown(error)),
            },
            Err(error) => Err(AppendError::Unknown(error)),
        }
    }
}

/// Writes a file's first frame and returns its salt and length.
fn begin(file: &mut dyn DiskFile, revision: Revision) -> io::Result<(u32, u64)> {
    let salt = RandomState::new().hash_one(revision) as u32;
    let mut frame = FrameBuffer::new();
    record::file(frame.payload(), salt, revision);
    let frame = frame.seal(0)?;
    file.append(frame)?;
    Ok((salt, frame.len() as u64))
}

/// Writes `state` as `base-seq` and returns its length. It appears under its name only when it is whole and durable.
/// `go_on` is asked now and then; if it says no the attempt is given up.
pub(crate) fn write_base(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    seq: u64,
    state: &State,
    go_on: impl Fn() -> bool,
) -> io::Result<u64> {
    let path = base_path(dir, seq);
    let draft = path.with_extension("tmp");
    let written = fill_base(disk.as_ref(), &draft, state, go_on).and_then(|bytes| {
        disk.rename(&draft, &path)?;
        disk.sync_dir(dir)?;
        Ok(bytes)
    });
    if written.is_err() {
        // A draft that stays is removed at the next open.
        let _ = disk.remove(&draft);
    }
    written
}

fn fill_base(disk: &dyn Disk, draft: &Path, state: &State, go_on: impl Fn() -> bool) -> io::Result<u64> {
    let mut file = disk.create(draft)?;
    let (salt, mut bytes) = begin(file.as_mut(), state.revision)?;
    let mut frame = FrameBuffer::new();
    let mut flush = |frame: &mut FrameBuffer| {
        if !go_on() {
            return Err(io::Error::from(io::ErrorKind::Interrupted));
        }
        let sealed = frame.seal(salt)?;
        bytes += sealed.len() as u64;
        file.append(sealed)?;
        frame.clear();
        file.sync()
    };
    record::compact(frame.payload(), state.compacted);
    for (id, ttl_seconds) in &state.leases {
        record::grant(frame.payload(), *id, *ttl_seconds);
    }
    for kv in state.keys.values() {
        record::key_value(frame.payload(), kv);
        if frame.payload_len() >= BASE_CHUNK {
            flush(&mut frame)?;
        }
    }
    record::end(frame.payload(), state.keys.len() as u64);
    flush(&mut frame)?;
    Ok(bytes)
}

pub(crate) fn log_path(dir: &Path, seq: u64) -> PathBuf {
    dir.join(format!("log-{seq:016x}"))
}

pub(crate) fn base_path(dir: &Path, seq: u64) -> PathBuf {
    dir.join(format!("base-{seq:016x}"))
}

/// The number in the name of a file of this `kind`.
pub(crate) fn seq_of(name: &str, kind: &str) -> Option<u64> {
    let digits = name.strip_prefix(kind)?.strip_prefix('-')?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
