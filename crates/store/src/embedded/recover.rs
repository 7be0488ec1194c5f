//! Opening: from files to state. A torn tail is cut; damage anywhere else is refused with its place.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    disk::{Disk, is_full},
    frame::{FrameReader, Read1, holds_frame},
    full::Reserve,
    log::{AppendError, Log, Sealed, base_path, log_path, seq_of},
    record::{self, Change, FORMAT, Record},
};
use crate::{OpenError, state::State};

/// The longest first frame: header, record kind, format, salt, revision.
const FIRST_FRAME_MAX: usize = 12 + 1 + 1 + 4 + 10;

pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) log: Log,
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) base_bytes: u64,
}

/// Loads what the files called `names` hold.
pub(crate) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    names: &[String],
    reserve: &Reserve,
    now: Instant,
) -> Result<Recovered, OpenError> {
    let seqs = |kind| {
        let mut seqs: Vec<u64> = names.iter().filter_map(|name| seq_of(name, kind)).collect();
        seqs.sort_unstable();
        seqs
    };
    let base = seqs("base").last().copied();
    remove_leftovers(disk, dir, names, base)?;

    let mut loader = Loader { disk, now, state: State::empty() };
    let mut base_bytes = 0;
    if let Some(seq) = base {
        base_bytes = loader.load_base(&base_path(dir, seq))?;
    }
    let first = base.unwrap_or(1);
    let logs: Vec<u64> = seqs("log").into_iter().filter(|seq| *seq >= first).collect();
    let mut sealed = Vec::new();
    let mut active = None;
    for (index, seq) in logs.iter().copied().enumerate() {
        let expected = first + index as u64;
        if seq != expected {
            return Err(corrupt(log_path(dir, expected), 0, "the file is missing"));
        }
        let tail = loader.load_log(&log_path(dir, seq), index + 1 == logs.len())?;
        if index + 1 < logs.len() {
            sealed.push(Sealed::new(seq, tail.offset, &loader.state));
        } else {
            active = Some((seq, tail));
        }
    }
    let state = loader.state;
    let log = match active {
        Some((seq, Tail { offset, salt })) if offset > 0 => Log::reopen(disk, dir, seq, offset, salt),
        Some((seq, _)) => create(disk, dir, reserve, seq, &state),
        None if base.is_some() => return Err(corrupt(log_path(dir, first), 0, "the file is missing")),
        None => create(disk, dir, reserve, first, &state),
    };
    let log = log.map_err(|source| refusal("write the log in", dir, source))?;
    Ok(Recovered { state, log, sealed, base_bytes })
}

/// Starts the segment whose creation a crash interrupted, of the reserve if there is no other space.
fn create(disk: &dyn Disk, dir: &Path, reserve: &Reserve, seq: u64, state: &State) -> io::Result<Log> {
    match Log::create(disk, dir, seq, state.revision) {
        Err(error) if is_full(&error) => {
            Log::adopt(disk, dir, &reserve.path, seq, state.revision).map_err(|failed| match failed {
                AppendError::Full(_) => error,
                AppendError::Unknown(error) => error,
            })
        }
        created => created,
    }
}

/// Files that a crash kept from being removed: drafts, and what the newest base replaces.
fn remove_leftovers(disk: &dyn Disk, dir: &Path, names: &[String], base: Option<u64>) -> Result<(), OpenError> {
    for name in names {
        let replaced =
            ["log", "base"].iter().any(|kind| seq_of(name, kind).is_some_and(|seq| base.is_some_and(|b| seq < b)));
        if replaced || name.ends_with(".tmp") {
            let path = dir.join(name);
            disk.remove(&path).map_err(|source| refusal("remove", &path, source))?;
        }
    }
    Ok(())
}

/// How far a file could be read.
struct Tail {
    offset: u64,
    salt: u32,
}

struct Loader<'a> {
    disk: &'a dyn Disk,
    now: Instant,
    state: State,
}

