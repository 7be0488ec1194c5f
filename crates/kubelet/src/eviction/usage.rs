//! Measures what eviction decides on: what is left of the node's resources, and what pods use.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cri::v1::{ContainerStatsRequest, ImageFsInfoRequest, ListContainersRequest};
use disk_usage::Usage;
use k8s_openapi::api::core::v1::Pod;
use tonic::Status;

use super::rank::PodUsage;
use super::thresholds::{Observation, Observations, Signal};
use crate::context::Context;
use crate::node::info::meminfo;
use crate::pod::labels;
use crate::spec;

/// How long one walk of a volume may take.
const WALK: Duration = Duration::from_secs(5);

/// Where the node's disks are.
#[derive(Clone, Debug)]
pub(crate) struct Disks {
    pub(crate) root: PathBuf,
    /// The images' file system, where it is another one.
    pub(crate) images: Option<PathBuf>,
}

impl Disks {
    /// # Errors
    /// The runtime does not say where its images are.
    pub(crate) async fn find(context: &Context) -> Result<Self, Status> {
        let root = context.root_dir.clone();
        let info = context.cri.image_fs_info(ImageFsInfoRequest {}).await?;
        let first = info.image_filesystems.into_iter().next().and_then(|usage| usage.fs_id);
        let images = first.map(|id| PathBuf::from(id.mountpoint));
        let device = |path: &Path| disk_usage::device(path).ok();
        Ok(Self { images: images.filter(|images| device(images) != device(&root)), root })
    }

    pub(crate) fn has_image_fs(&self) -> bool {
        self.images.is_some()
    }
}

/// What is left of the node. A few reads of the kernel's counters.
pub(crate) fn observe(context: &Context, disks: &Disks) -> Observations {
    let mut all = Observations::new();
    let images = disks.images.as_deref().unwrap_or(&disks.root);
    for (path, bytes, inodes) in [
        (disks.root.as_path(), Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (images, Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
    ] {
        let Ok(stat) = rustix::fs::statvfs(path) else { continue };
        let amount = |units: u64, size: u64| i64::try_from(units.saturating_mul(size)).unwrap_or(i64::MAX);
        let size = stat.f_frsize;
        all.insert(
            bytes,
            Observation { available: amount(stat.f_bavail, size), capacity: amount(stat.f_blocks, size) },
        );
        // Some file systems have no inodes to run out of, and say zero of zero.
        if stat.f_files > 0 {
            let free = Observation { available: amount(stat.f_favail, 1), capacity: amount(stat.f_files, 1) };
            all.insert(inodes, free);
        }
    }
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo(&memory, "MemFree") + meminfo(&memory, "Inactive(file)");
    all.insert(Signal::MemoryAvailable, Observation { available, capacity: context.memory });
    if let Some((limit, working_set)) = context.cgroups.memory() {
        let observation = Observation { available: limit.saturating_sub(working_set), capacity: limit };
        all.insert(Signal::AllocatableMemoryAvailable, observation);
    }
    if let Some((processes, capacity)) = processes() {
        all.insert(Signal::PidAvailable, Observation { available: capacity - processes, capacity });
    }
    all
}

/// How many processes and threads there are, and how many there can be.
fn processes() -> Option<(i64, i64)> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let (_, running) = load.split_whitespace().nth(3)?.split_once('/')?;
    Some((running.parse().ok()?, max_processes()?))
}

/// The most processes and threads this kernel allows.
pub(crate) fn max_processes() -> Option<i64> {
    let read = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    Some(read("/proc/sys/kernel/pid_max")?.min(read("/proc/sys/kernel/threads-max").unwrap_or(i64::MAX)))
}

/// What pods use; of a pod that the runtime does not know, what is on disk.
pub(crate) async fn of_pods<'a>(
    context: &Context,
    pods: impl Iterator<Item = &'a Pod>,
) -> Result<HashMap<String, PodUsage>, Status> {
    let listed = context.cri.list_containers(ListContainersRequest::default()).await?.containers;
    let mut all = HashMap::new();
    for pod in pods {
        let uid = spec::uid(pod);
        let mut usage = PodUsage::default();
        for container in
            listed.iter().filter(|container| container.labels.get(labels::POD_UID).is_some_and(|of| of == uid))
        {
            let name = container.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default();
            let request = ContainerStatsRequest { container_id: container.id.clone() };
            let Ok(answer) = context.cri.container_stats(request).await else { continue };
            let stats = answer.stats.unwrap_or_default();
            let value = |value: Option<cri::v1::UInt64Value>| value.map_or(0, |value| value.value);
            let layer = stats.writable_layer.unwrap_or_default();
            let used = usage.containers.entry(name).or_default();
            used.memory += value(stats.memory.and_then(|memory| memory.working_set_bytes));
            used.root.bytes += value(layer.used_bytes);
            used.root.inodes += value(layer.inodes_used);
        }
        let (pod_dir, logs) = (context.pod_dir(uid), context.pod_log_dir(pod));
        let (names, volumes) = (containers(pod), empty_dirs(pod));
        let walks = tokio::task::spawn_blocking(move || walk(&pod_dir, &logs, names, volumes));
        let Ok(Walked { logs, volumes, files }) = walks.await else { continue };
        for (name, used) in logs {
            usage.containers.entry(name).or_default().logs = used;
        }
        (usage.volumes, usage.files) = (volumes, files);
        usage.pids = context.cgroups.processes(uid);
        all.insert(uid.to_owned(), usage);
    }
    Ok(all)
}

