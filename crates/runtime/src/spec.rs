//! The OCI runtime specification of a container, from its CRI configuration and its image. Pure but for reading the image's user files.

mod capabilities;
mod mounts;
mod user;

use std::path::{Path, PathBuf};

use cri::v1::security_profile::ProfileType;
use cri::v1::{
    ContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext, NamespaceMode, PodSandboxConfig,
    SeLinuxOption, SecurityProfile,
};
use oci_spec::runtime::LinuxCapabilities;
use serde_json::{Value, json};

use crate::images::ProcessConfig;
pub(crate) use user::{Principal, User};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const OCI_VERSION: &str = "1.2.0";

#[derive(Debug, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0} is not supported by this runtime")]
    Unsupported(&'static str),
    #[error("cannot read the image's {file}: {source}")]
    Image { file: &'static str, source: std::io::Error },
    #[error("cannot prepare mount {path}: {source}")]
    Mount { path: String, source: std::io::Error },
}

/// Everything a specification is made from.
pub(crate) struct Input<'a> {
    pub config: &'a ContainerConfig,
    pub sandbox: &'a PodSandboxConfig,
    pub image: &'a ProcessConfig,
    /// Unpacked layers, topmost first.
    pub layers: &'a [PathBuf],
    pub sandbox_directory: &'a Path,
    pub rootfs: &'a Path,
    pub cgroup_path: &'a str,
    /// The container whose pid namespace is to be joined (an ephemeral container's target).
    pub target_pid: Option<i32>,
}

pub(crate) struct Output {
    pub spec: Value,
    pub user: User,
    pub working_directory: PathBuf,
    pub capabilities: LinuxCapabilities,
    pub seccomp: bool,
    pub private_pid: bool,
    pub oom_score_adj: i32,
}

pub(crate) fn build(input: &Input<'_>) -> Result<Output, SpecError> {
    let none = LinuxContainerSecurityContext::default();
    let linux = input.config.linux.as_ref();
    let security = linux.and_then(|l| l.security_context.as_ref()).unwrap_or(&none);
    let no_resources = LinuxContainerResources::default();
    let resources = linux.and_then(|l| l.resources.as_ref()).unwrap_or(&no_resources);
    refuse_unsupported(input.config, security)?;
    let user = user::resolve(security, input.image, input.layers)?;
    let pid_mode = match security.namespace_options.as_ref().map_or(NamespaceMode::Pod, |o| o.pid()) {
        // A pod whose processes are not shared has no such namespace to join.
        NamespaceMode::Pod if !input.sandbox_directory.join("ns/pid").exists() => NamespaceMode::Container,
        mode => mode,
    };
    let capabilities = capabilities::resolve(security);
    let process = process(input, &user, security)?;
    let devices = if security.privileged { mounts::host_devices() } else { mounts::devices(&input.config.devices)? };
    let mut spec = json!({
        "ociVersion": OCI_VERSION,
        "process": process,
        "root": { "path": input.rootfs, "readonly": security.readonly_rootfs },
        "mounts": mounts::build(input, security)?,
        "linux": {
            "namespaces": namespaces(input, pid_mode),
            "cgroupsPath": input.cgroup_path,
            "resources": oci_resources(resources, security.privileged, &devices),
            "devices": devices,
            "rootfsPropagation": mounts::propagation(&input.config.mounts),
        },
    });
    if !security.privileged
        && let Some(linux) = spec.get_mut("linux")
    {
        set(linux, "maskedPaths", json!(security.masked_paths));
        set(linux, "readonlyPaths", json!(security.readonly_paths));
    }
    Ok(Output {
        spec,
        user,
        working_directory: working_directory(input).into(),
        capabilities,
        seccomp: wants_seccomp(security)?,
        private_pid: pid_mode == NamespaceMode::Container,
        oom_score_adj: resources.oom_score_adj as i32,
    })
}

fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert(key.to_owned(), value);
    }
}

/// The process of an exec: the container's own, with another command.
pub(crate) fn exec_process(spec: &Value, command: &[String], tty: bool) -> Value {
    let mut process = spec.get("process").cloned().unwrap_or_default();
    set(&mut process, "args", json!(command));
    set(&mut process, "terminal", json!(tty));
    process
}

fn refuse_unsupported(config: &ContainerConfig, security: &LinuxContainerSecurityContext) -> Result<(), SpecError> {
    let user_namespace = security.namespace_options.as_ref().and_then(|o| o.userns_options.as_ref());
    if user_namespace.is_some_and(|u| u.mode() == NamespaceMode::Pod) {
        return Err(SpecError::Unsupported("a user namespace (hostUsers: false)"));
    }
    if !config.cdi_devices.is_empty() {
        return Err(SpecError::Unsupported("a CDI device"));
    }
    let is_there = |path: &str| Path::new(path).exists();
    refuse_labels(security, is_there("/sys/module/apparmor/parameters/enabled"), is_there("/sys/fs/selinux/enforce"))
}

