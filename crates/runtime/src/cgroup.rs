//! cgroups as files, version 1 and 2: where a pod's groups are, their limits, usage, and end.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use cri::v1::LinuxContainerResources;
use rustix::process::Signal;

const ROOT: &str = "/sys/fs/cgroup";
/// A killed process is gone at once unless the kernel waits for a device.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the unified hierarchy is the one in use.
pub(crate) fn is_v2() -> bool {
    static V2: OnceLock<bool> = OnceLock::new();
    *V2.get_or_init(|| Path::new(ROOT).join("cgroup.controllers").exists())
}

/// The directory of `group` for a controller.
fn directory(controller: &str, group: &str) -> PathBuf {
    let group = group.trim_start_matches('/');
    match is_v2() {
        true => Path::new(ROOT).join(group),
        false => Path::new(ROOT).join(controller).join(group),
    }
}

/// Every directory that `group` has, over all mounted hierarchies.
fn directories(group: &str) -> Vec<PathBuf> {
    if group.trim_matches('/').is_empty() {
        return Vec::new();
    }
    if is_v2() {
        return vec![directory("", group)];
    }
    let mut roots: Vec<PathBuf> = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|e| e.path()).collect();
    // Controllers mounted together have symbolic links beside them.
    roots.retain(|root| fs::symlink_metadata(root).is_ok_and(|m| m.is_dir()));
    roots.into_iter().map(|root| root.join(group.trim_start_matches('/'))).collect()
}

/// The ancestors of `group`, itself first, that do not exist yet: whoever makes the group owns them.
pub(crate) fn missing(group: &str) -> Vec<String> {
    let probe = |group: &str| directory(if is_v2() { "" } else { "memory" }, group).is_dir();
    Path::new(group)
        .ancestors()
        .filter_map(Path::to_str)
        .filter(|ancestor| !ancestor.trim_matches('/').is_empty() && !probe(ancestor))
        .map(str::to_owned)
        .collect()
}

/// Removes a group and what is below it, if no process is left in it.
pub(crate) fn remove(group: &str) {
    for directory in directories(group) {
        remove_tree(&directory);
    }
}

/// Removes a group only if nothing is below it; says whether it is gone.
pub(crate) fn remove_if_empty(group: &str) -> bool {
    let left =
        directories(group).into_iter().filter(|directory| fs::remove_dir(directory).is_err() && directory.exists());
    left.count() == 0
}

fn remove_tree(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // A process that has ended leaves its group a moment later, and nothing tells when.
    for _ in 0..200 {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(Duration::from_millis(1)),
            _ => return,
        }
    }
}

/// Kills every process of a group, off the async threads. Returns how many are left.
pub(crate) async fn kill_async(group: &str) -> usize {
    let group = group.to_owned();
    let killed = tokio::task::spawn_blocking(move || {
        kill(&group);
        processes(&group).len()
    });
    killed.await.unwrap_or_default()
}

/// Kills every process of a group and waits for their ends.
pub(crate) fn kill(group: &str) {
    for _ in 0..10 {
        let left = processes(group);
        if left.is_empty() {
            return;
        }
        if is_v2() && fs::write(directory("", group).join("cgroup.kill"), "1").is_ok() {
            wait_for_ends(&open_all(&left));
            continue;
        }
        let waited_for = match freeze(group) {
            // Frozen, a group cannot fork faster than it is killed, nor can its numbers pass to other processes.
            true => {
                let frozen = processes(group);
                let waited_for = open_all(&frozen);
                for pid in frozen.into_iter().filter_map(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
                // The signals take effect now.
                let _ = fs::write(freezer(group), "THAWED");
                waited_for
            }
            false => {
                let waited_for = open_all(&left);
                for process in &waited_for {
                    let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
                }
                waited_for
            }
        };
        wait_for_ends(&waited_for);
    }
}

fn freezer(group: &str) -> PathBuf {
    directory("freezer", group).join("freezer.state")
}

/// Stops a group of version 1. False where the freezer does not have the group.
fn freeze(group: &str) -> bool {
    let file = freezer(group);
    if fs::write(&file, "FROZEN").is_err() {
        return false;
    }
    // The kernel reports no event for it, and is done as soon as each process was interrupted.
    for _ in 0..50 {
        if fs::read_to_string(&file).is_ok_and(|state| state.trim() == "FROZEN") {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Descriptors of processes, whose numbers may become others'. Not of more than a process may well have open.
fn open_all(pids: &[i32]) -> Vec<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    pids.iter().take(512).filter_map(|pid| pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()).collect()
}

fn wait_for_ends(processes: &[OwnedFd]) {
    use rustix::event::{PollFd, PollFlags, poll};
    let deadline = std::time::Instant::now() + DEATH_TIMEOUT;
    for process in processes {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let left = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left));
    }
}

pub(crate) fn processes(group: &str) -> Vec<i32> {
    let file = directory("pids", group).join("cgroup.procs");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Whether the kernel's out-of-memory killer struck in a group.
pub(crate) fn oom_killed(group: &str) -> bool {
    let file = if is_v2() { "memory.events" } else { "memory.oom_control" };
    keyed(&directory("memory", group).join(file)).get("oom_kill").is_some_and(|count| *count > 0)
}

/// What a container used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub cpu_nanos: u64,
    pub memory_bytes: u64,
    pub working_set_bytes: u64,
    pub rss_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    pub swap_bytes: u64,
    /// Zero is "no limit".
    pub memory_limit_bytes: u64,
}

pub(crate) fn usage(group: &str) -> io::Result<Usage> {
    let memory = directory("memory", group);
    let stat = keyed(&memory.join("memory.stat"));
    let get = |name: &str| stat.get(name).copied().unwrap_or(0);
    if is_v2() {
        let used = number(&memory.join("memory.current"))?;
        return Ok(Usage {
            cpu_nanos: keyed(&memory.join("cpu.stat")).get("usage_usec").copied().unwrap_or(0) * 1000,
            memory_bytes: used,
            working_set_bytes: used.saturating_sub(get("inactive_file")),
            rss_bytes: get("anon"),
            page_faults: get("pgfault"),
            major_page_faults: get("pgmajfault"),
            swap_bytes: number(&memory.join("memory.swap.current")).unwrap_or(0),
            memory_limit_bytes: number(&memory.join("memory.max")).unwrap_or(0),
        });
    }
    let used = number(&memory.join("memory.usage_in_bytes"))?;
    // "No limit" is the largest page-aligned number here.
    let limit = number(&memory.join("memory.limit_in_bytes")).ok().filter(|limit| *limit < 1 << 62);
    Ok(Usage {
        cpu_nanos: number(&directory("cpuacct", group).join("cpuacct.usage"))?,
        memory_bytes: used,
        working_set_bytes: used.saturating_sub(get("total_inactive_file")),
        rss_bytes: get("total_rss"),
        page_faults: get("total_pgfault"),
        major_page_faults: get("total_pgmajfault"),
        swap_bytes: get("total_swap"),
        memory_limit_bytes: limit.unwrap_or(0),
    })
}

fn number(file: &Path) -> io::Result<u64> {
    // v2 writes "max" where there is no limit.
    Ok(fs::read_to_string(file)?.trim().parse().unwrap_or(0))
}

fn keyed(file: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(k, v)| Some((k.to_owned(), v.trim().parse().ok()?)))
        .collect()
}

