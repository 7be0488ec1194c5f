//! The pod's cgroup: made below its quality-of-service class, limited, removed after the pod. cgroup v1 and v2.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::qos::{self, Class};
use crate::resources::{CPU_PERIOD_US, PodLimits};
use crate::spec;

#[derive(Debug, thiserror::Error)]
#[error("cgroup {path} {step}: {source}")]
pub(crate) struct CgroupError {
    step: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Where cgroups are mounted on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    mount: PathBuf,
    root: String,
    unified: bool,
}

/// The v1 hierarchies that a pod gets a group in; those the kernel lacks are skipped.
const CONTROLLERS: [&str; 8] = ["cpu", "cpuacct", "memory", "cpuset", "pids", "blkio", "freezer", "devices"];

impl Cgroups {
    pub(crate) fn new(root: &str) -> Self {
        Self::at(Path::new("/sys/fs/cgroup"), root)
    }

    pub(crate) fn at(mount: &Path, root: &str) -> Self {
        let unified = mount.join("cgroup.controllers").exists();
        Self { mount: mount.to_owned(), root: format!("/{}", root.trim_matches('/')), unified }
    }

    /// The parent of the pod's containers, as the runtime is told it.
    pub(crate) fn pod_parent(&self, pod: &Pod) -> String {
        self.parent_of(qos::class(pod), spec::uid(pod))
    }

    fn parent_of(&self, class: Class, uid: &str) -> String {
        let root = self.root.trim_end_matches('/');
        match class {
            Class::Guaranteed => format!("{root}/pod{uid}"),
            Class::Burstable => format!("{root}/burstable/pod{uid}"),
            Class::BestEffort => format!("{root}/besteffort/pod{uid}"),
        }
    }

    /// Makes the pod's group and sets its limits; safe to repeat.
    pub(crate) fn ensure(&self, pod: &Pod, limits: &PodLimits) -> Result<(), CgroupError> {
        let parent = self.pod_parent(pod);
        if self.unified { self.ensure_unified(&parent, limits) } else { self.ensure_v1(&parent, limits) }
    }

    fn ensure_unified(&self, parent: &str, limits: &PodLimits) -> Result<(), CgroupError> {
        let mut path = self.mount.clone();
        for part in parent.split('/').filter(|part| !part.is_empty()) {
            enable_controllers(&path);
            path.push(part);
            create(&path)?;
        }
        enable_controllers(&path);
        let weight = 1 + ((limits.cpu_shares - 2) * 9999) / 262_142;
        write(&path, "cpu.weight", &weight.to_string())?;
        if let Some(quota) = limits.cpu_quota {
            let quota = if quota > 0 { quota.to_string() } else { "max".to_owned() };
            write(&path, "cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        if let Some(memory) = limits.memory {
            write(&path, "memory.max", &memory.to_string())?;
        }
        if let Some(pids) = limits.pids {
            write(&path, "pids.max", &pids.to_string())?;
        }
        Ok(())
    }

    /// Limits what all pods together take of the node, so that the node's own processes keep the rest. Safe to repeat.
    pub(crate) fn limit_all(&self, memory: i64, pids: Option<i64>) -> Result<(), CgroupError> {
        let files = match self.unified {
            true => [("", "memory.max", Some(memory)), ("", "pids.max", pids)],
            false => [("memory", "memory.limit_in_bytes", Some(memory)), ("pids", "pids.max", pids)],
        };
        for (controller, file, limit) in files {
            let hierarchy = self.mount.join(controller);
            let Some(limit) = limit.filter(|_| hierarchy.is_dir()) else { continue };
            let mut path = hierarchy;
            for part in self.root.split('/').filter(|part| !part.is_empty()) {
                if self.unified {
                    enable_controllers(&path);
                }
                path.push(part);
                create(&path)?;
            }
            write(&path, file, &limit.to_string())?;
        }
        Ok(())
    }

    /// The limit of all pods' memory together, and their working set. None where there is no limit.
    pub(crate) fn memory(&self) -> Option<(i64, i64)> {
        let controller = if self.unified { "" } else { "memory" };
        let group = self.mount.join(controller).join(self.root.trim_start_matches('/'));
        let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<i64>().ok();
        let (limit, usage, inactive) = match self.unified {
            true => ("memory.max", "memory.current", "inactive_file "),
            false => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
        };
        // Version 1 says "no limit" with the largest page-aligned number.
        let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
        let stat = read("memory.stat")?;
        let inactive = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<i64>().ok());
        Some((limit, (number(usage)? - inactive.unwrap_or(0)).max(0)))
    }

    /// How many processes and threads a pod has.
    pub(crate) fn processes(&self, uid: &str) -> u64 {
        let controller = if self.unified { "" } else { "pids" };
        let classes = [Class::Guaranteed, Class::Burstable, Class::BestEffort];
        let counts = classes.into_iter().filter_map(|class| {
            let group = self.parent_of(class, uid);
            let file = self.mount.join(controller).join(group.trim_start_matches('/')).join("pids.current");
            std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
        });
        counts.sum()
    }

