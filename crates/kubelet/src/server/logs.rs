//! `kubectl logs`: reads a container's log file, and follows it until the container ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, watch};

use super::follow::FolderWatch;
use super::log_format;
use super::routes::Query;
use super::{Body, Server, text};
use crate::pod::observed::{Observed, Seen, State, observe};
use crate::spec;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<u64>,
    since: Option<Timestamp>,
    limit: Option<u64>,
    /// Only this stream.
    stderr: Option<bool>,
}

impl Options {
    fn parse(query: &Query, now: Timestamp) -> Option<Self> {
        let number = |name: &str| query.get(name).map(|text| text.parse::<u64>().ok());
        let tail = query.get("tail").or_else(|| query.get("tailLines")).filter(|text| *text != "all");
        let tail = tail.map(|text| text.parse::<u64>().ok());
        let since_seconds = number("sinceSeconds");
        let since_time = query.get("sinceTime").map(|text| text.parse::<Timestamp>().ok());
        if [tail, since_seconds, number("limitBytes")].contains(&Some(None)) || since_time == Some(None) {
            return None;
        }
        let ago = since_seconds.flatten().map(|seconds| {
            let since = now.checked_sub(jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX)));
            since.unwrap_or(Timestamp::MIN)
        });
        Some(Self {
            follow: query.is_set("follow"),
            previous: query.is_set("previous"),
            timestamps: query.is_set("timestamps"),
            tail: tail.flatten(),
            since: since_time.flatten().or(ago),
            limit: number("limitBytes").flatten(),
            stderr: match query.get("stream") {
                Some("Stdout") => Some(false),
                Some("Stderr") => Some(true),
                _ => None,
            },
        })
    }
}

pub(super) async fn serve(
    server: &Arc<Server>,
    namespace: &str,
    name: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let Some(options) = Options::parse(query, server.context.clock.now()) else {
        return text(StatusCode::BAD_REQUEST, "{\"message\": \"Unable to decode query.\"}".to_owned());
    };
    let Some(pod) = server.pod(namespace, name) else {
        return text(StatusCode::NOT_FOUND, format!("pod \"{name}\" does not exist"));
    };
    if spec::container(&pod, container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container \"{container}\" not found in pod \"{name}\""));
    }
    let observed = match observe(server.context.cri.as_ref(), spec::uid(&pod)).await {
        Ok(observed) => observed,
        Err(status) => return text(StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()),
    };
    let seen = match choose(&pod, &observed, container, options.previous) {
        Ok(seen) => seen.clone(),
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    let (lines, received) = mpsc::channel::<Bytes>(16);
    let path = PathBuf::from(&seen.log_path);
    let reader = Reading {
        server: server.clone(),
        uid: spec::uid(&pod).to_owned(),
        id: seen.id.clone(),
        news: server.news.clone(),
        options,
        lines,
    };
    match LogFile::open(&path, reader.options.tail) {
        Ok(file) => {
            tokio::spawn(reader.run(file));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && seen.state == State::Running => (),
        Err(error) => {
            let message = format!("failed to try resolving symlinks in path \"{}\": {error}", path.display());
            return text(StatusCode::BAD_REQUEST, message);
        }
    }
    let frames = futures::stream::unfold(received, |mut received| async move {
        received.recv().await.map(|bytes| (Ok(Frame::data(bytes)), received))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let plain = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert("content-type", plain);
    response
}

/// Which run's log is meant, or why there is none.
fn choose<'a>(pod: &Pod, observed: &'a Observed, container: &str, previous: bool) -> Result<&'a Seen, String> {
    let name = spec::name(pod);
    let status = spec::status(pod);
    let all = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let reported = all.into_iter().flatten().flatten().find(|status| status.name == container);
    let waiting = reported.and_then(|status| status.state.as_ref()?.waiting.as_ref());
    let mut runs = observed.containers.iter().filter(|seen| seen.name == container && seen.state != State::Created);
    let (newest, before) = (runs.next(), runs.next());
    if previous {
        // While it waits to run again, the last run is the previous one.
        let ended = newest.filter(|seen| seen.state == State::Exited && waiting.is_some());
        return ended
            .or(before)
            .ok_or_else(|| format!("previous terminated container \"{container}\" in pod \"{name}\" not found"));
    }
    newest.ok_or_else(|| {
        let why = match waiting.and_then(|waiting| waiting.reason.as_deref()) {
            Some("ErrImagePull") => "image can't be pulled",
            Some("ImagePullBackOff") => "trying and failing to pull image",
            Some(reason) => reason,
            None => return format!("container \"{container}\" in pod \"{name}\" is not available"),
        };
        format!("container \"{container}\" in pod \"{name}\" is waiting to start: {why}")
    })
}

/// A log file being read, which may be replaced by a rotation.
struct LogFile {
    path: PathBuf,
    reader: BufReader<File>,
    inode: u64,
    /// A line whose end is not written yet.
    pending: Vec<u8>,
}

impl LogFile {
    fn open(path: &Path, tail: Option<u64>) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if let Some(lines) = tail {
            let start = start_of_tail(&mut file, lines)?;
            file.seek(SeekFrom::Start(start))?;
        }
        let inode = file.metadata()?.ino();
        Ok(Self { path: path.to_owned(), reader: BufReader::with_capacity(64 << 10, file), inode, pending: Vec::new() })
    }

    /// The next whole line, or `None` at what is the end for now.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.reader.read_until(b'\n', &mut self.pending)?;
        Ok(self.pending.ends_with(b"\n").then(|| std::mem::take(&mut self.pending)))
    }

    /// Goes on with the new file when the old one was rotated away. Call at the end of the old one only.
    fn reopen(&mut self) -> bool {
        let replaced = std::fs::metadata(&self.path).is_ok_and(|meta| meta.ino() != self.inode);
        match replaced.then(|| Self::open(&self.path, None)) {
            Some(Ok(file)) => {
                *self = file;
                true
            }
            _ => false,
        }
    }
}

