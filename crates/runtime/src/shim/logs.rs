//! The container log as the kubelet reads it: `<time> <stream> <F|P> <line>`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Longer lines are written in parts tagged `P`, as other CRI runtimes do.
const MAX_LINE_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Turns one stream's bytes into log records. Holds at most one unfinished line.
#[derive(Default)]
pub(super) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Appends the records that `bytes` completes to `out`.
    pub(super) fn feed(&mut self, stream: Stream, mut bytes: &[u8], time: &str, out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_LINE_BYTES.saturating_sub(self.pending.len());
            let window = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
            if let Some(end) = window.iter().position(|b| *b == b'\n') {
                let (line, rest) = bytes.split_at(end);
                self.pending.extend_from_slice(line);
                self.record(stream, 'F', time, out);
                bytes = rest.get(1..).unwrap_or_default();
            } else {
                self.pending.extend_from_slice(window);
                bytes = bytes.get(window.len()..).unwrap_or_default();
                // A line of exactly the limit may still end here: it is cut only when more follows.
                if self.pending.len() >= MAX_LINE_BYTES && !bytes.starts_with(b"\n") && !bytes.is_empty() {
                    self.record(stream, 'P', time, out);
                } else if self.pending.len() >= MAX_LINE_BYTES && bytes.starts_with(b"\n") {
                    self.record(stream, 'F', time, out);
                    bytes = bytes.get(1..).unwrap_or_default();
                }
            }
        }
    }

    /// The last line, if the stream ended without a newline.
    pub(super) fn finish(&mut self, stream: Stream, time: &str, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.record(stream, 'F', time, out);
        }
    }

    fn record(&mut self, stream: Stream, tag: char, time: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{time} {} {tag} ", stream.name()).as_bytes());
        out.append(&mut self.pending);
        out.push(b'\n');
    }
}

/// The open log file; rotation renames it and asks for [`LogFile::reopen`].
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// The last write stopped within a record.
    torn: bool,
    bytes: u64,
    /// The log is full at this size, until it is reopened.
    limit: Option<u64>,
    /// What is written to a full log is dropped.
    drops: bool,
}

impl LogFile {
    /// `max_bytes` is the size from which somebody rotates the log; it is full at twice that size.
    pub(super) fn open(path: &Path, max_bytes: Option<u64>) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let (file, bytes) = append(path)?;
        let limit = max_bytes.map(|bytes| bytes.saturating_mul(2));
        Ok(Self { path: path.to_owned(), file, torn: false, bytes, limit, drops: false })
    }

    pub(super) fn reopen(&mut self) -> io::Result<()> {
        (self.file, self.bytes) = append(&self.path)?;
        (self.torn, self.drops) = (false, false);
        Ok(())
    }

    /// Whether it must be reopened before more is written. Not once its records are dropped.
    pub(super) fn is_full(&self) -> bool {
        !self.drops && self.limit.is_some_and(|limit| self.bytes >= limit)
    }

    /// Drops what comes until the log is reopened.
    pub(super) fn drop_records(&mut self) {
        self.drops = true;
    }

    /// Appends records. On a full disk they are lost, and the container goes on: it neither waits nor loses its stdout.
    pub(super) fn write(&mut self, records: &[u8]) {
        if records.is_empty() || self.drops || (self.torn && self.file.write_all(b"\n").is_err()) {
            return;
        }
        self.bytes = self.bytes.saturating_add(records.len() as u64);
        self.torn = self.file.write_all(records).is_err();
    }
}

/// The file, and its size.
fn append(path: &Path) -> io::Result<(File, u64)> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = File::options().create(true).append(true).mode(0o640).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_tagged_whole_or_partial() {
        check(&["a\nb\n"], "T stdout F a|T stdout F b|");
        check(&["a", "b\nc"], "T stdout F ab|T stdout F c|");
        check(&["\n\n"], "T stdout F |T stdout F |");
        check(&[""], "");
        let long = "x".repeat(MAX_LINE_BYTES);
        check(&[&format!("{long}\n")], &format!("T stdout F {long}|"));
        check(&[&format!("{long}y\n")], &format!("T stdout P {long}|T stdout F y|"));
        check(&[&long, "y\n"], &format!("T stdout P {long}|T stdout F y|"));
        check(&[&format!("{long}{long}z")], &format!("T stdout P {long}|T stdout P {long}|T stdout F z|"));
    }

    #[test]
    fn records_that_a_full_disk_cut_off_do_not_run_into_later_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("0.log");
        let mut log = LogFile::open(&path, None).expect("opened");
        log.write(b"one\n");
        log.file = File::options().append(true).open("/dev/full").expect("a full device");
        log.write(b"lost\n");
        assert!(log.torn);
        (log.file, _) = append(&path).expect("opened");
        log.write(b"two\n");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "one\n\ntwo\n");
    }

    #[test]
    fn a_full_log_holds_its_records_back_until_it_is_reopened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("0.log");
        std::fs::write(&path, "from before\n").expect("written");
        let mut log = LogFile::open(&path, Some(10)).expect("opened");
        assert!(!log.is_full());
        log.write(b"12345678\n");
        assert!(log.is_full());
        log.drop_records();
        assert!(!log.is_full());
        log.write(b"dropped\n");
        std::fs::rename(&path, folder.path().join("0.log.1")).expect("rotated");
        log.reopen().expect("reopened");
        log.write(b"kept\n");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "kept\n");
    }

    #[track_caller]
    fn check(chunks: &[&str], want: &str) {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.feed(Stream::Stdout, chunk.as_bytes(), "T", &mut out);
        }
        lines.finish(Stream::Stdout, "T", &mut out);
        assert_eq!(String::from_utf8_lossy(&out).replace('\n', "|"), want);
    }
}
