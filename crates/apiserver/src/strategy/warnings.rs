//! What is worth telling of pods that are valid, and of templates of them.

mod overlaps;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use api::validation::is_label;
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::check::{At, check};
use super::pod::prepare;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];
/// The field, what warnings call it, and since when.
const VOLUMES: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// What to tell of a new pod.
pub(super) fn pod(object: &Object) -> Vec<String> {
    let mut told = name(object, "this is used in the Pod's hostname");
    told.extend(template(object, &[]));
    told
}

/// What to tell of a new object whose pods are named after it.
pub(super) fn workload(object: &Object, path: &[&str]) -> Vec<String> {
    let mut told = name(object, "this is used in Pod names and hostnames");
    told.extend(template(object, path));
    told
}

/// What to tell of a changed object with the pod template at `path`.
pub(super) fn changed(subresource: &str, new: &Object, old: &Object, path: &[&str]) -> Vec<String> {
    if has_new_spec(subresource, new, old) { template(new, path) } else { Vec::new() }
}

/// The change counts as one of what the object is to be.
pub(super) fn has_new_spec(subresource: &str, new: &Object, old: &Object) -> bool {
    subresource.is_empty() && new.at(&["metadata", "generation"]) != old.at(&["metadata", "generation"])
}

pub(super) fn name(object: &Object, used: &str) -> Vec<String> {
    let wrong = is_label(object.name());
    let why = "which can result in surprising behavior; a DNS label is recommended";
    if wrong.is_empty() { Vec::new() } else { vec![format!("metadata.name: {used}, {why}: [{}]", wrong.join(" "))] }
}

/// What to tell of the pod template at `path`.
pub(super) fn template(object: &Object, path: &[&str]) -> Vec<String> {
    let mut told = Vec::new();
    check(object, |at| {
        let (template, spec) = (at.at(path), at.at(path).field("spec"));
        labels_of_nodes(&spec, &mut told);
        let annotations = template.at(&["metadata", "annotations"]);
        for (key, why) in ANNOTATIONS {
            if annotations.field(key).exists() {
                told.push(format!("{}: {why}", annotations.path().key(key)));
            }
        }
        for volume in spec.each("volumes") {
            volume_sources(&volume, &VOLUMES, &mut told);
            claim(&volume.at(&["ephemeral", "volumeClaimTemplate", "spec"]), &mut told);
        }
        overlaps::volumes(&spec.field("volumes"), &mut told);
        repeated(&spec.field("hostAliases"), "ip", &mut told);
        repeated(&spec.field("imagePullSecrets"), "name", &mut told);
        for secret in spec.each("imagePullSecrets").iter().filter(|secret| secret.field("name").is_empty()) {
            told.push(format!("{}: invalid empty name \"\"", secret.path().child("name")));
        }
        fractions(&spec.field("overhead"), &["memory", "ephemeral-storage"], &mut told);
        let containers: Vec<At<'_>> = CONTAINERS.iter().flat_map(|list| spec.each(list)).collect();
        annotated(&annotations, &spec, !path.is_empty(), &mut told);
        for container in &containers {
            for resource in ["memory", "ephemeral-storage"] {
                for list in ["limits", "requests"] {
                    fractions(&container.at(&["resources", list]), &[resource], &mut told);
                }
            }
            hidden_variables(container, &mut told);
        }
        ports(&containers, &mut told);
        let grace = spec.field("terminationGracePeriodSeconds");
        if grace.number().is_some_and(|seconds| seconds < 0) {
            told.push(format!("{}: must be >= 0; negative values are invalid and will be treated as 1", grace.path()));
        }
        for kind in ["podAffinity", "podAntiAffinity"] {
            let affinity = spec.at(&["affinity", kind]);
            let preferred = affinity.each(PREFERRED).into_iter().map(|term| term.field("podAffinityTerm"));
            for term in affinity.each(REQUIRED).into_iter().chain(preferred) {
                no_selector(&term, &mut told);
            }
        }
        spec.field("dnsConfig").each("nameservers").iter().for_each(|server| address(server, &mut told));
        spec.each("hostAliases").iter().for_each(|alias| address(&alias.field("ip"), &mut told));
    });
    told
}