/// Changes a running container's limits; zero leaves one as it is.
pub(crate) fn update(group: &str, resources: &LinuxContainerResources) -> io::Result<()> {
    for (controller, file, value) in settings(resources, is_v2()) {
        let path = directory(controller, group).join(&file);
        fs::write(&path, value).map_err(|e| io::Error::new(e.kind(), format!("cannot set {file}: {e}")))?;
    }
    Ok(())
}

/// The files and values that express `resources`, in the order they must be written.
fn settings(resources: &LinuxContainerResources, v2: bool) -> Vec<(&'static str, String, String)> {
    let mut out = Vec::new();
    let mut set = |controller, file: &str, value: String| out.push((controller, file.to_owned(), value));
    let r = resources;
    if v2 {
        if r.cpu_shares > 0 {
            set("cpu", "cpu.weight", weight_of_shares(r.cpu_shares).to_string());
        }
        if r.cpu_quota != 0 {
            let quota = if r.cpu_quota < 0 { "max".to_owned() } else { r.cpu_quota.to_string() };
            set("cpu", "cpu.max", format!("{quota} {}", if r.cpu_period > 0 { r.cpu_period } else { 100_000 }));
        }
        if r.memory_limit_in_bytes != 0 {
            let limit = r.memory_limit_in_bytes;
            set("memory", "memory.max", if limit < 0 { "max".to_owned() } else { limit.to_string() });
        }
        for (file, value) in &r.unified {
            set("", file, value.clone());
        }
    } else {
        if r.cpu_shares > 0 {
            set("cpu", "cpu.shares", r.cpu_shares.to_string());
        }
        if r.cpu_period > 0 {
            set("cpu", "cpu.cfs_period_us", r.cpu_period.to_string());
        }
        if r.cpu_quota != 0 {
            set("cpu", "cpu.cfs_quota_us", r.cpu_quota.to_string());
        }
        if r.memory_limit_in_bytes != 0 {
            set("memory", "memory.limit_in_bytes", r.memory_limit_in_bytes.to_string());
        }
    }
    if !r.cpuset_cpus.is_empty() {
        set("cpuset", "cpuset.cpus", r.cpuset_cpus.clone());
    }
    if !r.cpuset_mems.is_empty() {
        set("cpuset", "cpuset.mems", r.cpuset_mems.clone());
    }
    out
}

/// Shares (2…262144) onto weights (1…10000), by the formula every runtime uses.
pub(crate) fn weight_of_shares(shares: i64) -> u64 {
    let shares = shares.clamp(2, 262_144) as u64;
    1 + ((shares - 2) * 9999) / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_become_files_of_either_version() {
        let both = LinuxContainerResources {
            cpu_shares: 1024,
            cpu_quota: 50_000,
            cpu_period: 100_000,
            memory_limit_in_bytes: 64 << 20,
            ..Default::default()
        };
        check(
            &both,
            false,
            "cpu.shares=1024 cpu.cfs_period_us=100000 cpu.cfs_quota_us=50000 memory.limit_in_bytes=67108864",
        );
        check(&both, true, "cpu.weight=39 cpu.max=50000 100000 memory.max=67108864");
        check(&LinuxContainerResources { cpu_quota: -1, ..Default::default() }, true, "cpu.max=max 100000");
        check(&LinuxContainerResources::default(), true, "");
    }

    #[track_caller]
    fn check(resources: &LinuxContainerResources, v2: bool, want: &str) {
        let got: Vec<_> =
            settings(resources, v2).into_iter().map(|(_, file, value)| format!("{file}={value}")).collect();
        assert_eq!(got.join(" "), want);
    }
}
