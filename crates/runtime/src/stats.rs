//! What containers use, read from their cgroups and writable layers when somebody asks.

use std::path::Path;
use std::time::{Duration, Instant};

use cri::v1::{
    ContainerAttributes, ContainerStats, CpuUsage, FilesystemIdentifier, FilesystemUsage, MemoryUsage, SwapUsage,
    UInt64Value,
};

use crate::cgroup::{self, Usage};
use crate::record::ContainerRecord;

pub(crate) fn container_stats(
    record: &ContainerRecord,
    directory: &Path,
    layer: disk_usage::Usage,
    running: bool,
    now: i64,
) -> ContainerStats {
    let config = &record.config.0;
    let attributes = ContainerAttributes {
        id: record.id.clone(),
        metadata: config.metadata.clone(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
    };
    // A container that has ended has no usage, which is not the same as a usage of zero.
    let usage = running.then(|| cgroup::usage(&record.cgroup_path).ok()).flatten();
    ContainerStats {
        attributes: Some(attributes),
        cpu: usage.map(|u| CpuUsage {
            timestamp: now,
            usage_core_nano_seconds: some(u.cpu_nanos),
            usage_nano_cores: None,
        }),
        memory: usage.map(|u| memory(&u, now)),
        writable_layer: Some(usage_of(&directory.join("upper"), layer.bytes, layer.inodes, now)),
        swap: usage.map(|u| SwapUsage {
            timestamp: now,
            swap_available_bytes: None,
            swap_usage_bytes: some(u.swap_bytes),
        }),
    }
}

fn memory(usage: &Usage, now: i64) -> MemoryUsage {
    let available =
        usage.memory_limit_bytes.checked_sub(usage.working_set_bytes).filter(|_| usage.memory_limit_bytes > 0);
    MemoryUsage {
        timestamp: now,
        working_set_bytes: some(usage.working_set_bytes),
        available_bytes: available.and_then(some),
        usage_bytes: some(usage.memory_bytes),
        rss_bytes: some(usage.rss_bytes),
        page_faults: some(usage.page_faults),
        major_page_faults: some(usage.major_page_faults),
    }
}

fn some(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

/// How long a walk of a tree may take; what is not counted by then is left out.
const MEASURE_TIME: Duration = Duration::from_secs(2);
/// A measurement is good for this long, and for so many times what it took: a container with many files does not keep the node busy.
const FRESH_FOR: Duration = Duration::from_secs(10);
const FRESH_FACTOR: u32 = 20;

/// The last measurement of a container's writable layer.
#[derive(Default)]
pub(crate) struct Measured(tokio::sync::Mutex<Option<(Instant, disk_usage::Usage)>>);

impl Measured {
    /// The usage of a directory. One walk at a time, however many ask.
    pub(crate) async fn of(&self, directory: &Path) -> disk_usage::Usage {
        let mut last = self.0.lock().await;
        let begun = Instant::now();
        if let Some((fresh_until, usage)) = *last
            && begun < fresh_until
        {
            return usage;
        }
        let directory = directory.to_owned();
        let measured = tokio::task::spawn_blocking(move || disk_usage::measure(&directory, MEASURE_TIME)).await;
        let usage = measured.unwrap_or_default();
        *last = Some((Instant::now() + FRESH_FOR.max(begun.elapsed() * FRESH_FACTOR), usage));
        usage
    }
}

/// Bytes and inodes below a directory, as the disk counts them.
pub(crate) fn filesystem(path: &Path, now: i64) -> FilesystemUsage {
    let usage = disk_usage::measure(path, MEASURE_TIME);
    usage_of(path, usage.bytes, usage.inodes, now)
}

pub(crate) fn usage_of(path: &Path, bytes: u64, inodes: u64, now: i64) -> FilesystemUsage {
    FilesystemUsage {
        timestamp: now,
        fs_id: Some(FilesystemIdentifier { mountpoint: path.display().to_string() }),
        used_bytes: some(bytes),
        inodes_used: some(inodes),
    }
}