/// Where the last `lines` lines begin, read from the end in blocks.
fn start_of_tail(file: &mut File, lines: u64) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let end = file.metadata()?.len();
    if lines == 0 {
        return Ok(end);
    }
    let mut at = end;
    let mut found = 0;
    let mut block = Vec::new();
    while at > 0 {
        let size = at.min(BLOCK);
        at -= size;
        block.clear();
        file.seek(SeekFrom::Start(at))?;
        file.by_ref().take(size).read_to_end(&mut block)?;
        for (index, _) in block.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = at + u64::try_from(index).unwrap_or(0) + 1;
            // The end of the last line begins nothing.
            if after == end {
                continue;
            }
            found += 1;
            if found == lines {
                return Ok(after);
            }
        }
    }
    Ok(0)
}

struct Reading {
    server: Arc<Server>,
    uid: String,
    id: String,
    news: watch::Receiver<u64>,
    options: Options,
    lines: mpsc::Sender<Bytes>,
}

/// After a container has ended, its last lines may still be on their way to the file.
const SETTLE: Duration = Duration::from_millis(100);

impl Reading {
    async fn run(mut self, mut file: LogFile) {
        let folder = file.path.parent().map(Path::to_owned).unwrap_or_default();
        let watch = if self.options.follow { FolderWatch::new(&folder).ok() } else { None };
        let mut printer = Printer { options: self.options.clone(), left: self.options.limit, in_line: false };
        let mut ended = !self.options.follow || !self.is_running().await;
        let mut settled = !self.options.follow;
        loop {
            if !self.drain(&mut file, &mut printer).await {
                return;
            }
            if file.reopen() {
                continue;
            }
            if ended && settled {
                return;
            }
            let Some(watch) = &watch else { return };
            tokio::select! {
                changed = watch.changed() => if changed.is_err() { return },
                _ = self.news.changed(), if !ended => ended = !self.is_running().await,
                () = tokio::time::sleep(SETTLE), if ended => settled = true,
                () = self.lines.closed() => return,
            }
        }
    }