impl Loader<'_> {
    fn load_base(&mut self, path: &Path) -> Result<u64, OpenError> {
        let mut ended = false;
        let tail = self.load(path, |state, record| match record {
            Record::File { revision, .. } => {
                state.revision = revision;
                Ok(())
            }
            Record::KeyValue(kv) => {
                state.insert(kv);
                Ok(())
            }
            Record::Compact { revision } => {
                state.compacted = revision;
                Ok(())
            }
            Record::Grant { id, ttl_seconds } => {
                state.leases.insert(id, ttl_seconds);
                Ok(())
            }
            Record::End { keys } if keys == state.keys.len() as u64 => {
                ended = true;
                Ok(())
            }
            _ => Err("the record does not belong here"),
        });
        match tail? {
            (tail, None) if ended => Ok(tail.offset),
            (tail, reason) => Err(corrupt(path.to_owned(), tail.offset, reason.unwrap_or("the file ends too early"))),
        }
    }

    fn load_log(&mut self, path: &Path, last: bool) -> Result<Tail, OpenError> {
        let now = self.now;
        let (tail, broken) = self.load(path, |state, record| replay(state, record, now))?;
        let Some(reason) = broken else {
            // An empty file is a segment whose creation was cut short.
            return match tail.offset {
                0 if !last => Err(corrupt(path.to_owned(), 0, "the file is empty")),
                _ => Ok(tail),
            };
        };
        let rest = self.rest(path, &tail)?;
        let prepared = tail.offset > 0 && rest.iter().all(|byte| *byte == 0);
        if prepared {
            return Ok(tail);
        }
        if !last || frame_follows(&rest, &tail) {
            return Err(corrupt(path.to_owned(), tail.offset, reason));
        }
        tracing::warn!(file = %path.display(), offset = tail.offset, reason, "cut off a write that a crash interrupted");
        Ok(tail)
    }

    /// What stands behind the place where reading ended.
    fn rest(&self, path: &Path, tail: &Tail) -> Result<Vec<u8>, OpenError> {
        let read = || {
            let mut rest = Vec::new();
            let mut input = self.disk.read(path)?;
            io::copy(&mut input.by_ref().take(tail.offset), &mut io::sink())?;
            input.read_to_end(&mut rest)?;
            Ok(rest)
        };
        read().map_err(|source| refusal("read", path, source))
    }

    /// Feeds a file's records to `apply` until its end, or the first frame that is not whole (and why).
    fn load(
        &mut self,
        path: &Path,
        mut apply: impl FnMut(&mut State, Record) -> Result<(), &'static str>,
    ) -> Result<(Tail, Option<&'static str>), OpenError> {
        let input = self.disk.read(path).map_err(|source| refusal("read", path, source))?;
        let mut reader = FrameReader::new(input);
        loop {
            let offset = reader.offset;
            let salt = reader.salt;
            let mut payload = match reader.next().map_err(|source| refusal("read", path, source))? {
                Read1::Frame(payload) => payload,
                Read1::End => return Ok((Tail { offset, salt }, None)),
                Read1::Broken(reason) => return Ok((Tail { offset, salt }, Some(reason))),
            };
            let mut next_salt = salt;
            while !payload.is_empty() {
                let record = record::take(&mut payload)
                    .ok_or_else(|| corrupt(path.to_owned(), offset, "the record cannot be decoded"))?;
                match record {
                    Record::File { format, .. } if format != FORMAT => {
                        return Err(OpenError::Format { file: path.to_owned(), found: format, known: FORMAT });
                    }
                    Record::File { salt, .. } if offset == 0 => next_salt = salt,
                    _ if offset == 0 => return Err(corrupt(path.to_owned(), 0, "the file's first record is missing")),
                    _ => {}
                }
                apply(&mut self.state, record).map_err(|reason| corrupt(path.to_owned(), offset, reason))?;
            }
            reader.salt = next_salt;
        }
    }
}

/// Whether anything whole was written behind the frame that is broken. The first frame gives the salt, and is durable before
/// anything follows it: without it, any further byte is a sign.
fn frame_follows(rest: &[u8], tail: &Tail) -> bool {
    match tail.offset {
        0 => rest.len() > FIRST_FRAME_MAX,
        _ => rest.get(1..).is_some_and(|behind| holds_frame(behind, tail.salt)),
    }
}

/// One record of a log segment.
fn replay(state: &mut State, record: Record, now: Instant) -> Result<(), &'static str> {
    match record {
        Record::File { revision, .. } if revision == state.revision => {}
        Record::File { .. } => return Err("the file does not continue the one before it"),
        Record::Txn { revision, changes } if revision == state.revision + 1 => {
            let events = changes.into_iter().filter_map(|change| match change {
                Change::Put { key, value, lease } => Some(state.put(revision, key, value, lease)),
                Change::Delete { key } => state.delete(revision, key),
            });
            let events: Vec<_> = events.collect();
            if events.is_empty() {
                return Err("the revision changes nothing");
            }
            state.commit(events, now);
        }
        Record::Txn { .. } => return Err("the revision is out of order"),
        Record::Grant { id, ttl_seconds } => drop(state.leases.insert(id, ttl_seconds)),
        Record::Revoke { id } => drop(state.leases.remove(&id)),
        Record::Compact { revision } => drop(state.compact(revision)),
        Record::KeyValue(_) | Record::End { .. } => return Err("the record does not belong here"),
    }
    Ok(())
}

fn corrupt(file: PathBuf, offset: u64, reason: &str) -> OpenError {
    OpenError::Corrupt { file, offset, reason: reason.to_owned() }
}

/// Says what can be done about an error that has a known cause.
pub(crate) fn refusal(what: &'static str, path: &Path, source: io::Error) -> OpenError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly { path },
        io::ErrorKind::PermissionDenied => OpenError::Denied { path },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => OpenError::Full { path, free: 0, needed: 1 },
        _ => OpenError::Io { what, path, source },
    }
}
