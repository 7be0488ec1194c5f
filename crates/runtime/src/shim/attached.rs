//! A container's stdio as the shim holds it: the ends of its pipes or terminal, its log, and whoever is attached.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::logs::{Lines, LogFile, Stream};
use super::process::{Console, Stdio};
use super::protocol::ContainerSetup;

/// What an attached client may fall behind before it is cut off; the container never waits for it.
const ATTACH_BUFFER_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// Reads of one output before the shim serves requests, children and the other outputs again.
const READS_PER_TURN: usize = 4;

/// One output of the container and those who listen to it.
pub(super) struct Output {
    source: Option<File>,
    stream: Stream,
    lines: Lines,
    listeners: Vec<File>,
}

/// The outcome of one read of an output.
enum Pumped {
    Some(usize),
    Nothing,
    End,
}

/// All of a container's stdio.
pub(super) struct Attached {
    log: Option<LogFile>,
    /// The writing end of stdin, or the terminal.
    stdin: Option<OwnedFd>,
    tty: bool,
    outputs: Vec<Output>,
}

impl Attached {
    /// The shim's ends, and the container's.
    pub(super) fn new(
        setup: &ContainerSetup,
        console: impl FnOnce() -> io::Result<Console>,
    ) -> io::Result<(Self, Stdio)> {
        let open = |path| LogFile::open(path, setup.log_max_bytes);
        let log = setup.log_path.as_deref().map(open).transpose()?;
        if setup.tty {
            let attached = Self { log, stdin: None, tty: true, outputs: Vec::new() };
            return Ok((attached, Stdio::Terminal(console()?)));
        }
        let (stdin, stdin_child) = match setup.stdin {
            true => {
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
                (Some(writer), reader)
            }
            false => (None, OwnedFd::from(File::open("/dev/null")?)),
        };
        let (stdout, stdout_child) = output(Stream::Stdout)?;
        let (stderr, stderr_child) = output(Stream::Stderr)?;
        let attached = Self { log, stdin, tty: false, outputs: vec![stdout, stderr] };
        Ok((attached, Stdio::Fds([stdin_child, stdout_child, stderr_child])))
    }

    pub(super) fn set_terminal(&mut self, terminal: OwnedFd) -> io::Result<()> {
        let reader = terminal.try_clone()?;
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        self.outputs.push(Output {
            source: Some(reader.into()),
            stream: Stream::Stdout,
            lines: Lines::default(),
            listeners: Vec::new(),
        });
        self.stdin = Some(terminal);
        Ok(())
    }

    /// The descriptors to watch, with their index for [`Attached::pump`].
    pub(super) fn sources(&self) -> impl Iterator<Item = (usize, &File)> {
        self.outputs.iter().enumerate().filter_map(|(index, output)| Some((index, output.source.as_ref()?)))
    }

    /// Moves output that is ready to the log and the listeners: at most a turn's worth, as the descriptor is watched
    /// level-triggered and stays ready. False at the end of the output.
    pub(super) fn pump(&mut self, index: usize) -> bool {
        for _ in 0..READS_PER_TURN {
            if self.is_log_full() {
                break;
            }
            match self.pump_once(index) {
                Pumped::Some(_) => (),
                Pumped::Nothing => break,
                Pumped::End => return false,
            }
        }
        true
    }

    fn pump_once(&mut self, index: usize) -> Pumped {
        let Some(output) = self.outputs.get_mut(index) else { return Pumped::End };
        let Some(source) = output.source.as_mut() else { return Pumped::End };
        let mut buffer = vec![0; READ_BYTES];
        let read = loop {
            match source.read(&mut buffer) {
                Ok(read) => break read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Pumped::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                // A terminal whose last user is gone answers EIO.
                Err(_) => break 0,
            }
        };
        let time = jiff::Timestamp::now().to_string();
        let mut records = Vec::with_capacity(read + 256);
        let bytes = buffer.get(..read).unwrap_or_default();
        if read == 0 {
            output.lines.finish(output.stream, &time, &mut records);
            output.listeners.clear();
        } else {
            output.lines.feed(output.stream, bytes, &time, &mut records);
            output.listeners.retain_mut(|listener| forward(listener, bytes));
        }
        if let Some(log) = &mut self.log {
            log.write(&records);
        }
        if read == 0 { Pumped::End } else { Pumped::Some(read) }
    }

    /// Lets go of an output that is at its end.
    pub(super) fn close(&mut self, index: usize) -> Option<File> {
        self.outputs.get_mut(index)?.source.take()
    }

    /// Moves what is in the pipes to the log after the container's end, then closes them. Returns the files that were watched.
    pub(super) fn drain(&mut self) -> Vec<File> {
        for index in 0..self.outputs.len() {
            // A process that escaped with the descriptor could hold it open, or write, for ever: only what is there now counts.
            let source = self.outputs.get(index).and_then(|output| output.source.as_ref());
            let there = source.and_then(|source| rustix::io::ioctl_fionread(source).ok()).unwrap_or(0);
            let mut left = usize::try_from(there).unwrap_or(usize::MAX);
            while left > 0
                && let Pumped::Some(read) = self.pump_once(index)
            {
                left = left.saturating_sub(read);
            }
        }
        let mut closed = Vec::new();
        for output in &mut self.outputs {
            let mut records = Vec::new();
            output.lines.finish(output.stream, &jiff::Timestamp::now().to_string(), &mut records);
            if let Some(log) = &mut self.log {
                log.write(&records);
            }
            closed.extend(output.source.take());
            output.listeners.clear();
        }
        self.stdin = None;
        closed
    }

    /// Whether output waits for the log to be reopened.
    pub(super) fn is_log_full(&self) -> bool {
        self.log.as_ref().is_some_and(LogFile::is_full)
    }

    pub(super) fn drop_log_records(&mut self) {
        if let Some(log) = &mut self.log {
            log.drop_records();
        }
    }

    pub(super) fn reopen_log(&mut self) -> io::Result<()> {
        self.log.as_mut().map_or(Ok(()), LogFile::reopen)
    }

    pub(super) fn close_stdin(&mut self) {
        if !self.tty {
            self.stdin = None;
        }
    }

    /// Descriptors for a client: where to write stdin, where to read stdout and stderr.
    pub(super) fn attach(&mut self, stdin: bool, stdout: bool, stderr: bool) -> Result<Vec<OwnedFd>, String> {
        let mut fds = Vec::new();
        if stdin || self.tty {
            let held = self.stdin.as_ref().ok_or("the container's stdin is not open")?;
            fds.push(held.try_clone().map_err(|e| e.to_string())?);
        }
        for (wanted, stream) in [(stdout, Stream::Stdout), (stderr && !self.tty, Stream::Stderr)] {
            if !wanted {
                continue;
            }
            let output = self
                .outputs
                .iter_mut()
                .find(|output| output.stream == stream)
                .ok_or("the container has no such output")?;
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| e.to_string())?;
            let _ = rustix::pipe::fcntl_setpipe_size(&writer, ATTACH_BUFFER_BYTES);
            output.listeners.push(writer.into());
            fds.push(reader);
        }
        Ok(fds)
    }
}

fn output(stream: Stream) -> io::Result<(Output, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(reader.as_fd(), OFlags::NONBLOCK)?;
    Ok((Output { source: Some(reader.into()), stream, lines: Lines::default(), listeners: Vec::new() }, writer))
}

/// False when the listener is gone or too far behind.
fn forward(listener: &mut File, bytes: &[u8]) -> bool {
    use std::io::Write;
    listener.write_all(bytes).is_ok()
}