/// What is said in annotations and should be said in fields.
fn annotated(annotations: &At<'_>, spec: &At<'_>, is_template: bool, told: &mut Vec<String>) {
    let context = spec.field("securityContext");
    let mut tell = |key: &str, why: &str| told.push(format!("{}: {why}", annotations.path().key(key)));
    const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
    let pod = "seccomp.security.alpha.kubernetes.io/pod";
    if !context.field("seccompProfile").exists() && annotations.field(pod).exists() {
        tell(pod, SECCOMP);
    }
    for container in CONTAINERS.iter().flat_map(|list| spec.each(list)) {
        let (name, own) = (container.field("name").text(), container.field("securityContext"));
        let key = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
        if !own.field("seccompProfile").exists() && annotations.field(&key).exists() {
            tell(&key, SECCOMP);
        }
        let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
        let said = annotations.field(&key);
        // A pod's field was set from the annotation by now.
        let profile = if is_template { context.field("appArmorProfile") } else { own.field("appArmorProfile") };
        let field = prepare::profile(said.text());
        let told_alike = match is_template {
            true => own.field("appArmorProfile").exists() || field.as_ref() == Some(profile.value()),
            false => {
                field.is_some() && context.field("appArmorProfile").value() == field.as_ref().unwrap_or(&Value::Null)
            }
        };
        if said.exists() && !told_alike {
            tell(&key, "deprecated since v1.30; use the \"appArmorProfile\" field instead");
        }
    }
}

/// Tells of the kinds of volume that are on their way out, or gone.
pub(super) fn volume_sources(at: &At<'_>, gone: &[(&str, &str, &str)], told: &mut Vec<String>) {
    for (field, called, why) in gone {
        if at.field(field).exists() {
            told.push(format!("{}: {why}", at.path().child(called)));
        }
    }
}

/// Tells what a claim asks for that no disk can have.
pub(super) fn claim(spec: &At<'_>, told: &mut Vec<String>) {
    for list in ["requests", "limits"] {
        fractions(&spec.at(&["resources", list]), &["storage"], told);
    }
}

fn fractions(amounts: &At<'_>, names: &[&str], told: &mut Vec<String>) {
    for name in names {
        let amount = amounts.field(name);
        if amount.quantity().is_some_and(|quantity| quantity.milli_value() % 1000 != 0) {
            let place = amounts.path().key(name);
            told.push(format!("{place}: fractional byte value {:?} is invalid, must be an integer", amount.text()));
        }
    }
}

fn deprecated_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => "deprecated since v1.22; use Taints and Tolerations instead",
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => return None,
    })
}

fn labels_of_nodes(spec: &At<'_>, told: &mut Vec<String>) {
    for (key, label) in spec.field("nodeSelector").entries() {
        told.extend(deprecated_label(key).map(|why| format!("{}: {why}", label.path())));
    }
    let affinity = spec.at(&["affinity", "nodeAffinity"]);
    let preferred = affinity.each(PREFERRED).into_iter().map(|term| term.field("preference"));
    for term in affinity.field(REQUIRED).each("nodeSelectorTerms").into_iter().chain(preferred) {
        node_term(&term, told);
    }
    for constraint in spec.each("topologySpreadConstraints") {
        label_key(&constraint.field("topologyKey"), told);
        no_selector(&constraint, told);
    }
}

/// Tells of the labels of nodes that a term of a selector should no longer name.
pub(super) fn node_term(term: &At<'_>, told: &mut Vec<String>) {
    for expression in term.each("matchExpressions") {
        label_key(&expression.field("key"), told);
    }
}

fn label_key(key: &At<'_>, told: &mut Vec<String>) {
    told.extend(deprecated_label(key.text()).map(|why| format!("{}: {} is {why}", key.path(), key.text())));
}

fn no_selector(at: &At<'_>, told: &mut Vec<String>) {
    let selector = at.field("labelSelector");
    if !selector.exists() {
        told.push(format!("{}: {NO_SELECTOR}", selector.path()));
    }
}