    /// Sends all whole lines; false when the caller has gone or has enough.
    async fn drain(&self, file: &mut LogFile, printer: &mut Printer) -> bool {
        let mut batch = Vec::new();
        loop {
            let line = match file.next() {
                Ok(line) => line,
                Err(error) => {
                    tracing::debug!(%error, "log could not be read");
                    return false;
                }
            };
            let more = line.as_deref().is_none_or(|line| printer.print(line, &mut batch));
            let flush = line.is_none() || !more || batch.len() >= 32 << 10;
            if flush && !batch.is_empty() && self.lines.send(Bytes::from(std::mem::take(&mut batch))).await.is_err() {
                return false;
            }
            if !more {
                return false;
            }
            if line.is_none() {
                return true;
            }
        }
    }

    async fn is_running(&self) -> bool {
        let observed = observe(self.server.context.cri.as_ref(), &self.uid).await.unwrap_or_default();
        observed.running().any(|seen| seen.id == self.id)
    }
}

/// Turns entries of the file into what the caller asked for.
struct Printer {
    options: Options,
    left: Option<u64>,
    /// The last entry was a part of a line.
    in_line: bool,
}

impl Printer {
    /// False when the limit is reached.
    fn print(&mut self, line: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(entry) = log_format::parse(line) else { return true };
        let other = self.options.stderr.is_some_and(|stderr| stderr != entry.stderr);
        if other || self.options.since.is_some_and(|since| entry.at < since) {
            return true;
        }
        let mut text = Vec::new();
        if self.options.timestamps && !self.in_line {
            text.extend_from_slice(entry.time.as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(entry.text);
        self.in_line = entry.partial;
        if let Some(left) = &mut self.left {
            let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
            text.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left = left.saturating_sub(size);
        }
        out.extend_from_slice(&text);
        self.left != Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-01-01T00:00:00.5Z stdout F one\n2026-01-01T00:00:01.5Z stderr F two\n\
                       2026-01-01T00:00:02.5Z stdout P thr\n2026-01-01T00:00:02.6Z stdout F ee\n2026-01-01T00:00:03.5Z stdout F four\n";

    #[track_caller]
    fn check(query: &str, want: &str) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), LOG).expect("written");
        let now = "2026-01-01T00:01:03Z".parse().expect("a time");
        let options = Options::parse(&Query::parse(query), now).expect("options");
        let mut log = LogFile::open(file.path(), options.tail).expect("opened");
        let mut printer = Printer { left: options.limit, options, in_line: false };
        let mut out = Vec::new();
        while let Some(line) = log.next().expect("read") {
            if !printer.print(&line, &mut out) {
                break;
            }
        }
        assert_eq!(String::from_utf8_lossy(&out), want, "{query}");
    }

    #[test]
    fn options_choose_what_is_printed() {
        check("", "one\ntwo\nthree\nfour\n");
        check("tailLines=1", "four\n");
        check("tailLines=0", "");
        check("tailLines=100", "one\ntwo\nthree\nfour\n");
        check("sinceTime=2026-01-01T00:00:01Z", "two\nthree\nfour\n");
        check("sinceSeconds=61", "three\nfour\n");
        check("timestamps=true&tailLines=1", "2026-01-01T00:00:03.5Z four\n");
        check("timestamps=true&sinceTime=2026-01-01T00:00:02Z&limitBytes=28", "2026-01-01T00:00:02.5Z three");
        check("limitBytes=6", "one\ntw");
        check("stream=Stderr", "two\n");
    }

    #[test]
    fn a_rotated_log_goes_on_in_the_new_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("0.log");
        std::fs::write(&path, "2026-01-01T00:00:00Z stdout F a\n2026-01-01T00:00:00Z stdout F half").expect("written");
        let mut log = LogFile::open(&path, None).expect("opened");
        assert!(log.next().expect("read").is_some());
        assert!(log.next().expect("read").is_none(), "a line without its end is not a line");
        assert!(!log.reopen());
        std::fs::rename(&path, folder.path().join("0.log.old")).expect("renamed");
        std::fs::write(&path, "2026-01-01T00:00:00Z stdout F b\n").expect("written");
        assert!(log.reopen());
        assert!(log.next().expect("read").is_some_and(|line| line.ends_with(b"b\n")));
    }

    #[test]
    fn bad_numbers_are_refused() {
        for query in ["tailLines=x", "sinceTime=yesterday", "limitBytes=-1"] {
            assert_eq!(Options::parse(&Query::parse(query), Timestamp::UNIX_EPOCH), None, "{query}");
        }
    }
}
