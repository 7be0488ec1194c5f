//! The rules of containers: what they run, what they mount, how they are probed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use api::field::FieldError;
use api::validation::{is_config_key, is_label, is_port_name, is_subdomain};
use serde_json::Value;

use super::super::check::{At, PROTOCOLS};
use super::super::quota::container_resource_name;
use super::{USER_IDS, names, seccomp, volume};

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
/// What a variable can be filled with from its pod.
const ENV_FIELDS: [&str; 8] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
];

/// Main containers, then those before them, then those added later.
pub(super) fn containers(spec: &At<'_>, volumes: &[String]) {
    let main = spec.each("containers");
    if main.is_empty() {
        spec.field("containers").required("");
    }
    let mut seen = Vec::new();
    for container in &main {
        common(container, volumes);
        unique_name(container, &mut seen);
        lifecycle(container);
    }
    host_ports(&main);
    for container in spec.each("initContainers") {
        common(&container, volumes);
        let policy = container.field("restartPolicy");
        policy.one_of_if_set(&["Always", "Never", "OnFailure"]);
        unique_name(&container, &mut seen);
        host_ports(std::slice::from_ref(&container));
        if policy.text() == "Always" {
            lifecycle(&container);
            continue;
        }
        for field in std::iter::once("lifecycle").chain(PROBES) {
            if container.field(field).exists() {
                container.field(field).forbidden("may not be set for init containers without restartPolicy=Always");
            }
        }
    }
    for container in spec.each("ephemeralContainers") {
        common(&container, volumes);
        unique_name(&container, &mut seen);
        let target = container.field("targetContainerName");
        let known = names(&main).into_iter().chain(names(&spec.each("initContainers")));
        if !target.is_empty() && !known.into_iter().any(|name| &name == target.value()) {
            target.complain(FieldError::not_found(target.path(), target.text()));
        }
        for field in std::iter::once("lifecycle").chain(PROBES).chain(["ports"]) {
            if !container.field(field).is_empty() {
                container.field(field).forbidden("cannot be set for an Ephemeral Container");
            }
        }
    }
}

fn unique_name<'a>(container: &At<'a>, seen: &mut Vec<&'a str>) {
    let name = container.field("name");
    if seen.contains(&name.text()) {
        name.duplicate();
    } else if !name.is_empty() {
        seen.push(name.text());
    }
}

fn common(at: &At<'_>, volumes: &[String]) {
    at.field("name").needed_named(is_label);
    let image = at.field("image");
    if image.needed() && image.text().trim() != image.text() {
        image.invalid("must not have leading or trailing whitespace");
    }
    at.field("terminationMessagePolicy").needed_one_of(&["File", "FallbackToLogsOnError"]);
    ports(&at.field("ports"));
    environment(at);
    volume::mounts(at, volumes);
    at.field("imagePullPolicy").needed_one_of(&["Always", "IfNotPresent", "Never"]);
    resources(&at.field("resources"));
    security_context(&at.field("securityContext"));
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

/// On the host's network a container's port is the host's.
pub(super) fn host_ports_match(spec: &At<'_>) {
    for list in ["containers", "initContainers"] {
        for port in spec.each(list).iter().flat_map(|container| container.each("ports")) {
            let (own, host) = (port.field("containerPort"), port.field("hostPort"));
            if own.number() != host.number() {
                own.invalid("must match `hostPort` when `hostNetwork` is true");
            }
        }
    }
}

fn is_variable(name: &str) -> Vec<String> {
    const MESSAGE: &str =
        "a valid environment variable name must consist only of printable ASCII characters other than '='";
    if name.contains('=') || !name.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        vec![MESSAGE.into()]
    } else {
        Vec::new()
    }
}

fn environment(at: &At<'_>) {
    for variable in at.each("env") {
        variable.field("name").needed_named(is_variable);
        let from = variable.field("valueFrom");
        if from.exists() {
            value_from(&from, !variable.field("value").is_empty());
        }
    }
    let list = at.field("envFrom");
    let tell = |detail: &str| list.complain(FieldError::invalid(list.path(), "", detail));
    for source in list.items() {
        source.field("prefix").named_if_set(is_variable);
        let given: Vec<At<'_>> =
            ["configMapRef", "secretRef"].map(|field| source.field(field)).into_iter().filter(At::exists).collect();
        given.iter().for_each(|reference| reference.field("name").needed_named(is_subdomain));
        match given.len() {
            0 => tell("must specify one of: `configMapRef` or `secretRef`"),
            1 => (),
            _ => tell("may not have more than one field specified at a time"),
        }
    }
}

fn value_from(at: &At<'_>, has_value: bool) {
    const ONE_OF: &str =
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
    let mut count = 0;
    let field = at.field("fieldRef");
    if field.exists() {
        count += 1;
        field_ref(&field, &ENV_FIELDS, "status.podIPs");
    }
    for (name, key_rule) in [("configMapKeyRef", true), ("secretKeyRef", true), ("resourceFieldRef", false)] {
        let reference = at.field(name);
        if !reference.exists() {
            continue;
        }
        count += 1;
        if key_rule {
            reference.field("name").called(reference.path().child("name")).named(is_subdomain);
            reference.field("key").needed_named(is_config_key);
        } else {
            reference.field("resource").needed();
        }
    }
    count += usize::from(at.field("fileKeyRef").exists());
    let tell = |detail: &str| at.complain(FieldError::invalid(at.path(), "", detail));
    match count {
        0 => tell(ONE_OF),
        _ if has_value => tell("may not be specified when `value` is not empty"),
        1 => (),
        _ => tell("may not have more than one field specified at a time"),
    }
}