    fn ensure_v1(&self, parent: &str, limits: &PodLimits) -> Result<(), CgroupError> {
        for controller in CONTROLLERS.iter().map(|name| self.mount.join(name)).filter(|path| path.is_dir()) {
            let mut path = controller.clone();
            for part in parent.split('/').filter(|part| !part.is_empty()) {
                let above = path.clone();
                path.push(part);
                create(&path)?;
                inherit_cpuset(&above, &path);
            }
        }
        let of = |controller: &str| {
            let hierarchy = self.mount.join(controller);
            hierarchy.is_dir().then(|| hierarchy.join(parent.trim_start_matches('/')))
        };
        if let Some(cpu) = of("cpu") {
            write(&cpu, "cpu.shares", &limits.cpu_shares.to_string())?;
            if let Some(quota) = limits.cpu_quota {
                write(&cpu, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
                write(&cpu, "cpu.cfs_quota_us", &if quota > 0 { quota } else { -1 }.to_string())?;
            }
        }
        if let (Some(memory), Some(limit)) = (of("memory"), limits.memory) {
            write(&memory, "memory.limit_in_bytes", &limit.to_string())?;
        }
        if let (Some(pids), Some(limit)) = (of("pids"), limits.pids) {
            write(&pids, "pids.max", &limit.to_string())?;
        }
        Ok(())
    }

    /// Removes the pod's group, whatever its class was, in every hierarchy.
    pub(crate) fn remove(&self, uid: &str) -> Result<(), CgroupError> {
        for class in [Class::Guaranteed, Class::Burstable, Class::BestEffort] {
            let parent = self.parent_of(class, uid);
            for hierarchy in self.hierarchies() {
                remove_tree(&hierarchy.join(parent.trim_start_matches('/')))?;
            }
        }
        Ok(())
    }

    /// Removes the groups of all pods, and the one they are below.
    pub(crate) fn remove_all(&self) -> Result<(), CgroupError> {
        let mut outcome = Ok(());
        for hierarchy in self.hierarchies() {
            outcome = outcome.and(remove_tree(&hierarchy.join(self.root.trim_start_matches('/'))));
        }
        outcome
    }

    /// The pods that have a group here, for finding those nobody knows any more.
    pub(crate) fn pods(&self) -> Vec<String> {
        let mut found = Vec::new();
        for hierarchy in self.hierarchies() {
            for class in ["", "burstable", "besteffort"] {
                let folder = hierarchy.join(self.root.trim_start_matches('/')).join(class);
                let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
                let names = names.filter_map(|entry| entry.file_name().into_string().ok());
                found.extend(names.filter_map(|name| name.strip_prefix("pod").map(str::to_owned)));
            }
        }
        found.sort();
        found.dedup();
        found
    }

    fn hierarchies(&self) -> Vec<PathBuf> {
        if self.unified {
            return vec![self.mount.clone()];
        }
        let folders = std::fs::read_dir(&self.mount).into_iter().flatten().flatten().map(|entry| entry.path());
        folders.filter(|path| path.is_dir() && !path.is_symlink()).collect()
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError { step, path, source }
}

fn create(path: &Path) -> Result<(), CgroupError> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("cannot be created", path)(error)),
        _ => Ok(()),
    }
}

fn write(folder: &Path, file: &'static str, value: &str) -> Result<(), CgroupError> {
    let path = folder.join(file);
    std::fs::write(&path, value).map_err(failed("cannot be written", &path))
}

/// A v1 cpuset group takes no process until it has CPUs and memory nodes of its own.
fn inherit_cpuset(above: &Path, below: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let empty = std::fs::read_to_string(below.join(file)).is_ok_and(|text| text.trim().is_empty());
        if let (true, Ok(value)) = (empty, std::fs::read_to_string(above.join(file))) {
            let _ = std::fs::write(below.join(file), value.trim());
        }
    }
}

/// A controller the machine lacks, or that may not be delegated here, is not fatal: limits that need it fail on their own.
fn enable_controllers(path: &Path) {
    let available = std::fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
    for controller in available.split_whitespace() {
        let _ = std::fs::write(path.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

fn remove_tree(path: &Path) -> Result<(), CgroupError> {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
    let mut outcome = Ok(());
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        // One that is in use must not keep its siblings.
        outcome = outcome.and(remove_tree(&entry.path()));
    }
    outcome?;
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("cannot be removed", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the machine's own hierarchies, below a group of this test only.
    #[test]
    fn a_pods_group_is_made_limited_and_removed() {
        let root = format!("/ferry-kubelet-test-{}", std::process::id());
        let cgroups = Cgroups::new(&root);
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "uid": "u1" }, "status": { "qosClass": "Burstable" },
            "spec": { "containers": [{ "name": "c", "resources":
                { "requests": { "cpu": "500m" }, "limits": { "cpu": "1", "memory": "64Mi" } } }] },
        }))
        .expect("a pod");
        let limits = crate::resources::PodLimits { pids: Some(99), ..crate::resources::of_pod(&pod) };
        cgroups.limit_all(1 << 30, Some(1000)).expect("limited");
        assert_eq!(cgroups.memory().map(|(limit, used)| (limit, used < 1 << 20)), Some((1 << 30, true)));
        cgroups.ensure(&pod, &limits).expect("made");
        cgroups.ensure(&pod, &limits).expect("again");
        let parent = cgroups.pod_parent(&pod);
        assert_eq!(parent, format!("{root}/burstable/podu1"));
        let (file, want) = if cgroups.unified {
            (format!("/sys/fs/cgroup{parent}/memory.max"), "67108864")
        } else {
            (format!("/sys/fs/cgroup/cpu{parent}/cpu.cfs_quota_us"), "100000")
        };
        assert_eq!(std::fs::read_to_string(file).expect("a limit").trim(), want);
        let pids = if cgroups.unified { "" } else { "pids" };
        let pids_of = |group: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{pids}{group}/pids.max"));
        assert_eq!(pids_of(&parent).expect("a limit").trim(), "99");
        assert_eq!(pids_of(&root).expect("a limit").trim(), "1000");
        assert_eq!(cgroups.processes("u1"), 0);
        assert_eq!(cgroups.pods(), ["u1"]);
        cgroups.remove("u1").expect("removed");
        assert!(cgroups.pods().is_empty());
        cgroups.remove_all().expect("all removed");
        assert!(!Path::new(&format!("/sys/fs/cgroup/cpu{root}")).exists());
    }
}
