//! Waits for a log to grow or to be replaced, with inotify.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Watches the folder: its files' writes, and the renames and creations of a rotation.
pub(crate) struct FolderWatch {
    fd: AsyncFd<OwnedFd>,
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
        Ok(Self { fd: AsyncFd::register(fd)? })
    }

    /// Resolves when something happened in the folder since the last call. Safe to drop.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        loop {
            let mut guard = self.fd.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
            let mut seen = false;
            loop {
                match reader.next() {
                    Ok(_) => seen = true,
                    Err(rustix::io::Errno::AGAIN) => break,
                    Err(rustix::io::Errno::INTR) => (),
                    Err(error) => return Err(error.into()),
                }
            }
            guard.clear_ready();
            if seen {
                return Ok(());
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
