//! The controlling end of a terminal as an asynchronous stream, with its size.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Clone)]
pub(super) struct Terminal(Arc<AsyncFd<File>>);

impl Terminal {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        // SAFETY: the AsyncFd owns the descriptor and nothing else can close it.
        let registered = unsafe { AsyncFd::register(File::from(fd)) }?;
        Ok(Self(Arc::new(registered)))
    }

    pub(super) fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(self.0.get_ref(), size)?)
    }
}

impl AsyncRead for Terminal {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            match guard.try_io(|file| file.get_ref().read(buffer.initialize_unfilled())) {
                Ok(Ok(read)) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                // The last process with the other end is gone: for a terminal that is the end of file.
                Ok(Err(error)) if error.raw_os_error() == Some(nix::libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => (),
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            if let Ok(written) = guard.try_io(|file| file.get_ref().write(bytes)) {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
