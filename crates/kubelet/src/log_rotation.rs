//! Rotates container logs by size, as upstream's `pkg/kubelet/logs`: renamed, reopened by the runtime, older ones compressed.
//!
//! Files beside `0.log` are `0.log.20260102-030405` (the last one, readable at once) and `0.log.20260102-030405.gz`. Logs are looked at
//! every ten seconds, and sooner where one grows so fast that it will be full before.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cri::v1::{
    ContainerFilter, ContainerState, ContainerStateValue, ContainerStatusRequest, ListContainersRequest,
    ReopenContainerLogRequest,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use tokio::time::Instant;
use tonic::Status;

use crate::clock::Clock;

/// Upstream's `containerLogMonitorInterval`.
const PERIOD: Duration = Duration::from_secs(10);
/// How soon a container's log is rotated again at the earliest: what compressing costs the node is bounded by this.
const MIN_PERIOD: Duration = Duration::from_secs(1);

/// Upstream's `containerLogMaxSize` and `containerLogMaxFiles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    pub max_bytes: u64,
    /// With the one being written; at least two.
    pub max_files: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { max_bytes: 10 << 20, max_files: 5 }
    }
}

pub(crate) struct LogRotation {
    cri: Arc<dyn cri::Cri>,
    clock: Clock,
    limits: LogLimits,
    /// The logs of running containers, by id.
    logs: HashMap<String, Log>,
}

struct Log {
    path: PathBuf,
    bytes: u64,
    seen: Instant,
}

impl LogRotation {
    pub(crate) fn new(cri: Arc<dyn cri::Cri>, clock: Clock, limits: LogLimits) -> Self {
        Self { cri, clock, limits, logs: HashMap::new() }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let next = match self.pass().await {
                Ok(next) => next,
                Err(status) => {
                    tracing::warn!(error = %status, "container logs could not be rotated");
                    PERIOD
                }
            };
            tokio::time::sleep(next).await;
        }
    }

    /// Rotates what is due. Returns when to look again.
    async fn pass(&mut self) -> Result<Duration, Status> {
        let running = ContainerStateValue { state: ContainerState::ContainerRunning.into() };
        let filter = ContainerFilter { state: Some(running), ..Default::default() };
        let listed = self.cri.list_containers(ListContainersRequest { filter: Some(filter) }).await?.containers;
        self.logs.retain(|id, _| listed.iter().any(|container| container.id == *id));
        let mut next = PERIOD;
        for container in listed {
            if !self.logs.contains_key(&container.id) {
                let request = ContainerStatusRequest { container_id: container.id.clone(), verbose: false };
                let Ok(answer) = self.cri.container_status(request).await else { continue };
                let path = PathBuf::from(answer.status.unwrap_or_default().log_path);
                self.logs.insert(container.id.clone(), Log { path, bytes: 0, seen: Instant::now() });
            }
            let Some(log) = self.logs.get_mut(&container.id).filter(|log| !log.path.as_os_str().is_empty()) else {
                continue;
            };
            let bytes = fs::metadata(&log.path).map_or(0, |metadata| metadata.len());
            next = next.min(full_in(log.bytes, bytes, log.seen.elapsed(), self.limits.max_bytes));
            (log.bytes, log.seen) = (bytes, Instant::now());
            if bytes < self.limits.max_bytes {
                continue;
            }
            let path = log.path.clone();
            log.bytes = 0;
            if let Err(error) = self.rotate(&container.id, path).await {
                tracing::warn!(container = container.id, %error, "a container's log could not be rotated");
            }
        }
        Ok(next)
    }

    async fn rotate(&self, id: &str, path: PathBuf) -> io::Result<()> {
        let (now, limits) = (self.clock.now(), self.limits);
        let old = path.clone();
        let renamed = tokio::task::spawn_blocking(move || make_room(&old, limits).and_then(|()| rename(&old, now)));
        let rotated = renamed.await.map_err(io::Error::other)??;
        let request = ReopenContainerLogRequest { container_id: id.to_owned() };
        if let Err(status) = self.cri.reopen_container_log(request).await {
            // The runtime still writes the old file.
            fs::rename(&rotated, &path)?;
            return Err(io::Error::other(status.message().to_owned()));
        }
        Ok(())
    }
}

