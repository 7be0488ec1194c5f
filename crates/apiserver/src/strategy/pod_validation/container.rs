//! The rules of containers: what they run, under which names, and which ports they take.

use api::field::FieldError;
use api::validation::{is_label, is_port_name};

use super::super::check::{At, PROTOCOLS};
use super::handler::{PROBES, lifecycle};
use super::{environment, mounts, resources, security};

const RULES_NEED_POLICY: &str = "must specify restartPolicy when restart rules are used";
/// What a container that is added later may not have.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// Main containers, then those before them, then those added later.
pub(super) fn containers(spec: &At<'_>, volumes: &[String]) {
    let main = spec.each("containers");
    if main.is_empty() {
        spec.field("containers").required("");
    }
    let mut seen = Vec::new();
    for container in &main {
        common(container, volumes, spec);
        unique_name(container, &mut seen, true);
        lifecycle(container, spec);
        restart_policy(container);
    }
    host_ports(&main);
    for container in spec.each("initContainers") {
        common(&container, volumes, spec);
        match container.field("restartPolicy").exists() || container.field("restartPolicyRules").is_empty() {
            true => restart_policy(&container),
            false => container.field("restartPolicy").required(RULES_NEED_POLICY),
        }
        unique_name(&container, &mut seen, false);
        host_ports(std::slice::from_ref(&container));
        let lasting = container.field("restartPolicy").text() == "Always";
        if lasting {
            lifecycle(&container, spec);
            continue;
        }
        for field in std::iter::once("lifecycle").chain(PROBES) {
            if container.field(field).exists() {
                container.field(field).forbidden("may not be set for init containers without restartPolicy=Always");
            }
        }
        for policy in container.each("resizePolicy").iter().map(|policy| policy.field("restartPolicy")) {
            if policy.text() == "RestartContainer" {
                policy.invalid("must not be set to 'RestartContainer' for non-sidecar initContainers");
            }
        }
    }
    let others = seen.clone();
    for container in spec.each("ephemeralContainers") {
        common(&container, volumes, spec);
        trimmed_image(&container);
        unique_name(&container, &mut seen, true);
        added_later(&container, &others);
    }
}

/// What a container that is added later may be, and where it looks.
fn added_later(container: &At<'_>, others: &[&str]) {
    const NOT: &str = "cannot be set for an Ephemeral Container";
    let target = container.field("targetContainerName");
    if !target.is_empty() && !others.contains(&target.text()) {
        target.complain(FieldError::not_found(target.path(), target.text()));
    }
    for name in NOT_EPHEMERAL {
        let field = container.field(name);
        // Every container has resources, though it may ask for none.
        let set = if name == "resources" { !field.is_empty() } else { field.exists() };
        if set {
            field.forbidden(NOT);
        }
    }
    for mount in container.each("volumeMounts") {
        for path in ["subPath", "subPathExpr"].map(|name| mount.field(name)) {
            if !path.is_empty() {
                path.forbidden(NOT);
            }
        }
    }
}

/// Names are unique in a pod; one that is missing counts where `unnamed` says so.
fn unique_name<'a>(container: &At<'a>, seen: &mut Vec<&'a str>, unnamed: bool) {
    let name = container.field("name");
    if seen.contains(&name.text()) {
        name.complain(FieldError::duplicate(name.path(), name.text()));
    } else if unnamed || !name.is_empty() {
        seen.push(name.text());
    }
}

fn common(at: &At<'_>, volumes: &[String], spec: &At<'_>) {
    at.field("name").needed_named(is_label);
    at.field("image").needed();
    at.field("terminationMessagePolicy").needed_one_of(&["File", "FallbackToLogsOnError"]);
    ports(&at.field("ports"));
    environment::variables(at);
    mounts::mounts(at, volumes);
    mounts::devices(at, volumes, spec);
    at.field("imagePullPolicy").needed_one_of(&["Always", "IfNotPresent", "Never"]);
    resources::of_container(&at.field("resources"), spec);
    resize_policy(&at.field("resizePolicy"), spec);
    security::of_container(&at.field("securityContext"), spec);
}

