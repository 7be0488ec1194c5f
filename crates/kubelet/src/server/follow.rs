//! Waits for a log to grow or to be replaced, with inotify.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Watches the folder: its files' writes, and the renames and creations of a rotation.
pub(crate) struct FolderWatch {
    /// Any file that can be polled and read will do where a pipe is expected.
    events: Receiver,
}

impl FolderWatch {
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF;
        inotify::add_watch(&fd, folder, flags)?;
        Ok(Self { events: Receiver::from_file_unchecked(File::from(fd))? })
    }

    /// Resolves when something happened in the folder since the last call. Safe to drop.
    pub(crate) async fn changed(&self) -> io::Result<()> {
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
    }
}