/// Profiles and labels that this runtime would have to load or set. Where the kernel has no such module there is nothing that could
/// enforce them: upstream's kubelet refuses AppArmor profiles there, and other runtimes leave SELinux options out.
fn refuse_labels(security: &LinuxContainerSecurityContext, apparmor: bool, selinux: bool) -> Result<(), SpecError> {
    match security.apparmor.as_ref().filter(|_| !security.privileged).map(SecurityProfile::profile_type) {
        Some(ProfileType::Localhost) => return Err(SpecError::Unsupported("a localhost AppArmor profile")),
        Some(ProfileType::RuntimeDefault) if apparmor => {
            return Err(SpecError::Unsupported("the default AppArmor profile"));
        }
        _ => (),
    }
    let is_labelled = security.selinux_options.as_ref().is_some_and(|options| *options != SeLinuxOption::default());
    if is_labelled && selinux {
        return Err(SpecError::Unsupported("an SELinux label (seLinuxOptions) on a kernel with SELinux"));
    }
    Ok(())
}

fn wants_seccomp(security: &LinuxContainerSecurityContext) -> Result<bool, SpecError> {
    if security.privileged {
        return Ok(false);
    }
    match security.seccomp.as_ref().map(SecurityProfile::profile_type) {
        None | Some(ProfileType::Unconfined) => Ok(false),
        Some(ProfileType::RuntimeDefault) => Ok(true),
        Some(ProfileType::Localhost) => Err(SpecError::Unsupported("a localhost seccomp profile")),
    }
}

fn process(input: &Input<'_>, user: &User, security: &LinuxContainerSecurityContext) -> Result<Value, SpecError> {
    let config = input.config;
    Ok(json!({
        "terminal": config.tty,
        "user": { "uid": user.uid, "gid": user.gid, "additionalGids": user.groups },
        "args": command(config, input.image)?,
        "env": environment(config, input.image, &input.sandbox.hostname)?,
        "cwd": working_directory(input),
        "noNewPrivileges": security.no_new_privs,
    }))
}

fn working_directory<'a>(input: &'a Input<'_>) -> &'a str {
    let asked = [input.config.working_dir.as_str(), input.image.working_dir.as_deref().unwrap_or_default()];
    asked.into_iter().find(|path| !path.is_empty()).unwrap_or("/")
}

/// Kubernetes' command replaces the image's entrypoint and its arguments; arguments alone replace only those.
fn command(config: &ContainerConfig, image: &ProcessConfig) -> Result<Vec<String>, SpecError> {
    let entrypoint = image.entrypoint.clone().unwrap_or_default();
    let cmd = image.cmd.clone().unwrap_or_default();
    let (head, tail) = match (config.command.is_empty(), config.args.is_empty()) {
        (true, true) => (entrypoint, cmd),
        (true, false) => (entrypoint, config.args.clone()),
        (false, _) => (config.command.clone(), config.args.clone()),
    };
    let all: Vec<String> = head.into_iter().chain(tail).collect();
    match all.is_empty() {
        true => Err(SpecError::Invalid("no command specified".to_owned())),
        false => Ok(all),
    }
}

/// Later entries win: defaults, then the image, then the pod.
fn environment(config: &ContainerConfig, image: &ProcessConfig, hostname: &str) -> Result<Vec<String>, SpecError> {
    let mut all = vec![DEFAULT_PATH.to_owned()];
    if !hostname.is_empty() {
        all.push(format!("HOSTNAME={hostname}"));
    }
    if config.tty {
        all.push("TERM=xterm".to_owned());
    }
    all.extend(image.env.iter().flatten().cloned());
    for variable in &config.envs {
        let value = String::from_utf8(variable.value.clone())
            .map_err(|_| SpecError::Invalid(format!("environment variable {} is not UTF-8", variable.key)))?;
        all.push(format!("{}={value}", variable.key));
    }
    let name = |entry: &String| entry.split('=').next().unwrap_or_default().to_owned();
    let mut seen = std::collections::HashSet::new();
    let mut last: Vec<String> = all.into_iter().rev().filter(|entry| seen.insert(name(entry))).collect();
    last.reverse();
    Ok(last)
}