/// When a log that grew like this is full, within the bounds of how soon and how late it is looked at again.
fn full_in(before: u64, now: u64, elapsed: Duration, max: u64) -> Duration {
    let grown = now.saturating_sub(before);
    if grown == 0 {
        return PERIOD;
    }
    let left = max.saturating_sub(now);
    let nanos = elapsed.as_nanos().saturating_mul(u128::from(left)) / u128::from(grown);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).clamp(MIN_PERIOD, PERIOD)
}

/// Compresses the rotated logs of `path` and removes the oldest, so that with one more there are not too many.
fn make_room(path: &Path, limits: LogLimits) -> io::Result<()> {
    let mut rotated = Vec::new();
    for file in rotated_logs(path)? {
        // What an interrupted compression left.
        if file.extension().is_some_and(|extension| extension == "tmp") {
            fs::remove_file(&file)?;
        } else {
            rotated.push(file);
        }
    }
    // The log itself and the one that is rotated now count, too.
    let excess = rotated.len().saturating_sub(limits.max_files.saturating_sub(2));
    let kept = rotated.split_off(excess);
    for file in rotated {
        fs::remove_file(file)?;
    }
    for file in kept.iter().filter(|file| file.extension().is_none_or(|extension| extension != "gz")) {
        compress(file)?;
    }
    Ok(())
}

/// The files beside a log that its rotation made, the oldest first.
fn rotated_logs(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{name}.");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn compress(path: &Path) -> io::Result<()> {
    let with = |ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let (fresh, done) = (with(".tmp"), with(".gz"));
    let mut encoder = GzEncoder::new(File::create(&fresh)?, Compression::fast());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?;
    fs::rename(&fresh, &done)?;
    fs::remove_file(path)
}

fn rename(path: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", now.strftime("%Y%m%d-%H%M%S")));
    let rotated = PathBuf::from(name);
    fs::rename(path, &rotated)?;
    Ok(rotated)
}

/// Removes a container's log and what its rotations left.
pub(crate) fn remove(path: &Path) {
    for file in rotated_logs(path).unwrap_or_default().into_iter().chain([path.to_owned()]) {
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    #[test]
    fn old_logs_are_compressed_and_the_oldest_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("0.log");
        let limits = LogLimits { max_bytes: 1, max_files: 4 };
        fs::write(folder.path().join("1.log"), "another run's").expect("written");
        fs::write(folder.path().join("0.log.20250101-000000.tmp"), "interrupted").expect("written");
        for second in 0..6 {
            fs::write(&path, format!("text {second}")).expect("written");
            make_room(&path, limits).expect("room");
            rename(&path, Timestamp::from_second(second).expect("a time")).expect("renamed");
        }
        let want = ["0.log.19700101-000003.gz", "0.log.19700101-000004.gz", "0.log.19700101-000005", "1.log"];
        assert_eq!(names(folder.path()), want);
        let packed = File::open(folder.path().join("0.log.19700101-000004.gz")).expect("open");
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("gzip");
        assert_eq!(text, "text 4");
        remove(&path);
        assert_eq!(names(folder.path()), ["1.log"]);
    }

    #[test]
    fn a_log_that_grows_fast_is_looked_at_sooner() {
        let check = |before, now, elapsed, want: u64| {
            assert_eq!(full_in(before, now, Duration::from_secs(elapsed), 100), Duration::from_secs(want));
        };
        check(0, 0, 10, 10);
        check(50, 50, 10, 10);
        check(10, 20, 10, 10);
        check(0, 50, 4, 4);
        check(0, 200, 10, 1);
        check(80, 5, 10, 10);
    }
}
