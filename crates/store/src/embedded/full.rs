//! The full disk: the space that the store keeps for itself, and what it still does when nothing else is left.
//!
//! The reserve is a file of allocated zeros. When a frame finds no space, that file becomes the next segment of the log, so
//! nothing that other programs write can take it. From then on only what makes room, or changes what is stored by little, is
//! carried out; everything else is refused with [`StoreError::Full`](crate::StoreError::Full), and nothing of it is on disk. Each
//! refusal looks whether there is space again: a store that nobody writes to looks at nothing.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{Options, disk::is_full};
use crate::OpenError;

/// How much longer one transaction may make existing values while the disk is full: a deletion timestamp, a status, a lease.
pub(crate) const MAX_GROWTH: usize = 4 << 10;
/// The least time between two looks at the disk.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where the reserve is and how large.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    pub(crate) path: PathBuf,
    bytes: u64,
}

/// The state of a store whose disk is full.
pub(crate) struct Full {
    looked: Instant,
    /// Updates are carried out while the log is shorter than this; the rest of the reserve is for deletions.
    pub(crate) updates_until: u64,
}

impl Reserve {
    /// The sizes of `options`, made to fit a small file system: a sixteenth of it for a segment and for the reserve.
    pub(crate) fn fit(options: &mut Options, dir: &Path) -> Result<Reserve, std::io::Error> {
        let share = options.disk.space(dir)?.total / 16;
        options.segment_bytes = options.segment_bytes.min(share.max(1));
        Ok(Reserve { path: dir.join("reserve"), bytes: options.reserve_bytes.min(share) })
    }

    /// Allocates the reserve. A new store needs it; one that exists opens without, so that what filled its disk can be deleted.
    pub(crate) fn open(&self, options: &Options, dir: &Path, is_new: bool) -> Result<Option<Full>, OpenError> {
        match options.disk.reserve(&self.path, self.bytes) {
            Ok(()) => Ok(None),
            Err(error) if is_full(&error) && is_new => {
                let free = options.disk.space(dir).map_or(0, |space| space.free);
                Err(OpenError::Full { path: dir.to_owned(), free, needed: self.bytes })
            }
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "no space can be reserved for the store");
                Ok(is_full(&error).then(|| Full::now(0)))
            }
        }
    }

    /// The end of what updates may use, for a log that starts as this reserve.
    pub(crate) fn for_updates(&self) -> u64 {
        self.bytes / 2
    }

    /// Whether there is so much space again that a new reserve could be made, and it was.
    fn is_refilled(&self, options: &Options, dir: &Path) -> bool {
        let free = options.disk.space(dir).map_or(0, |space| space.free);
        free >= 2 * self.bytes && options.disk.reserve(&self.path, self.bytes).is_ok()
    }
}

impl Full {
    pub(crate) fn now(updates_until: u64) -> Full {
        Full { looked: Instant::now(), updates_until }
    }

    /// Whether the disk has space again.
    pub(crate) fn is_over(&mut self, reserve: &Reserve, options: &Options, dir: &Path) -> bool {
        let now = Instant::now();
        if now.duration_since(self.looked) < LOOK_EVERY {
            return false;
        }
        self.looked = now;
        reserve.is_refilled(options, dir)
    }
}
