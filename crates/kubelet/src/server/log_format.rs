//! The log files runtimes write: one line per write, `<RFC 3339 time> <stream> <tags> <text>`; the tag `P` marks a part of a line.

use std::io;
use std::path::Path;

use jiff::Timestamp;

use crate::tail;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry<'a> {
    pub(crate) at: Timestamp,
    /// As it is written, with all its digits.
    pub(crate) time: &'a str,
    pub(crate) stderr: bool,
    pub(crate) partial: bool,
    /// With its line end, unless it is a part.
    pub(crate) text: &'a [u8],
}

/// One whole line of the file, line end included; `None` if it is not in the format.
pub(crate) fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = parts.next()?;
    let tags = parts.next()?;
    let text = parts.next()?;
    let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    let text = if partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
    let stderr = match stream {
        b"stdout" => false,
        b"stderr" => true,
        _ => return None,
    };
    Some(Entry { at: time.parse().ok()?, time, stderr, partial, text })
}

/// Runtimes write entries of at most 16 KiB, so this holds more lines or bytes than a caller of [`last_lines`] asks for.
const MAX_TAIL_BYTES: u64 = 256 << 10;

/// The end of a log, without times: at most so many lines and bytes.
pub(crate) fn last_lines(path: &Path, lines: usize, bytes: usize) -> io::Result<String> {
    let (all, cut) = match tail::read(path, MAX_TAIL_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        read => read?,
    };
    let mut found: Vec<u8> = Vec::new();
    // What begins within an entry is no entry.
    let entries = all.split_inclusive(|byte| *byte == b'\n').skip(usize::from(cut));
    let parsed: Vec<Entry<'_>> = entries.filter_map(parse).collect();
    let whole = parsed.iter().rposition(|_| true).map_or(0, |_| start_of_last(&parsed, lines));
    for entry in parsed.iter().skip(whole) {
        found.extend_from_slice(entry.text);
    }
    let from = found.len().saturating_sub(bytes);
    Ok(String::from_utf8_lossy(found.get(from..).unwrap_or_default()).into_owned())
}

/// The index of the entry where the last `lines` whole lines begin.
fn start_of_last(entries: &[Entry<'_>], lines: usize) -> usize {
    let mut left = lines;
    for (index, _) in entries.iter().enumerate().rev() {
        let begins = index.checked_sub(1).and_then(|before| entries.get(before)).is_none_or(|before| !before.partial);
        if begins {
            left = left.saturating_sub(1);
            if left == 0 {
                return index;
            }
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = b"2026-01-02T03:04:05.123456789Z stdout F hello world\n";
        let entry = parse(line).expect("an entry");
        assert_eq!((entry.stderr, entry.partial, entry.text), (false, false, &b"hello world\n"[..]));
        assert_eq!(entry.time, "2026-01-02T03:04:05.123456789Z");
        let part = parse(b"2026-01-02T03:04:05Z stderr P half\n").expect("an entry");
        assert_eq!((part.stderr, part.partial, part.text), (true, true, &b"half"[..]));
        assert_eq!(parse(b"2026-01-02T03:04:05Z stdout F \n").map(|entry| entry.text), Some(&b"\n"[..]));
        for bad in [&b"nonsense\n"[..], b"2026-01-02T03:04:05Z other F x\n", b"", b"x stdout F y\n"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn the_end_of_a_log_is_whole_lines() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let t = "2026-01-02T03:04:05Z stdout";
        std::fs::write(file.path(), format!("{t} F one\n{t} P tw\n{t} F o\n{t} F three\n")).expect("written");
        let last = |lines, bytes| last_lines(file.path(), lines, bytes).expect("read");
        assert_eq!(last(1, 100), "three\n");
        assert_eq!(last(2, 100), "two\nthree\n");
        assert_eq!(last(80, 100), "one\ntwo\nthree\n");
        assert_eq!(last(80, 4), "ree\n");
        let long = format!("{t} P {}\n", "x".repeat(16 << 10)).repeat(100);
        std::fs::write(file.path(), format!("{long}{t} F end\n")).expect("written");
        assert_eq!(last(80, 5), "xend\n");
        assert_eq!(last(80, 2048).len(), 2048);
        assert_eq!(last_lines(Path::new("/nonexistent"), 1, 1).expect("nothing"), "");
    }
}
