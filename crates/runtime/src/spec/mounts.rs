//! What a container sees mounted, and its devices.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use cri::v1::{Device, LinuxContainerSecurityContext, Mount, MountPropagation};
use serde_json::{Value, json};

use super::{Input, SpecError, set};

pub(super) fn build(input: &Input<'_>, security: &LinuxContainerSecurityContext) -> Result<Vec<Value>, SpecError> {
    let rw = if security.privileged { "rw" } else { "ro" };
    let mount = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
    let mut all = vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", rw]),
        mount("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", rw]),
    ];
    let taken = |path: &str| input.config.mounts.iter().any(|m| clean(&m.container_path) == path);
    let bind = |destination: &str, source: &Path, options: &[&str]| json!({ "destination": destination, "type": "bind", "source": source, "options": options });
    if !taken("/dev/shm") {
        // With the host's IPC comes the host's shared memory.
        let pods = input.sandbox_directory.join("mnt/shm");
        let shm = if pods.exists() { pods } else { "/dev/shm".into() };
        all.push(bind("/dev/shm", &shm, &["rbind", "rw"]));
    }
    for (destination, file) in [("/etc/hostname", "hostname"), ("/etc/resolv.conf", "resolv.conf")] {
        if !taken(destination) {
            let rw = if security.readonly_rootfs { "ro" } else { "rw" };
            // The pods of an older release have them on the node's disk only.
            let bounded = input.sandbox_directory.join("mnt").join(file);
            let source = if bounded.exists() { bounded } else { input.sandbox_directory.join(file) };
            all.push(bind(destination, &source, &["rbind", "rprivate", rw]));
        }
    }
    let mut ordered: Vec<&Mount> = input.config.mounts.iter().collect();
    // Parents before what is mounted inside them.
    ordered.sort_by_key(|m| clean(&m.container_path).matches('/').count());
    for cri_mount in ordered {
        all.push(volume(cri_mount)?);
    }
    Ok(all)
}

fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("/{}", parts.join("/"))
}

fn volume(mount: &Mount) -> Result<Value, SpecError> {
    if mount.image.as_ref().is_some_and(|image| !image.image.is_empty()) {
        return Err(SpecError::Unsupported("an image volume"));
    }
    if !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty() {
        return Err(SpecError::Unsupported("an id-mapped mount"));
    }
    if !mount.container_path.starts_with('/') || mount.container_path.split('/').any(|part| part == "..") {
        return Err(SpecError::Invalid(format!("mount path {:?} is not an absolute path", mount.container_path)));
    }
    let source = Path::new(&mount.host_path);
    if !source.exists() {
        std::fs::create_dir_all(source).map_err(|source| SpecError::Mount { path: mount.host_path.clone(), source })?;
    }
    let propagation = match mount.propagation() {
        MountPropagation::PropagationPrivate => "rprivate",
        MountPropagation::PropagationHostToContainer => "rslave",
        MountPropagation::PropagationBidirectional => "rshared",
    };
    let access = match (mount.readonly, mount.recursive_read_only) {
        (true, true) => "rro",
        (true, false) => "ro",
        (false, _) => "rw",
    };
    Ok(json!({
        "destination": clean(&mount.container_path),
        "type": "bind",
        "source": mount.host_path,
        "options": ["rbind", propagation, access],
    }))
}

/// What the container's root must allow so that the widest propagation asked for works.
pub(super) fn propagation(mounts: &[Mount]) -> &'static str {
    match mounts.iter().any(|m| m.propagation() == MountPropagation::PropagationBidirectional) {
        true => "shared",
        false => "slave",
    }
}

pub(super) fn devices(asked: &[Device]) -> Result<Vec<Value>, SpecError> {
    asked
        .iter()
        .map(|device| {
            let mut found = node(Path::new(&device.host_path))
                .ok_or_else(|| SpecError::Invalid(format!("{} is not a device", device.host_path)))?;
            set(&mut found, "path", json!(device.container_path));
            let access = if device.permissions.is_empty() { "rwm" } else { &device.permissions };
            set(&mut found, "access", json!(access));
            Ok(found)
        })
        .collect()
}

/// Everything in the host's /dev, for a privileged container, except what a container has of its own.
pub(super) fn host_devices() -> Vec<Value> {
    let mut found = Vec::new();
    let mut directories = vec![std::path::PathBuf::from("/dev")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let own = ["pts", "shm", "fd", "mqueue", "console", "ptmx"];
            if entry.file_name().to_str().is_none_or(|name| own.contains(&name)) {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                Ok(_) => found.extend(node(&entry.path())),
                Err(_) => (),
            }
        }
    }
    found
}

fn node(path: &Path) -> Option<Value> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    let kind = match metadata.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        _ => return None,
    };
    let number = metadata.rdev();
    Some(json!({
        "path": path,
        "type": kind,
        "major": rustix::fs::major(number),
        "minor": rustix::fs::minor(number),
        "fileMode": metadata.permissions().mode() & 0o777,
        "uid": metadata.uid(),
        "gid": metadata.gid(),
        "access": "rwm",
    }))
}
