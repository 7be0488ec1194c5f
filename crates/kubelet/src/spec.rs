//! Reads pod and container specs the way the API server has defaulted them.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, PodStatus, Probe};

static NO_SPEC: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
static NO_STATUS: LazyLock<PodStatus> = LazyLock::new(PodStatus::default);

pub(crate) fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&NO_SPEC)
}

pub(crate) fn status(pod: &Pod) -> &PodStatus {
    pod.status.as_ref().unwrap_or(&NO_STATUS)
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(crate) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// How messages name a pod: `name_namespace(uid)`.
pub(crate) fn display(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

pub(crate) fn containers(pod: &Pod) -> &[Container] {
    &spec(pod).containers
}

pub(crate) fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

pub(crate) fn ephemeral_containers(pod: &Pod) -> Vec<Container> {
    spec(pod).ephemeral_containers.iter().flatten().map(as_container).collect()
}

/// Init, then regular, then ephemeral containers.
pub(crate) fn all_containers(pod: &Pod) -> Vec<Container> {
    let regular = init_containers(pod).iter().chain(containers(pod)).cloned();
    regular.chain(ephemeral_containers(pod)).collect()
}

pub(crate) fn container(pod: &Pod, name: &str) -> Option<Container> {
    all_containers(pod).into_iter().find(|container| container.name == name)
}

fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        name: e.name,
        resources: e.resources,
        security_context: e.security_context,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
        ..Default::default()
    }
}

/// An init container that keeps running beside the regular ones.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

pub(crate) fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(crate) fn is_host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

pub(crate) fn is_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// A pod from a manifest file carries where it came from; a mirror carries the hash of its original.
pub(crate) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub(crate) const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
pub(crate) const CONFIG_HASH: &str = "kubernetes.io/config.hash";

pub(crate) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api") && !is_mirror(pod)
}

pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// Whether the pod's (and its own) policy starts this container again after `exit_code`.
pub(crate) fn should_restart(container: &Container, pod: &Pod, exit_code: i32) -> bool {
    if let Some(policy) = container.restart_policy.as_deref() {
        let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
        let matching = rules.iter().find(|rule| {
            rule.exit_codes.as_ref().is_some_and(|codes| {
                let listed = codes.values.as_deref().unwrap_or_default().contains(&exit_code);
                match codes.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
            })
        });
        if matching.is_some_and(|rule| rule.action == "Restart") {
            return true;
        }
        match policy {
            "Always" => return true,
            "OnFailure" => return exit_code != 0,
            "Never" => return false,
            _ => (),
        }
    }
    match spec(pod).restart_policy.as_deref() {
        Some("OnFailure") => exit_code != 0,
        Some("Never") => false,
        _ => true,
    }
}

pub(crate) fn probe_of(container: &Container, kind: crate::probes::Kind) -> Option<&Probe> {
    match kind {
        crate::probes::Kind::Liveness => container.liveness_probe.as_ref(),
        crate::probes::Kind::Readiness => container.readiness_probe.as_ref(),
        crate::probes::Kind::Startup => container.startup_probe.as_ref(),
    }
}
