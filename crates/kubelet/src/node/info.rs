//! What this machine is: CPUs, memory, disk, kernel, operating system.

use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Machine {
    pub(crate) cpus: i64,
    pub(crate) memory: i64,
    pub(crate) storage: i64,
    /// Sizes as Kubernetes names them (`2Mi`), and bytes set aside.
    pub(crate) hugepages: Vec<(String, i64)>,
    pub(crate) arch: String,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
    /// `name://version` of the container runtime.
    pub(crate) runtime_version: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

impl Machine {
    pub(crate) fn look(root_dir: &Path, runtime_version: String) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let storage =
            nix::sys::statvfs::statvfs(root_dir).map(|stat| stat.blocks() as i64 * stat.fragment_size() as i64);
        Self {
            cpus: i64::try_from(cpus.max(1)).unwrap_or(1),
            memory: meminfo(&read("/proc/meminfo"), "MemTotal"),
            storage: storage.unwrap_or(0),
            hugepages: hugepages(),
            arch: go_arch(std::env::consts::ARCH).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease"),
            os_image: os_image(&read("/etc/os-release")),
            machine_id: first_of(&["/etc/machine-id", "/var/lib/dbus/machine-id"]),
            system_uuid: first_of(&["/sys/class/dmi/id/product_uuid", "/etc/machine-id"]),
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            runtime_version,
        }
    }
}

fn first_of(paths: &[&str]) -> String {
    paths.iter().map(|path| read(path)).find(|text| !text.is_empty()).unwrap_or_default()
}

/// Bytes of a `/proc/meminfo` line, which counts in kB.
pub(crate) fn meminfo(text: &str, name: &str) -> i64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()).and_then(|word| word.parse::<i64>().ok());
    number.unwrap_or(0) * 1024
}

fn hugepages() -> Vec<(String, i64)> {
    let folders = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut found: Vec<(String, i64)> = folders
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size_kb: i64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count: i64 = read(&entry.path().join("nr_hugepages").display().to_string()).parse().unwrap_or(0);
            let size = api::quantity::Quantity::from_bytes(size_kb * 1024).to_string();
            Some((size, count * size_kb * 1024))
        })
        .collect();
    found.sort();
    found
}

fn go_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

fn os_image(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("Linux", |name| name.trim_matches('"')).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_parsed() {
        assert_eq!(meminfo("MemTotal:       16 kB\nMemFree: 1 kB\n", "MemTotal"), 16384);
        assert_eq!(os_image("ID=x\nPRETTY_NAME=\"Debian 13\"\n"), "Debian 13");
        let machine = Machine::look(Path::new("/"), "ferry://1".into());
        assert!(machine.cpus > 0 && machine.memory > 0 && machine.storage > 0 && !machine.kernel.is_empty());
    }
}