fn containers(pod: &Pod) -> Vec<String> {
    spec::all_containers(pod).into_iter().map(|container| container.name.clone()).collect()
}

fn empty_dirs(pod: &Pod) -> Vec<String> {
    let volumes = spec::spec(pod).volumes.iter().flatten();
    let on_disk = volumes.filter(|volume| {
        volume.empty_dir.as_ref().is_some_and(|source| source.medium.as_deref().unwrap_or_default().is_empty())
    });
    on_disk.map(|volume| volume.name.clone()).collect()
}

struct Walked {
    logs: Vec<(String, Usage)>,
    volumes: std::collections::BTreeMap<String, Usage>,
    files: Usage,
}

fn walk(pod_dir: &Path, logs: &Path, containers: Vec<String>, empty_dirs: Vec<String>) -> Walked {
    let measure = |path: PathBuf| disk_usage::measure(&path, WALK);
    let volumes = pod_dir.join("volumes/kubernetes.io~empty-dir");
    let mut files = measure(pod_dir.join("etc-hosts"));
    files += measure(pod_dir.join("containers"));
    Walked {
        logs: containers.into_iter().map(|name| (name.clone(), measure(logs.join(name)))).collect(),
        volumes: empty_dirs.into_iter().map(|name| (name.clone(), measure(volumes.join(name)))).collect(),
        files,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2020-8557: a container wrote to its `/etc/hosts`, which is a file of the node, without any limit.
    #[test]
    fn etc_hosts_and_termination_logs_count_as_local_storage() {
        let (pod, logs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let used = || {
            let walked = walk(pod.path(), logs.path(), Vec::new(), Vec::new());
            PodUsage { files: walked.files, ..PodUsage::default() }.disk(true, true).bytes
        };
        let before = used();
        std::fs::write(pod.path().join("etc-hosts"), vec![1; 1 << 20]).expect("written");
        let with_hosts = used();
        std::fs::create_dir_all(pod.path().join("containers/c")).expect("a folder");
        std::fs::write(pod.path().join("containers/c/0a1b2c3d"), vec![1; 1 << 20]).expect("written");
        assert!(with_hosts >= before + (1 << 20), "{before} {with_hosts}");
        assert!(used() >= with_hosts + (1 << 20), "{with_hosts}");
    }
}
