//! What containers use, read from their cgroups and writable layers when somebody asks.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cri::v1::{
    ContainerAttributes, ContainerStats, CpuUsage, FilesystemIdentifier, FilesystemUsage, MemoryUsage, SwapUsage,
    UInt64Value,
};

use crate::cgroup::{self, Usage};
use crate::record::ContainerRecord;

pub(crate) fn container_stats(record: &ContainerRecord, directory: &Path, running: bool, now: i64) -> ContainerStats {
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
        writable_layer: Some(filesystem(&directory.join("upper"), now)),
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

/// Bytes and inodes below a directory, as the disk counts them.
pub(crate) fn filesystem(path: &Path, now: i64) -> FilesystemUsage {
    let (bytes, inodes) = measure(path);
    usage_of(path, bytes, inodes, now)
}

pub(crate) fn usage_of(path: &Path, bytes: u64, inodes: u64, now: i64) -> FilesystemUsage {
    FilesystemUsage {
        timestamp: now,
        fs_id: Some(FilesystemIdentifier { mountpoint: path.display().to_string() }),
        used_bytes: some(bytes),
        inodes_used: some(inodes),
    }
}

fn measure(path: &Path) -> (u64, u64) {
    let (mut bytes, mut inodes) = (0, 0);
    let mut pending = vec![path.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            bytes += metadata.blocks() * 512;
            inodes += 1;
            if metadata.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    (bytes, inodes)
}
