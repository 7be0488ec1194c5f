//! Tells when a configuration file may have changed.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// What happens in the folder of a file, from now on.
pub(crate) struct FileWatch(File);

impl FileWatch {
    /// Watches the folder, since a file is often replaced rather than written.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        inotify::add_watch(&fd, folder, flags)?;
        Ok(Self(File::from(fd)))
    }

    /// To be waited for; only within a runtime.
    pub(crate) fn events(&self) -> io::Result<Events> {
        // Any file that can be polled and read will do where a pipe is expected.
        Receiver::from_file_unchecked(self.0.try_clone()?).map(Events)
    }
}

pub(crate) struct Events(Receiver);

impl Events {
    /// Something was written since the last call.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        self.0.readable().await?;
        loop {
            match self.0.try_read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
