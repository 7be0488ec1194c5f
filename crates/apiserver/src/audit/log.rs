//! The file that audit events go to, or standard output; a thread of its own writes it.
//!
//! Lines that wait are written together, and whoever sent one is told once it is written. The queue is bounded: when the
//! disk is slower than the requests, the requests wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::sync::{mpsc, oneshot};

const QUEUE: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;
/// The rotating writer upstream uses does so from here on, if not told.
const DEFAULT_MAX_SIZE_MIB: u64 = 100;
const SECONDS_PER_DAY: i64 = 24 * 60 * 60;
/// In the names of files that were rotated away.
const TIME: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// Where the log goes, and what is kept of it; upstream's `--audit-log-*` flags. Zero means no limit, but for the size.
#[derive(Clone, Debug)]
pub struct AuditLog {
    /// `-` is standard output.
    pub path: PathBuf,
    pub max_age_days: u32,
    pub max_backups: u32,
    pub max_size_mib: u64,
}

struct Line {
    text: String,
    written: oneshot::Sender<()>,
}

pub(super) struct Log(mpsc::Sender<Line>);

impl Log {
    pub(super) fn open(config: AuditLog) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let target = Target::open(config)?;
        std::thread::Builder::new().name("audit-log".into()).spawn(move || run(target, receiver))?;
        Ok(Self(sender))
    }

    /// Returns when the line is in the file, or cannot be.
    pub(super) async fn write(&self, text: String) {
        let (written, done) = oneshot::channel();
        if self.0.send(Line { text, written }).await.is_ok() {
            let _ = done.await;
        }
    }

    /// For those who cannot wait; nothing is lost for that.
    pub(super) fn write_later(&self, text: String) {
        let (written, _) = oneshot::channel();
        let Err(mpsc::error::TrySendError::Full(line)) = self.0.try_send(Line { text, written }) else { return };
        let sender = self.0.clone();
        // Without a runtime the process is ending, and its streams with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { sender.send(line).await });
        }
    }
}

fn run(mut target: Target, mut lines: mpsc::Receiver<Line>) {
    while let Some(first) = lines.blocking_recv() {
        let (mut text, mut waiting) = (first.text, vec![first.written]);
        while text.len() < BATCH_BYTES
            && let Ok(line) = lines.try_recv()
        {
            text.push_str(&line.text);
            waiting.push(line.written);
        }
        if let Err(error) = target.write(text.as_bytes()) {
            tracing::error!(%error, events = waiting.len(), "audit events are lost");
        }
        for written in waiting {
            // Its request may have been given up.
            let _ = written.send(());
        }
    }
}

enum Target {
    Stdout,
    File { file: File, size: u64, config: AuditLog },
}

impl Target {
    fn open(config: AuditLog) -> io::Result<Self> {
        if config.path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        if let Some(parent) = config.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent)?;
        }
        let file = append(&config.path)?;
        let size = file.metadata()?.len();
        Ok(Self::File { file, size, config })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Self::File { file, size, config } = self else {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes)?;
            return stdout.flush();
        };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if *size > 0 && size.saturating_add(length) > most_bytes(config) {
            let now = jiff::Timestamp::now();
            std::fs::rename(&config.path, backup(&config.path, now))?;
            *file = append(&config.path)?;
            *size = 0;
            forget(config, now)?;
        }
        file.write_all(bytes)?;
        *size += length;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn most_bytes(config: &AuditLog) -> u64 {
    let mib = if config.max_size_mib == 0 { DEFAULT_MAX_SIZE_MIB } else { config.max_size_mib };
    mib.saturating_mul(1 << 20)
}

/// The parts of a name that its time goes between: `audit-` and `.log`.
fn parts(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    (format!("{stem}-"), extension.unwrap_or_default())
}

fn backup(path: &Path, now: jiff::Timestamp) -> PathBuf {
    let (head, tail) = parts(path);
    path.with_file_name(format!("{head}{}{tail}", now.strftime(TIME)))
}

/// Deletes what is too old or too much.
fn forget(config: &AuditLog, now: jiff::Timestamp) -> io::Result<()> {
    let (head, tail) = parts(&config.path);
    let directory = config.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut backups = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let time = name.strip_prefix(&head).and_then(|rest| rest.strip_suffix(&tail));
        let time = time.and_then(|time| jiff::civil::DateTime::strptime(TIME, time).ok());
        if let Some(time) = time.and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC).ok()) {
            backups.push((time.timestamp(), name));
        }
    }
    // The newest first.
    backups.sort_by(|a, b| b.cmp(a));
    let most = usize::try_from(config.max_backups).unwrap_or(usize::MAX);
    let oldest = i64::from(config.max_age_days) * SECONDS_PER_DAY;
    for (index, (time, name)) in backups.iter().enumerate() {
        let too_many = most > 0 && index >= most;
        let too_old = oldest > 0 && now.as_second() - time.as_second() > oldest;
        if too_many || too_old {
            std::fs::remove_file(directory.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> AuditLog {
        AuditLog { path: dir.join("audit.log"), max_age_days: 0, max_backups: 2, max_size_mib: 1 }
    }

    fn backups(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().filter(|e| e.as_ref().unwrap().file_name() != "audit.log").count()
    }

    #[test]
    fn a_full_file_is_put_aside_and_few_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut target = Target::open(config(dir.path())).unwrap();
        let line = vec![b'x'; 700 << 10];
        for expected in [0, 1, 2, 2] {
            target.write(&line).unwrap();
            assert_eq!(backups(dir.path()), expected);
            // Names are told apart by the millisecond.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(std::fs::metadata(dir.path().join("audit.log")).unwrap().len(), line.len() as u64);
    }

    #[test]
    fn what_is_too_old_goes_and_what_is_not_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let config = AuditLog { max_age_days: 1, max_backups: 0, ..config(dir.path()) };
        for name in ["audit-2020-01-01T00-00-00.000.log", "audit-notes.log", "other-2020-01-01T00-00-00.000.log"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        forget(&config, jiff::Timestamp::now()).unwrap();
        assert!(!dir.path().join("audit-2020-01-01T00-00-00.000.log").exists());
        assert_eq!(backups(dir.path()), 2);
    }
}
