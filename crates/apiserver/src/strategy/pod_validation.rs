//! The rules of a pod spec, in upstream's order; shared by pods and every kind with a pod template.

mod affinity;
mod annotations;
mod claims;
mod container;
mod dns;
mod environment;
mod handler;
mod mounts;
mod os;
mod resources;
mod security;
mod volume;

use api::Object;
use api::field::FieldError;
use api::validation::{is_label, is_qualified_name, is_subdomain};
use serde_json::Value;

pub use self::security::allow_privileged;

pub(super) use self::annotations::{
    on_create as annotations_on_create, on_update as annotations_on_update, rules as annotations,
};
pub(super) use self::resources::aggregate;
pub(super) use self::security::PROFILE_MAX;
use super::check::{At, check};
use super::node::tolerations;

const USER_IDS: (i64, i64) = (0, i32::MAX as i64);
/// The containers of a spec, in the order in which upstream visits them.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The rules of a pod: of what it is annotated with, and of its spec.
pub(super) fn pod(object: &Object) -> Vec<FieldError> {
    check(object, |pod| {
        let spec = pod.field("spec");
        annotations::rules(&pod.at(&["metadata", "annotations"]), &spec);
        pod_spec(&spec, Some(&pod));
        volume::tokens_of_nobody(&spec);
        for container in ["containers", "initContainers"].iter().flat_map(|list| spec.each(list)) {
            container::trimmed_image(&container);
        }
    })
}

/// The rules of the spec of `pod`, or of a template if there is none.
pub(super) fn pod_spec(spec: &At<'_>, pod: Option<&At<'_>>) {
    if !spec.field("terminationGracePeriodSeconds").exists() {
        spec.field("terminationGracePeriodSeconds").required("");
    }
    let volumes = volume::volumes(&spec.field("volumes"), pod);
    claims::pod(spec, pod);
    container::containers(spec, &volumes);
    resources::of_pod(spec);
    container::host_ports_match(spec, pod.is_some());
    spec.field("restartPolicy").needed_one_of(&["Always", "OnFailure", "Never"]);
    spec.field("dnsPolicy").needed_one_of(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    spec.field("nodeSelector").labels();
    security::of_pod(spec);
    affinity::affinity(&spec.field("affinity"));
    dns::config(&spec.field("dnsConfig"), spec.field("dnsPolicy").text() == "None");
    for gate in spec.each("readinessGates") {
        gate.field("conditionType").named(is_qualified_name);
    }
    let mut seen = Vec::new();
    for gate in spec.each("schedulingGates") {
        let name = gate.field("name").called(gate.path().clone());
        name.named(is_qualified_name);
        if seen.contains(&name.text()) {
            name.complain(FieldError::duplicate(name.path(), name.text()));
        }
        seen.push(name.text());
    }
    affinity::spread(&spec.field("topologySpreadConstraints"));
    os::host_processes(spec);
    host_users(spec);
    dns::host_name(spec);
    spec.field("serviceAccountName").named_if_set(is_subdomain);
    spec.field("nodeName").named_if_set(is_subdomain);
    spec.field("activeDeadlineSeconds").between(1, i64::from(i32::MAX));
    spec.field("hostname").named_if_set(is_label);
    spec.field("subdomain").named_if_set(is_label);
    tolerations(&spec.field("tolerations"));
    for alias in spec.each("hostAliases") {
        alias.field("ip").ip();
        alias.each("hostnames").iter().for_each(|name| name.named(is_subdomain));
    }
    spec.field("priorityClassName").named_if_set(is_subdomain);
    if spec.field("runtimeClassName").exists() {
        spec.field("runtimeClassName").named(is_subdomain);
    }
    if spec.field("preemptionPolicy").exists() {
        spec.field("preemptionPolicy").needed_one_of(&["PreemptLowerPriority", "Never"]);
    }
    if spec.field("overhead").exists() {
        resources::overhead(&spec.field("overhead"));
    }
    os::rules(spec);
    volume::file_keys(spec);
}

/// With users of its own a pod has the network of its own, too, and so on.
fn host_users(spec: &At<'_>) {
    const WHEN: &str = "when `hostUsers` is false";
    if spec.field("hostUsers").value() != &Value::Bool(false) {
        return;
    }
    for (field, called) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec.field(field).is_true() {
            spec.field(field).called(spec.path().child(called)).forbidden(WHEN);
        }
    }
    for devices in all_containers(spec).iter().map(|container| container.field("volumeDevices")) {
        if !devices.is_empty() {
            devices.forbidden(WHEN);
        }
    }
}

fn all_containers<'a>(spec: &At<'a>) -> Vec<At<'a>> {
    CONTAINERS.iter().flat_map(|list| spec.each(list)).collect()
}