/// A field of the pod that can be referred to: one of `known`, `also`, or a single label or annotation.
pub(super) fn field_ref(at: &At<'_>, known: &[&str], also: &str) {
    let path = at.field("fieldPath");
    if !path.needed() {
        return;
    }
    let text = path.text();
    let subscript = text.strip_suffix(']').and_then(|head| head.split_once("['").or_else(|| head.split_once('[')));
    let all: Vec<&str> = known.iter().copied().chain([also]).collect();
    match subscript {
        Some(("metadata.labels" | "metadata.annotations", _)) => (),
        Some((of, _)) => at.complain(FieldError::invalid(at.path(), of, "does not support subscript")),
        None if all.contains(&text) => (),
        // The whole map fits into a file, not into a variable.
        None if matches!(text, "metadata.labels" | "metadata.annotations") => {
            let mut sorted = all.clone();
            sorted.sort_unstable();
            path.one_of(&sorted);
        }
        None => {
            let detail = format!("error converting fieldPath: field label not supported: {text}");
            path.invalid(detail);
        }
    }
}

fn resources(at: &At<'_>) {
    let amounts = |list: &str| -> BTreeMap<String, At<'_>> {
        at.field(list).entries().into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
    };
    let limits = amounts("limits");
    for (name, amount) in &limits {
        amount_rules(name, amount);
    }
    for (name, amount) in amounts("requests") {
        amount_rules(&name, &amount);
        let overcommits = !name.contains('/') && !name.starts_with("hugepages-") || name.contains("kubernetes.io/");
        let place = at.field("requests").path().clone();
        let tell = |detail: String| amount.complain(FieldError::invalid(&place, amount.text(), detail));
        match limits.get(&name) {
            Some(limit) if !overcommits && amount.quantity() != limit.quantity() => {
                tell(format!("must be equal to {name} limit of {}", limit.text()));
            }
            Some(limit) if amount.quantity() > limit.quantity() => {
                tell(format!("must be less than or equal to {name} limit of {}", limit.text()));
            }
            None if !overcommits => at.field("limits").required("Limit must be set for non overcommitable resources"),
            _ => (),
        }
    }
}

fn amount_rules(name: &str, amount: &At<'_>) {
    container_resource_name(amount, name);
    amount.quantity_not_negative();
    let whole = name.contains('/');
    if whole && amount.quantity().is_some_and(|quantity| quantity.milli_value() % 1000 != 0) {
        amount.invalid("must be an integer");
    }
}

/// Whether this process lets containers be privileged: as upstream, one answer for all that it validates.
static MAY_BE_PRIVILEGED: AtomicBool = AtomicBool::new(true);

/// Says whether containers may be privileged, for all API servers of this process; they may if nobody says.
pub fn allow_privileged(allowed: bool) {
    MAY_BE_PRIVILEGED.store(allowed, Ordering::Relaxed);
}

fn security_context(at: &At<'_>) {
    if at.field("privileged").is_true() && !MAY_BE_PRIVILEGED.load(Ordering::Relaxed) {
        at.field("privileged").forbidden("disallowed by cluster policy");
    }
    for field in ["runAsUser", "runAsGroup"] {
        at.field(field).between(USER_IDS.0, USER_IDS.1);
    }
    at.field("procMount").one_of_if_set(&["Default", "Unmasked"]);
    seccomp(&at.field("seccompProfile"));
    if at.field("allowPrivilegeEscalation").value() == &Value::Bool(false) {
        if at.field("privileged").is_true() {
            at.invalid("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        if at.at(&["capabilities", "add"]).items().iter().any(|name| name.text() == "CAP_SYS_ADMIN") {
            at.invalid("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
        }
    }
}

fn lifecycle(container: &At<'_>) {
    for hook in ["postStart", "preStop"] {
        let hook = container.at(&["lifecycle", hook]);
        if hook.exists() {
            handler(&hook);
        }
    }
    for name in PROBES {
        let probe = container.field(name);
        if !probe.exists() {
            continue;
        }
        handler(&probe);
        probe.none_negative(&[
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ]);
        let grace = probe.field("terminationGracePeriodSeconds");
        match name {
            "readinessProbe" if grace.exists() => grace.invalid("must not be set for readinessProbes"),
            "readinessProbe" => (),
            _ => {
                grace.positive();
                let successes = probe.field("successThreshold");
                if successes.number().is_some_and(|count| count != 1) {
                    successes.invalid("must be 1");
                }
            }
        }
    }
}

/// Exactly one thing to do.
fn handler(at: &At<'_>) {
    let mut given = HANDLERS.iter().map(|name| (*name, at.field(name))).filter(|(_, handler)| handler.exists());
    let Some((kind, handler)) = given.next() else {
        at.required("must specify a handler type");
        return;
    };
    match kind {
        "exec" => drop(handler.field("command").needed()),
        "httpGet" => {
            handler.field("path").needed();
            handler.field("port").port();
            handler.field("scheme").one_of(&["HTTP", "HTTPS"]);
        }
        "tcpSocket" | "grpc" => handler.field("port").port(),
        _ => (),
    }
    given.for_each(|(_, extra)| extra.forbidden("may not specify more than 1 handler type"));
}
