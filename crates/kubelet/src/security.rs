//! Security contexts: the pod's and the container's, merged and handed to the runtime.

use cri::v1::security_profile::ProfileType;
use cri::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy, UserNamespace,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext};

use crate::{app_armor, spec};

/// The user the image asks for: a number, a name, or nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ImageUser {
    pub(crate) uid: Option<i64>,
    pub(crate) name: String,
}

impl ImageUser {
    /// A number that no user can have counts as a name, so that it is not taken for a user other than root.
    pub(crate) fn of(image: cri::v1::Image) -> Self {
        match image.uid.map(|uid| uid.value) {
            Some(uid) if !(0..=i64::from(i32::MAX)).contains(&uid) => Self { uid: None, name: uid.to_string() },
            uid => Self { uid, name: image.username },
        }
    }
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum SecurityError {
    #[error("container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})")]
    RootUser { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \"{pod}\", container: {container})"
    )]
    NamedUser { user: String, pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})")]
    RootImage { pod: String, container: String },
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    UserNamespaces,
    #[error("localhost profile must be set if seccomp profile type is Localhost")]
    NoLocalhostProfile,
}

const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn pod_context(pod: &Pod) -> PodSecurityContext {
    spec::spec(pod).security_context.clone().unwrap_or_default()
}

/// The container's own fields, then the pod's.
fn effective(pod: &Pod, container: &Container) -> SecurityContext {
    let pod = pod_context(pod);
    let mut own = container.security_context.clone().unwrap_or_default();
    own.run_as_user = own.run_as_user.or(pod.run_as_user);
    own.run_as_group = own.run_as_group.or(pod.run_as_group);
    own.run_as_non_root = own.run_as_non_root.or(pod.run_as_non_root);
    own.se_linux_options = own.se_linux_options.or(pod.se_linux_options);
    own.seccomp_profile = own.seccomp_profile.or(pod.seccomp_profile);
    own
}

pub(crate) fn verify_non_root(pod: &Pod, container: &Container, image: &ImageUser) -> Result<(), SecurityError> {
    let context = effective(pod, container);
    if context.run_as_non_root != Some(true) {
        return Ok(());
    }
    let (pod, container) = (spec::display(pod), container.name.clone());
    match (context.run_as_user, image.uid) {
        (Some(0), _) => Err(SecurityError::RootUser { pod, container }),
        (Some(_), _) => Ok(()),
        (None, None) if !image.name.is_empty() => {
            Err(SecurityError::NamedUser { user: image.name.clone(), pod, container })
        }
        // An image that names no user runs as root.
        (None, Some(0) | None) => Err(SecurityError::RootImage { pod, container }),
        (None, Some(_)) => Ok(()),
    }
}

pub(crate) fn of_container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<&str>,
) -> Result<LinuxContainerSecurityContext, SecurityError> {
    // Admission allows such a pod more. Its sandbox was refused, but one of an older kubelet may still be there.
    if spec::spec(pod).host_users == Some(false) {
        return Err(SecurityError::UserNamespaces);
    }
    let context = effective(pod, container);
    let privileged = context.privileged == Some(true);
    let unmasked = context.proc_mount.as_deref() == Some("Unmasked") || privileged;
    let paths = |all: &[&str]| if unmasked { Vec::new() } else { all.iter().map(|p| (*p).to_owned()).collect() };
    let run_as_user = context.run_as_user.or(image.uid);
    let mut namespaces = namespaces(pod);
    if let Some(target) = target {
        namespaces.pid = NamespaceMode::Target as i32;
        namespaces.target_id = target.to_owned();
    }
    Ok(LinuxContainerSecurityContext {
        capabilities: context.capabilities.map(|capabilities| Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
            ..Default::default()
        }),
        privileged,
        namespace_options: Some(namespaces),
        selinux_options: context.se_linux_options.map(selinux),
        apparmor: app_armor::of_container(pod, container),
        run_as_user: run_as_user.map(|value| Int64Value { value }),
        run_as_username: if context.run_as_user.is_none() { image.name.clone() } else { String::new() },
        run_as_group: context.run_as_group.map(|value| Int64Value { value }),
        readonly_rootfs: context.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        no_new_privs: context.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(if privileged { unconfined() } else { seccomp(context.seccomp_profile.as_ref())? }),
        ..Default::default()
    })
}

pub(crate) fn of_sandbox(pod: &Pod) -> LinuxSandboxSecurityContext {
    let context = pod_context(pod);
    let privileged = |container: &Container| {
        container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
    };
    LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        privileged: spec::all_containers(pod).iter().any(privileged),
        run_as_user: context.run_as_user.map(|value| Int64Value { value }),
        run_as_group: context.run_as_group.map(|value| Int64Value { value }),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        selinux_options: context.se_linux_options.map(selinux),
        seccomp: Some(SecurityProfile { profile_type: ProfileType::RuntimeDefault as i32, ..Default::default() }),
        ..Default::default()
    }
}

fn groups(pod: &Pod) -> Vec<i64> {
    let context = pod_context(pod);
    context.fs_group.into_iter().chain(context.supplemental_groups.into_iter().flatten()).collect()
}

fn groups_policy(pod: &Pod) -> i32 {
    match pod_context(pod).supplemental_groups_policy.as_deref() {
        Some("Strict") => SupplementalGroupsPolicy::Strict as i32,
        _ => SupplementalGroupsPolicy::Merge as i32,
    }
}