fn namespaces(input: &Input<'_>, pid_mode: NamespaceMode) -> Value {
    let at = |name: &str| input.sandbox_directory.join("ns").join(name);
    let mut all = vec![json!({ "type": "mount" })];
    for (kind, file) in [("network", "net"), ("uts", "uts"), ("ipc", "ipc")] {
        // The shim made exactly those the pod does not share with the host.
        if at(file).exists() {
            all.push(json!({ "type": kind, "path": at(file) }));
        }
    }
    match (pid_mode, input.target_pid) {
        (NamespaceMode::Node, _) => (),
        (NamespaceMode::Target, Some(pid)) => all.push(json!({ "type": "pid", "path": format!("/proc/{pid}/ns/pid") })),
        (NamespaceMode::Pod, _) => all.push(json!({ "type": "pid", "path": at("pid") })),
        _ => all.push(json!({ "type": "pid" })),
    }
    if crate::cgroup::is_v2() {
        all.push(json!({ "type": "cgroup" }));
    }
    Value::Array(all)
}

fn oci_resources(r: &LinuxContainerResources, privileged: bool, devices: &[Value]) -> Value {
    let mut out = json!({ "devices": [{ "allow": privileged, "access": "rwm" }] });
    if !privileged && let Some(rules) = out.get_mut("devices").and_then(Value::as_array_mut) {
        rules.extend(devices.iter().map(|d| {
            json!({ "allow": true, "type": d["type"], "major": d["major"], "minor": d["minor"], "access": d["access"] })
        }));
    }
    let mut cpu = json!({});
    for (name, value) in [("shares", r.cpu_shares), ("quota", r.cpu_quota), ("period", r.cpu_period)] {
        if value != 0 {
            set(&mut cpu, name, json!(value));
        }
    }
    for (name, value) in [("cpus", &r.cpuset_cpus), ("mems", &r.cpuset_mems)] {
        if !value.is_empty() {
            set(&mut cpu, name, json!(value));
        }
    }
    set(&mut out, "cpu", cpu);
    if r.memory_limit_in_bytes != 0 {
        set(&mut out, "memory", json!({ "limit": r.memory_limit_in_bytes }));
    }
    if crate::cgroup::is_v2() && !r.unified.is_empty() {
        set(&mut out, "unified", json!(r.unified));
    }
    out
}

#[cfg(test)]
mod tests {
    use cri::v1::{NamespaceOption, UserNamespace};

    use super::*;

    #[test]
    fn command_and_args_override_the_image_as_in_kubernetes() {
        check(&[], &[], "e c");
        check(&[], &["a"], "e a");
        check(&["k"], &[], "k");
        check(&["k"], &["a"], "k a");
    }

    #[track_caller]
    fn check(cmd: &[&str], args: &[&str], want: &str) {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let image = ProcessConfig { entrypoint: Some(owned(&["e"])), cmd: Some(owned(&["c"])), ..Default::default() };
        let config = ContainerConfig { command: owned(cmd), args: owned(args), ..Default::default() };
        assert_eq!(command(&config, &image).expect("a command").join(" "), want);
    }

    #[test]
    fn labels_that_the_kernel_would_enforce_are_refused() {
        let labelled = LinuxContainerSecurityContext {
            selinux_options: Some(SeLinuxOption { level: "s0:c1,c2".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let profiled = |kind: ProfileType| LinuxContainerSecurityContext {
            apparmor: Some(SecurityProfile { profile_type: kind.into(), ..Default::default() }),
            ..Default::default()
        };
        let is_refused = |security: &_, apparmor, selinux| refuse_labels(security, apparmor, selinux).is_err();
        assert!(is_refused(&labelled, false, true) && !is_refused(&labelled, true, false));
        assert!(is_refused(&profiled(ProfileType::RuntimeDefault), true, false));
        assert!(!is_refused(&profiled(ProfileType::RuntimeDefault), false, true));
        assert!(is_refused(&profiled(ProfileType::Localhost), false, false));
        assert!(!is_refused(&profiled(ProfileType::Unconfined), true, true));
        let user_namespace = UserNamespace { mode: NamespaceMode::Pod.into(), ..Default::default() };
        let options = NamespaceOption { userns_options: Some(user_namespace), ..Default::default() };
        let security = LinuxContainerSecurityContext { namespace_options: Some(options), ..Default::default() };
        assert!(refuse_unsupported(&ContainerConfig::default(), &security).is_err());
    }

    #[test]
    fn the_pods_environment_wins_over_the_images() {
        let image = ProcessConfig { env: Some(vec!["A=1".to_owned(), "B=2".to_owned()]), ..Default::default() };
        let envs = vec![cri::v1::KeyValue { key: "A".to_owned(), value: b"3=4".to_vec() }];
        let config = ContainerConfig { envs, ..Default::default() };
        let got = environment(&config, &image, "h").expect("an environment");
        assert_eq!(got, [DEFAULT_PATH, "HOSTNAME=h", "B=2", "A=3=4"]);
    }
}
