//! The rules of containers: what they run, what they mount, how they are probed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use api::field::FieldError;
use api::validation::{is_config_key, is_label, is_port_name, is_subdomain};
use serde_json::Value;

use super::super::check::{At, PROTOCOLS};
use super::super::quota::{container_resource_name, may_overcommit};
use super::handler::{PROBES, lifecycle};
use super::{USER_IDS, apparmor, claims, names, seccomp, volume};

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
        common(container, volumes, spec);
        unique_name(container, &mut seen);
        lifecycle(container, spec);
        restart_policy(container);
    }
    host_ports(&main);
    for container in spec.each("initContainers") {
        common(&container, volumes, spec);
        let policy = container.field("restartPolicy");
        restart_policy(&container);
        unique_name(&container, &mut seen);
        host_ports(std::slice::from_ref(&container));
        if policy.text() == "Always" {
            lifecycle(&container, spec);
            continue;
        }
        for field in std::iter::once("lifecycle").chain(PROBES) {
            if container.field(field).exists() {
                container.field(field).forbidden("may not be set for init containers without restartPolicy=Always");
            }
        }
    }
    for container in spec.each("ephemeralContainers") {
        common(&container, volumes, spec);
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

fn common(at: &At<'_>, volumes: &[String], spec: &At<'_>) {
    at.field("name").needed_named(is_label);
    at.field("image").needed();
    at.field("terminationMessagePolicy").needed_one_of(&["File", "FallbackToLogsOnError"]);
    ports(&at.field("ports"));
    environment(at);
    volume::mounts(at, volumes);
    volume::devices(at, volumes, spec);
    at.field("imagePullPolicy").needed_one_of(&["Always", "IfNotPresent", "Never"]);
    resources(&at.field("resources"), spec);
    resize_policy(&at.field("resizePolicy"), spec);
    security_context(&at.field("securityContext"));
}

/// What holds for a container of a pod, though not of a template.
pub(super) fn only_for_pod(spec: &At<'_>) {
    for container in ["containers", "initContainers", "ephemeralContainers"].iter().flat_map(|list| spec.each(list)) {
        let image = container.field("image");
        if image.text().trim() != image.text() {
            image.invalid("must not have leading or trailing whitespace");
        }
    }
}

fn restart_policy(container: &At<'_>) {
    let (policy, rules) = (container.field("restartPolicy"), container.field("restartPolicyRules"));
    if !policy.exists() && !rules.is_empty() {
        policy.required("must specify restartPolicy when restart rules are used");
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
    for (name, key_rule) in [("resourceFieldRef", false), ("configMapKeyRef", true), ("secretKeyRef", true)] {
        let reference = at.field(name);
        if !reference.exists() {
            continue;
        }
        count += 1;
        if key_rule {
            reference.field("name").called(reference.path().child("name")).named(is_subdomain);
            reference.field("key").needed_named(is_config_key);
        } else {
            resource_ref(&reference);
        }
    }
    let file = at.field("fileKeyRef");
    if file.exists() {
        count += 1;
        file.field("key").needed_named(is_variable);
        file.field("volumeName").needed_named(is_label);
        if file.field("path").needed() {
            volume::no_backsteps(&file.field("path"));
        }
    }
    let tell = |detail: &str| at.complain(FieldError::invalid(at.path(), "", detail));
    match count {
        0 => tell(ONE_OF),
        _ if has_value => tell("may not be specified when `value` is not empty"),
        1 => (),
        _ => tell("may not have more than one field specified at a time"),
    }
}

/// A container's resource that can be referred to, and the unit it is told in.
pub(super) fn resource_ref(at: &At<'_>) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    const SIZES: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let (resource, divisor) = (at.field("resource"), at.field("divisor"));
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.text().starts_with(prefix));
    if resource.needed() && !huge {
        resource.one_of(&KNOWN);
    }
    let (units, of): (&[&str], &str) = match resource.text().split_once('.').map_or("", |(_, name)| name) {
        _ if huge => (&SIZES, "hugepages"),
        "cpu" => (&["1m", "1"], "cpu"),
        "memory" => (&SIZES, "memory"),
        "ephemeral-storage" => (&SIZES, "local ephemeral storage"),
        _ => return,
    };
    if divisor.quantity().is_some_and(|amount| !amount.is_zero()) && !units.contains(&divisor.text()) {
        let list = if of == "cpu" { "1m and 1".to_owned() } else { SIZES.join(", ") };
        let detail = format!("only divisor's values {list} are supported with the {of} resource");
        at.complain(FieldError::invalid(divisor.path(), resource.text(), detail));
    }
}

/// A field of the pod that can be referred to: one of `known`, `also`, or a single label or annotation.
pub(super) fn field_ref(at: &At<'_>, known: &[&str], also: &str) {
    let (path, version) = (at.field("fieldPath"), at.field("apiVersion"));
    if !version.needed() || !path.needed() {
        return;
    }
    let text = path.text();
    if version.text() != "v1" {
        path.invalid(format!("error converting fieldPath: unsupported pod version: {}", version.text()));
        return;
    }
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

fn resources(at: &At<'_>, spec: &At<'_>) {
    let amounts = |list: &str| -> BTreeMap<String, At<'_>> {
        at.field(list).entries().into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
    };
    let limits = amounts("limits");
    for (name, amount) in &limits {
        amount_rules(name, amount);
    }
    for (name, amount) in amounts("requests") {
        amount_rules(&name, &amount);
        let overcommits = may_overcommit(&name);
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
    claims::container(at, spec);
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
    apparmor(&at.field("appArmorProfile"));
    if at.field("allowPrivilegeEscalation").value() == &Value::Bool(false) {
        if at.field("privileged").is_true() {
            at.invalid("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        if at.at(&["capabilities", "add"]).items().iter().any(|name| name.text() == "CAP_SYS_ADMIN") {
            at.invalid("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
        }
    }
}
