//! One process per directory: a locked file that names its holder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

use super::disk::is_full;
use crate::OpenError;

/// Holds the directory until dropped. The kernel frees it too when the process dies.
pub(crate) struct DirLock(File);

impl DirLock {
    pub(crate) fn take(dir: &Path) -> Result<DirLock, OpenError> {
        let path = dir.join("LOCK");
        let failed = |what, source| super::recover::refusal(what, &path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|source| failed("open", source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let pid = file.read_to_string(&mut holder).ok().and_then(|_| holder.trim().parse().ok());
                return Err(OpenError::Locked { dir: dir.to_owned(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock", source)),
        }
        let named =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        match named {
            // The lock is held all the same; a full disk only keeps its holder's name from others.
            Err(error) if is_full(&error) => {}
            named => named.map_err(|source| failed("write", source))?,
        }
        Ok(DirLock(file))
    }
}

impl Drop for DirLock {
    /// Closing is not enough: a child process that is just being started holds the file too until it executes.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}
