//! From a file to what it holds. Its hash is checked before anything in it is believed.

use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use sha2::{Digest, Sha256};

use super::{HASH, MAGIC, PAGE, SnapshotError};
use crate::{
    Revision,
    embedded::{
        frame::{FrameReader, Read1},
        record::{self, FORMAT, Record},
    },
    state::State,
};

/// Where bbolt, etcd's own file format, has its magic number, and which.
const BBOLT: (usize, [u8; 4]) = (16, 0xED0C_DAED_u32.to_le_bytes());
const BUFFER: usize = 256 << 10;

/// What `ferry snapshot status` tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// SHA-256 of the content, in hexadecimal digits.
    pub hash: String,
    pub revision: Revision,
    pub compacted_revision: Revision,
    pub keys: u64,
    pub leases: u64,
    /// Of the whole file.
    pub bytes: u64,
}

/// Verifies a snapshot and tells what it holds.
///
/// # Errors
/// It is not whole, or not one of ours.
pub fn status(path: &Path) -> Result<Summary, SnapshotError> {
    decode(path, drop)
}

/// Verifies a snapshot and loads it.
pub(super) fn load(path: &Path) -> Result<State, SnapshotError> {
    let mut state = State::empty();
    decode(path, |record| match record {
        Record::File { revision, .. } => state.revision = revision,
        Record::Compact { revision } => state.compacted = revision,
        Record::Grant { id, ttl_seconds } => drop(state.leases.insert(id, ttl_seconds)),
        Record::KeyValue(kv) => state.insert(kv),
        // `decode` lets nothing else through.
        Record::End { .. } | Record::Txn { .. } | Record::Revoke { .. } => {}
    })?;
    Ok(state)
}

fn decode(path: &Path, mut each: impl FnMut(Record)) -> Result<Summary, SnapshotError> {
    let failed = |source| SnapshotError::Io { what: "read", path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    recognise(path, &mut file, bytes)?;
    let hash = verify(path, &mut file, bytes)?;
    file.seek(SeekFrom::Start(MAGIC.len() as u64)).map_err(failed)?;
    let mut reader = FrameReader::new(BufReader::with_capacity(BUFFER, file));
    let mut summary = Summary { hash, bytes, ..Summary::default() };
    loop {
        let offset = MAGIC.len() as u64 + reader.offset;
        let unreadable = |reason| SnapshotError::Unreadable { path: path.to_owned(), offset, reason };
        let mut payload = match reader.next().map_err(failed)? {
            Read1::Frame(payload) => payload,
            Read1::End => return Err(unreadable("the end is missing")),
            Read1::Broken(reason) => return Err(unreadable(reason)),
        };
        let mut next_salt = None;
        while !payload.is_empty() {
            let record = record::take(&mut payload).ok_or_else(|| unreadable("the record cannot be decoded"))?;
            match &record {
                Record::File { format, salt, revision } if *format == FORMAT => {
                    next_salt = Some(*salt);
                    summary.revision = *revision;
                }
                Record::Compact { revision } => summary.compacted_revision = *revision,
                Record::Grant { .. } => summary.leases += 1,
                Record::KeyValue(_) => summary.keys += 1,
                Record::End { keys } if *keys == summary.keys => return Ok(summary),
                _ => return Err(unreadable("the record does not belong here")),
            }
            each(record);
        }
        reader.salt = next_salt.unwrap_or(reader.salt);
    }
}

/// Tells our files from others, and whole ones from cut ones as far as their length does.
fn recognise(path: &Path, file: &mut File, bytes: u64) -> Result<(), SnapshotError> {
    let failed = |source| SnapshotError::Io { what: "read", path: path.to_owned(), source };
    let mut start = Vec::new();
    file.by_ref().take(32).read_to_end(&mut start).map_err(failed)?;
    let (at, bbolt) = BBOLT;
    if start.get(at..).is_some_and(|rest| rest.starts_with(&bbolt)) {
        return Err(SnapshotError::Etcd { path: path.to_owned() });
    }
    let (known, layout) = (MAGIC.last().copied().unwrap_or(0), start.get(MAGIC.len() - 1).copied());
    match layout {
        _ if !start.starts_with(MAGIC.split_last().map_or(&[], |(_, name)| name)) => {
            return Err(SnapshotError::Foreign { path: path.to_owned() });
        }
        Some(found) if found != known => return Err(SnapshotError::Layout { path: path.to_owned(), found, known }),
        _ => {}
    }
    if bytes % PAGE as u64 != HASH as u64 || bytes < (PAGE + HASH) as u64 {
        return Err(SnapshotError::Truncated { path: path.to_owned(), bytes });
    }
    Ok(())
}

fn verify(path: &Path, file: &mut File, bytes: u64) -> Result<String, SnapshotError> {
    let failed = |source| SnapshotError::Io { what: "read", path: path.to_owned(), source };
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut content = file.by_ref().take(bytes - HASH as u64);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = content.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        hash.update(buffer.get(..count).unwrap_or_default());
    }
    let mut written = Vec::new();
    file.by_ref().take(HASH as u64).read_to_end(&mut written).map_err(failed)?;
    let found = hash.finalize();
    if *found != *written {
        return Err(SnapshotError::Damaged { path: path.to_owned(), expected: hex(&written), found: hex(&found) });
    }
    Ok(hex(&written))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