/// What holds for the image of a pod, though not of a template.
pub(super) fn trimmed_image(container: &At<'_>) {
    let image = container.field("image");
    if image.text().trim() != image.text() {
        image.invalid("must not have leading or trailing whitespace");
    }
}

fn restart_policy(container: &At<'_>) {
    let (policy, rules) = (container.field("restartPolicy"), container.field("restartPolicyRules"));
    if !policy.exists() && !rules.is_empty() {
        policy.required(RULES_NEED_POLICY);
    }
    policy.one_of_if_set(&["Always", "Never", "OnFailure"]);
    if rules.count() > 20 {
        rules.complain(FieldError::too_many(rules.path(), rules.count(), 20));
    }
    for rule in rules.items() {
        rule.field("action").one_of(&["Restart", "RestartAllContainers"]);
        let codes = rule.field("exitCodes");
        if !codes.exists() {
            codes.required("must be specified");
            continue;
        }
        codes.field("operator").one_of(&["In", "NotIn"]);
        let values = codes.field("values");
        if values.count() > 255 {
            values.complain(FieldError::too_many(values.path(), values.count(), 255));
        }
    }
}

/// Upstream tells of the list, except where a resource comes twice.
fn resize_policy(list: &At<'_>, spec: &At<'_>) {
    let mut seen = Vec::new();
    for policy in list.items() {
        let resource = policy.field("resourceName").called(list.path().clone());
        let restart = policy.field("restartPolicy").called(list.path().clone());
        if seen.contains(&resource.text()) {
            policy.complain(FieldError::duplicate(policy.path(), resource.text()));
        }
        seen.push(resource.text());
        resource.needed_one_of(&["cpu", "memory"]);
        restart.needed_one_of(&["NotRequired", "RestartContainer"]);
        if spec.field("restartPolicy").text() == "Never" && restart.text() != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            restart.complain(FieldError::invalid(restart.path(), restart.text(), detail));
        }
    }
}

fn ports(at: &At<'_>) {
    let mut seen = Vec::new();
    for port in at.items() {
        let name = port.field("name");
        if !name.is_empty() {
            name.named(is_port_name);
            match is_port_name(name.text()).is_empty() {
                true if seen.contains(&name.text()) => name.duplicate(),
                true => seen.push(name.text()),
                false => (),
            }
        }
        match port.field("containerPort").number().unwrap_or(0) {
            0 => port.field("containerPort").required(""),
            _ => port.field("containerPort").port_number(),
        }
        if port.field("hostPort").number().unwrap_or(0) != 0 {
            port.field("hostPort").port_number();
        }
        port.field("protocol").needed_one_of(&PROTOCOLS);
    }
}

/// No two containers take the same port of the host.
fn host_ports(containers: &[At<'_>]) {
    let mut taken = Vec::new();
    for port in containers.iter().flat_map(|container| container.each("ports")) {
        let host = port.field("hostPort");
        let Some(number) = host.number().filter(|number| *number != 0) else { continue };
        let shown = format!("{}/{}/{number}", port.field("protocol").text(), port.field("hostIP").text());
        if taken.contains(&shown) {
            host.complain(FieldError::duplicate(host.path(), shown));
        } else {
            taken.push(shown);
        }
    }
}

/// On the host's network a container's port is the host's; a template may leave it out.
pub(super) fn host_ports_match(spec: &At<'_>, is_pod: bool) {
    if !spec.field("hostNetwork").is_true() {
        return;
    }
    for port in spec.each("containers").iter().flat_map(|container| container.each("ports")) {
        let (own, host) = (port.field("containerPort"), port.field("hostPort"));
        let taken = host.number().unwrap_or(0);
        if (is_pod || taken != 0) && own.number().unwrap_or(0) != taken {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            host.complain(FieldError::invalid(host.path(), taken, detail));
        }
    }
}
