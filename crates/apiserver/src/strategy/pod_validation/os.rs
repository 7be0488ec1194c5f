//! The rules of what a pod may ask of the system it runs on.

use api::field::FieldError;
use serde_json::Value;

use super::super::check::At;
use super::{all_containers, security};

/// What only Linux has, of the security of a pod; `^` is beside it in the spec.
const LINUX_PODS: [&str; 15] = [
    "appArmorProfile",
    "seLinuxOptions",
    "^hostUsers",
    "^hostPID",
    "^hostIPC",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "^shareProcessNamespace",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
/// The same, of the security of a container.
const LINUX_CONTAINERS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

pub(super) fn rules(spec: &At<'_>) {
    let os = spec.field("os");
    if !os.exists() || !os.field("name").needed() {
        return;
    }
    let own = spec.field("securityContext");
    let contexts: Vec<At<'_>> =
        all_containers(spec).iter().map(|container| container.field("securityContext")).collect();
    match os.field("name").text() {
        "linux" => {
            for options in std::iter::once(own).chain(contexts).map(|context| context.field("windowsOptions")) {
                if options.exists() {
                    options.forbidden("windows options cannot be set for a linux pod");
                }
            }
        }
        "windows" => {
            for name in LINUX_PODS {
                let place = name.strip_prefix('^').map_or_else(|| own.field(name), |name| spec.field(name));
                let set = match name {
                    "^hostPID" | "^hostIPC" => place.is_true(),
                    "sysctls" => !place.is_empty(),
                    _ => place.exists(),
                };
                if set {
                    place.forbidden("cannot be set for a windows pod");
                }
            }
            for context in contexts {
                for place in LINUX_CONTAINERS.iter().map(|name| context.field(name)).filter(At::exists) {
                    place.forbidden("cannot be set for a windows pod");
                }
            }
        }
        name => os.complain(FieldError::not_supported(os.path(), name, &["linux", "windows"])),
    }
}

/// Where one container is a process of its Windows host, all are.
pub(super) fn host_processes(spec: &At<'_>) {
    const PROCESS: [&str; 3] = ["securityContext", "windowsOptions", "hostProcess"];
    let of_pod = spec.at(&PROCESS);
    let (mut all, mut count) = (0, 0);
    for own in all_containers(spec).iter().map(|container| container.at(&PROCESS)) {
        all += 1;
        if of_pod.exists() && own.exists() && of_pod.value() != own.value() {
            own.invalid(format!(
                "pod hostProcess value must be identical if both are specified, was {}",
                of_pod.value()
            ));
        }
        count += usize::from(own.is_true() || (!own.exists() && of_pod.is_true()));
    }
    if count == 0 {
        return;
    }
    if count != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        spec.complain(FieldError::invalid(spec.path(), "", detail));
    }
    let network = spec.field("hostNetwork");
    if !network.is_true() {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        network.complain(FieldError::invalid(network.path(), Value::Bool(false), detail));
    }
    if !security::may_be_privileged() {
        spec.forbidden("hostProcess containers are disallowed by cluster policy");
    }
}
