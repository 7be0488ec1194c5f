//! Waits for files to grow or to be replaced, with inotify: logs, manifests, certificates.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Watches folders: their files' writes, and the renames and creations of a rotation.
pub struct FolderWatch {
    /// Any file that can be polled and read will do where a pipe is expected.
    events: Receiver,
}

impl FolderWatch {
    /// # Errors
    /// The folder is not there, or there are too many watches.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let watch = Self { events: Receiver::from_file_unchecked(File::from(fd))? };
        watch.add(folder)?;
        Ok(watch)
    }

    /// Watches one more folder.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn add(&self, folder: &Path) -> io::Result<()> {
        let flags = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF;
        inotify::add_watch(&self.events, folder, flags)?;
        Ok(())
    }

    /// Resolves when something happened in a folder since the last call. Safe to drop.
    ///
    /// # Errors
    /// The kernel does not tell any more.
    pub async fn changed(&self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let mut seen = false;
        loop {
            match self.events.try_read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => seen = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && seen => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.events.readable().await?,
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writes_and_renames_are_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let watch = FolderWatch::new(folder.path()).expect("a watch");
        let file = folder.path().join("0.log");
        std::fs::write(&file, "x").expect("written");
        watch.changed().await.expect("seen");
        std::fs::rename(&file, folder.path().join("0.log.1")).expect("renamed");
        watch.changed().await.expect("seen");
        let other = tempfile::tempdir().expect("a folder");
        watch.add(other.path()).expect("a second one");
        std::fs::write(other.path().join("x"), "x").expect("written");
        watch.changed().await.expect("seen");
    }
}
