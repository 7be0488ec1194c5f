//! From a snapshot, or from another store, to a directory the embedded engine opens. It is there whole, or not at all.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{SnapshotError, Summary, decode};
use crate::{
    KeyValue, Lease, Revision,
    embedded::{
        disk::{Disk, RealDisk},
        lock::DirLock,
        log::{Log, write_base},
    },
    state::State,
};

/// How far revisions go up by default: more than a cluster can have written after the snapshot was taken, so that nobody
/// who saw those writes is ever shown their revisions again with other content. etcd recommends the same.
pub const REVISION_BUMP: Revision = 1_000_000_000;

/// Restores a snapshot into `dir`, which must be absent or empty. The store goes on `bump` revisions above the snapshot's
/// (at least one); watches from before it are told that they are too old.
///
/// # Errors
/// The snapshot is not whole, or the directory cannot be written.
pub fn restore(snapshot: &Path, dir: &Path, bump: Revision) -> Result<Summary, SnapshotError> {
    refuse_used(dir)?;
    let summary = decode::status(snapshot)?;
    write(decode::load(snapshot)?, dir, bump)?;
    Ok(summary)
}

/// Writes keys and leases of another store, as they were at `revision`, into `dir`, which must be absent or empty.
///
/// # Errors
/// The directory cannot be written.
pub fn adopt(
    dir: &Path,
    revision: Revision,
    leases: impl IntoIterator<Item = Lease>,
    keys: impl IntoIterator<Item = Arc<KeyValue>>,
) -> Result<(), SnapshotError> {
    refuse_used(dir)?;
    let mut state = State::empty();
    state.revision = revision;
    state.leases = leases.into_iter().map(|lease| (lease.id, lease.ttl_seconds)).collect();
    keys.into_iter().for_each(|kv| state.insert(kv));
    write(state, dir, 1)
}

fn refuse_used(dir: &Path) -> Result<(), SnapshotError> {
    match RealDisk.list(dir) {
        Ok(names) if names.is_empty() => Ok(()),
        Ok(_) => Err(SnapshotError::NotEmpty { dir: dir.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SnapshotError::Io { what: "read", path: dir.to_owned(), source }),
    }
}

fn write(mut state: State, dir: &Path, bump: Revision) -> Result<(), SnapshotError> {
    // Nothing happened at the revision it starts with, so whoever watches from there misses nothing.
    state.revision = state.revision.saturating_add(bump.max(1));
    state.compacted = state.revision;
    let draft = draft_of(dir);
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| SnapshotError::Io { what, path, source }
    };
    // Of an attempt that was cut short.
    match fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &draft)(error)),
        _ => {}
    }
    RealDisk.create_dir(&draft).map_err(failed("create", &draft))?;
    let _lock = DirLock::take(&draft)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    write_base(&disk, &draft, 1, &state, || true).map_err(failed("write", &draft))?;
    Log::create(disk.as_ref(), &draft, 1, state.revision).map_err(failed("write", &draft))?;
    // Takes the place of an empty directory too, and of nothing else.
    fs::rename(&draft, dir).map_err(failed("create", dir))?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    disk.sync_dir(parent).map_err(failed("sync", parent))
}

/// Beside it, so that a rename can move it.
fn draft_of(dir: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(dir.file_name().unwrap_or_default());
    name.push(".restoring");
    dir.with_file_name(name)
}
