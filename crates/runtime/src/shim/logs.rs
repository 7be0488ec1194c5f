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
}

impl LogFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        Ok(Self { path: path.to_owned(), file: append(path)?, torn: false })
    }

    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.file = append(&self.path)?;
        self.torn = false;
        Ok(())
    }

    /// Appends records. On a full disk they are lost, and the container goes on: it neither waits nor loses its stdout.
    pub(super) fn write(&mut self, records: &[u8]) {
        if records.is_empty() || (self.torn && self.file.write_all(b"\n").is_err()) {
            return;
        }
        self.torn = self.file.write_all(records).is_err();
    }
}

fn append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().create(true).append(true).mode(0o640).open(path)
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
        let mut log = LogFile::open(&path).expect("opened");
        log.write(b"one\n");
        log.file = File::options().append(true).open("/dev/full").expect("a full device");
        log.write(b"lost\n");
        assert!(log.torn);
        log.file = append(&path).expect("opened");
        log.write(b"two\n");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "one\n\ntwo\n");
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