/// Tells of an address that is not written as everybody writes it.
pub(super) fn address(at: &At<'_>, told: &mut Vec<String>) {
    let canonical = at.text().parse::<IpAddr>().ok().filter(IpAddr::is_ipv6).map(|address| address.to_string());
    if let Some(canonical) = canonical.filter(|canonical| canonical != at.text()) {
        let why = "should be in RFC 5952 canonical format";
        told.push(format!("{}: IPv6 address {:?} {why} ({canonical:?})", at.path(), at.text()));
    }
}

fn repeated(list: &At<'_>, field: &str, told: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for item in list.items() {
        let value = item.field(field);
        if !seen.insert(value.text()) {
            told.push(format!("{}: duplicate {field} {:?}", value.path(), value.text()));
        }
    }
}

/// A variable may build on an earlier one of its name, and otherwise hides it.
fn hidden_variables(container: &At<'_>, told: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for variable in container.each("env") {
        let (name, value) = (variable.field("name").text(), variable.field("value").text());
        let reference = format!("$({name})");
        let builds_on = value.contains(&reference) && value != reference && !variable.field("valueFrom").exists();
        if !seen.insert(name) && !builds_on {
            told.push(format!(
                "{}: hides previous definition of {name:?}, which may be dropped when using apply",
                variable.path()
            ));
        }
    }
}

fn ports(containers: &[At<'_>], told: &mut Vec<String>) {
    let mut taken: Vec<At<'_>> = Vec::new();
    let all: Vec<At<'_>> = containers.iter().flat_map(|container| container.each("ports")).collect();
    let same = |a: &At<'_>, b: &At<'_>, field: &str| a.field(field).value() == b.field(field).value();
    let host = |port: &At<'_>| port.field("hostPort").number().unwrap_or(0);
    for port in &all {
        if !port.field("hostIP").is_empty() && host(port) == 0 {
            let part = |name: &str| port.field(name).text();
            let number = port.field("containerPort").number().unwrap_or(0);
            told.push(format!(
                "{}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{number} Protocol:{} HostIP:{}}}",
                port.path(),
                part("name"),
                part("protocol"),
                part("hostIP")
            ));
        }
        for other in taken.iter().filter(|other| same(port, other, "containerPort") && same(port, other, "protocol")) {
            let unnamed = (port.field("hostIP").is_empty(), other.field("hostIP").is_empty());
            let how = match () {
                () if same(port, other, "hostIP") && host(port) == host(other) => "duplicate",
                () if host(port) == 0 || host(other) == 0 => "overlapping",
                () if host(port) == host(other) && unnamed.0 != unnamed.1 => "dangerously ambiguous",
                () => continue,
            };
            told.push(format!("{}: {how} port definition with {}", port.path(), other.path()));
        }
        taken.push(port.clone());
    }
    let mut names: HashMap<&str, String> = HashMap::new();
    for port in all.iter().filter(|port| !port.field("name").is_empty()) {
        let name = port.field("name").text();
        match names.get(name) {
            Some(other) => told.push(format!(
                "{}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}",
                port.path()
            )),
            None => drop(names.insert(name, port.path().to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[track_caller]
    fn told(spec: Value, want: &[&str]) {
        let Value::Object(pod) = json!({"metadata": {"name": "a"}, "spec": spec}) else { unreachable!() };
        assert_eq!(super::pod(&pod), want);
    }

    #[test]
    fn a_variable_that_hides_another_is_told() {
        let container = |env: Value| json!({"containers": [{"name": "c", "env": env}]});
        told(container(json!([{"name": "A", "value": "x"}, {"name": "A", "value": "$(A)y"}])), &[]);
        told(
            container(json!([{"name": "A", "value": "x"}, {"name": "A", "value": "y"}])),
            &["spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply"],
        );
    }

    #[test]
    fn ports_that_clash_are_told() {
        let ports = json!([
            {"containerPort": 80, "protocol": "TCP", "name": "a"},
            {"containerPort": 80, "protocol": "TCP", "name": "a"},
        ]);
        told(
            json!({"containers": [{"name": "c", "ports": ports}]}),
            &[
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[0].ports[1]: duplicate port name \"a\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
            ],
        );
    }

    #[test]
    fn deprecated_labels_and_volumes_are_told() {
        told(
            json!({"nodeSelector": {"beta.kubernetes.io/os": "linux"}, "volumes": [{"name": "v", "rbd": {}}]}),
            &[
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+",
            ],
        );
    }
}