fn namespaces(pod: &Pod) -> NamespaceOption {
    let pod_spec = spec::spec(pod);
    let mode = |host: Option<bool>| if host == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = match (pod_spec.host_pid, pod_spec.share_process_namespace) {
        (Some(true), _) => NamespaceMode::Node,
        (_, Some(true)) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    NamespaceOption {
        network: mode(pod_spec.host_network) as i32,
        ipc: mode(pod_spec.host_ipc) as i32,
        pid: pid as i32,
        userns_options: Some(UserNamespace { mode: NamespaceMode::Node as i32, ..Default::default() }),
        ..Default::default()
    }
}

fn unconfined() -> SecurityProfile {
    SecurityProfile { profile_type: ProfileType::Unconfined as i32, ..Default::default() }
}

/// Local profiles live below this folder of the kubelet's root; the runtime gets the whole path.
pub(crate) const SECCOMP_DIR: &str = "seccomp";

fn seccomp(profile: Option<&SeccompProfile>) -> Result<SecurityProfile, SecurityError> {
    match profile.map(|profile| profile.type_.as_str()) {
        Some("RuntimeDefault") => {
            Ok(SecurityProfile { profile_type: ProfileType::RuntimeDefault as i32, ..Default::default() })
        }
        Some("Localhost") => {
            let path = profile.and_then(|profile| profile.localhost_profile.clone());
            let localhost_ref = path.filter(|path| !path.is_empty()).ok_or(SecurityError::NoLocalhostProfile)?;
            Ok(SecurityProfile { profile_type: ProfileType::Localhost as i32, localhost_ref })
        }
        _ => Ok(unconfined()),
    }
}

fn selinux(options: SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.unwrap_or_default(),
        role: options.role.unwrap_or_default(),
        r#type: options.type_.unwrap_or_default(),
        level: options.level.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(pod: Value, container: Value) -> (Pod, Container) {
        let container = json!({ "name": "c", "securityContext": container });
        let pod: Pod = serde_json::from_value(
            json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u" }, "spec": { "securityContext": pod, "containers": [container] } }),
        )
        .expect("a pod");
        let container = spec::containers(&pod).first().expect("a container").clone();
        (pod, container)
    }

    #[track_caller]
    fn check_non_root(context: Value, image: (Option<i64>, &str), want: Option<&str>) {
        let (pod, container) = pod(context, json!({}));
        let image = ImageUser { uid: image.0, name: image.1.to_owned() };
        let got = verify_non_root(&pod, &container, &image).err().map(|error| error.to_string());
        assert_eq!(got.as_deref(), want);
    }

    #[test]
    fn non_root_is_verified() {
        let need = json!({ "runAsNonRoot": true });
        check_non_root(json!({}), (Some(0), ""), None);
        check_non_root(need.clone(), (Some(1000), ""), None);
        check_non_root(
            need.clone(),
            (None, ""),
            Some("container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: c)"),
        );
        check_non_root(
            need.clone(),
            (Some(0), ""),
            Some("container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: c)"),
        );
        check_non_root(
            need,
            (None, "web"),
            Some(
                "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root (pod: \"p_n(u)\", container: c)",
            ),
        );
        check_non_root(
            json!({ "runAsNonRoot": true, "runAsUser": 0 }),
            (Some(1), ""),
            Some("container's runAsUser breaks non-root policy (pod: \"p_n(u)\", container: c)"),
        );
    }

    #[test]
    fn a_number_that_is_no_user_is_not_known_to_be_other_than_root() {
        for uid in [-1, 1 << 31, 1 << 32] {
            let image = cri::v1::Image { uid: Some(Int64Value { value: uid }), ..Default::default() };
            let user = ImageUser::of(image);
            assert_eq!((user.uid, user.name.as_str()), (None, uid.to_string().as_str()));
            let (pod, container) = pod(json!({ "runAsNonRoot": true }), json!({}));
            assert!(matches!(verify_non_root(&pod, &container, &user), Err(SecurityError::NamedUser { .. })));
        }
    }

    /// CVE-2023-2431: such a container ran without any filter.
    #[test]
    fn a_localhost_profile_without_a_name_does_not_start() {
        for profile in [json!({ "type": "Localhost" }), json!({ "type": "Localhost", "localhostProfile": "" })] {
            let own = json!({ "seccompProfile": profile });
            for (of_pod, of_container_) in [(own.clone(), json!({})), (json!({}), own)] {
                let (pod, container) = pod(of_pod, of_container_);
                let got = of_container(&pod, &container, &ImageUser::default(), None);
                assert_eq!(got.err(), Some(SecurityError::NoLocalhostProfile));
            }
        }
    }

    #[test]
    fn the_container_overrides_the_pod() {
        let (pod, container) = pod(
            json!({ "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4] }),
            json!({ "runAsUser": 10, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true }),
        );
        let got = of_container(&pod, &container, &ImageUser::default(), None).expect("a context");
        assert_eq!(got.run_as_user, Some(Int64Value { value: 10 }));
        assert_eq!(got.run_as_group, Some(Int64Value { value: 2 }));
        assert_eq!(got.supplemental_groups, [3, 4]);
        assert!(got.no_new_privs && got.readonly_rootfs && !got.privileged);
        assert_eq!(got.namespace_options.map(|options| options.pid), Some(NamespaceMode::Container as i32));
    }
}
