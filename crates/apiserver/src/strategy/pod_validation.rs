//! The rules of a pod spec, in upstream's order; shared by pods and every kind with a pod template.

mod affinity;
mod claims;
mod container;
mod handler;
mod volume;

pub use self::container::allow_privileged;

use api::Object;
use api::field::{FieldError, Path};
use api::validation::{is_label, is_qualified_name, is_subdomain};
use serde_json::Value;

use super::check::{At, check};
use super::node::tolerations;

const USER_IDS: (i64, i64) = (0, i32::MAX as i64);

pub(super) fn pod_spec(spec: &Object, path: &Path) -> Vec<FieldError> {
    check(spec, |at| rules(&at.called(path.clone())))
}

/// What holds for pods, though not for templates of them.
pub(super) fn only_for_pod(spec: &Object, path: &Path) -> Vec<FieldError> {
    check(spec, |at| container::only_for_pod(&at.called(path.clone())))
}

fn rules(spec: &At<'_>) {
    if !spec.field("terminationGracePeriodSeconds").exists() {
        spec.field("terminationGracePeriodSeconds").required("");
    }
    let volumes = volume::volumes(&spec.field("volumes"));
    claims::pod(spec);
    container::containers(spec, &volumes);
    if spec.field("hostNetwork").is_true() {
        container::host_ports_match(spec);
    }
    spec.field("restartPolicy").needed_one_of(&["Always", "OnFailure", "Never"]);
    spec.field("dnsPolicy").needed_one_of(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    spec.field("nodeSelector").labels();
    security_context(spec);
    affinity::affinity(&spec.field("affinity"));
    dns_config(&spec.field("dnsConfig"), spec.field("dnsPolicy").text() == "None");
    for gate in spec.each("readinessGates") {
        gate.field("conditionType").named(is_qualified_name);
    }
    let mut seen = Vec::new();
    for gate in spec.each("schedulingGates") {
        let name = gate.field("name").called(gate.path().clone());
        name.named(is_qualified_name);
        if seen.contains(&name.text()) {
            name.duplicate();
        }
        seen.push(name.text());
    }
    affinity::spread(&spec.field("topologySpreadConstraints"));
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
    for (name, amount) in spec.field("overhead").entries() {
        super::quota::container_resource_name(&amount, name);
        amount.quantity_not_negative();
    }
    let os = spec.at(&["os", "name"]);
    if spec.field("os").exists() && os.needed() {
        os.called(spec.path().child("os")).one_of(&["linux", "windows"]);
    }
    volume::file_keys(spec);
}

fn security_context(spec: &At<'_>) {
    let at = spec.field("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        at.field(field).between(USER_IDS.0, USER_IDS.1);
    }
    at.each("supplementalGroups").iter().for_each(|group| group.between(USER_IDS.0, USER_IDS.1));
    if spec.field("shareProcessNamespace").is_true() && spec.field("hostPID").is_true() {
        let place = at.path().child("shareProcessNamespace");
        at.complain(FieldError::invalid(&place, true, "ShareProcessNamespace and HostPID cannot both be enabled"));
    }
    let mut seen = Vec::new();
    for sysctl in at.each("sysctls") {
        let name = sysctl.field("name");
        if name.is_empty() {
            name.required("");
        } else if !is_sysctl(name.text()) {
            name.invalid("must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$");
        } else if seen.contains(&name.text()) {
            name.duplicate();
        }
        seen.push(name.text());
    }
    at.field("fsGroupChangePolicy").one_of_if_set(&["Always", "OnRootMismatch"]);
    seccomp(&at.field("seccompProfile"));
    apparmor(&at.field("appArmorProfile"));
    at.field("seLinuxChangePolicy").one_of_if_set(&["Recursive"]);
    at.field("supplementalGroupsPolicy").one_of_if_set(&["Merge", "Strict"]);
}

fn is_sysctl(name: &str) -> bool {
    let part = |text: &str| {
        let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = text.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
    };
    name.len() <= 253 && name.split(['.', '/']).all(part)
}

fn seccomp(at: &At<'_>) {
    if !at.exists() {
        return;
    }
    let (kind, profile) = (at.field("type"), at.field("localhostProfile"));
    if kind.is_empty() {
        kind.required("type is required when seccompProfile is set");
    } else {
        kind.one_of(&["Localhost", "RuntimeDefault", "Unconfined"]);
    }
    match (kind.text(), profile.exists()) {
        ("Localhost", false) => profile.required("must be set when seccomp type is Localhost"),
        ("Localhost", true) => volume::descending(&profile),
        (_, true) => at.called(profile.path().clone()).invalid("can only be set when seccomp type is Localhost"),
        _ => (),
    }
}

fn apparmor(at: &At<'_>) {
    const PATH_MAX: usize = 4095;
    if !at.exists() {
        return;
    }
    let (kind, profile) = (at.field("type"), at.field("localhostProfile"));
    match kind.text() {
        "Localhost" if profile.text().trim() != profile.text() => {
            profile.invalid("must not be padded with whitespace");
        }
        "Localhost" if profile.is_empty() => profile.required("must be set when AppArmor type is Localhost"),
        "Localhost" if profile.text().len() > PATH_MAX => {
            profile.complain(FieldError::too_long(profile.path(), PATH_MAX));
        }
        "RuntimeDefault" | "Unconfined" if profile.exists() => {
            profile.invalid("can only be set when AppArmor type is Localhost");
        }
        "Localhost" | "RuntimeDefault" | "Unconfined" => (),
        "" => kind.required("type is required when appArmorProfile is set"),
        _ => kind.one_of(&["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn dns_config(at: &At<'_>, alone: bool) {
    const SERVERS_MAX: usize = 3;
    const SEARCHES_MAX: usize = 32;
    const SEARCHES_MAX_CHARACTERS: usize = 2048;
    let servers = at.field("nameservers");
    if alone && !at.exists() {
        at.required("must provide `dnsConfig` when `dnsPolicy` is None");
        return;
    }
    if alone && servers.is_empty() {
        servers.required("must provide at least one DNS nameserver when `dnsPolicy` is None");
        return;
    }
    if servers.count() > SERVERS_MAX {
        servers.invalid(format!("must not have more than {SERVERS_MAX} nameservers"));
    }
    for server in servers.items() {
        server.ip();
    }
    let searches = at.field("searches");
    if searches.count() > SEARCHES_MAX {
        searches.invalid(format!("must not have more than {SEARCHES_MAX} search paths"));
    }
    let written = searches.items().iter().map(|search| search.text().len() + 1).sum::<usize>();
    if written > SEARCHES_MAX_CHARACTERS + 1 {
        searches.invalid(format!(
            "must not have more than {SEARCHES_MAX_CHARACTERS} characters (including spaces) in the search list"
        ));
    }
    for search in searches.items() {
        if search.text() != "." {
            let name = search.text().strip_suffix('.').unwrap_or(search.text());
            for detail in is_search(name) {
                search.complain(FieldError::invalid(search.path(), name, detail));
            }
        }
    }
    for option in at.each("options") {
        // Upstream tells of the list here, not of the name.
        if option.field("name").is_empty() {
            option.called(option.path().clone()).required("must not be empty");
        }
    }
}

/// A subdomain whose labels may begin with an underscore and have more within.
fn is_search(name: &str) -> Vec<String> {
    const MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
    let edge = |b: Option<char>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let label = |text: &str| {
        let rest = text.strip_prefix('_').unwrap_or(text);
        let within = |b: char| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, '-' | '_');
        edge(rest.chars().next()) && edge(rest.chars().last()) && rest.chars().all(within)
    };
    let mut found = Vec::new();
    if name.len() > 253 {
        found.push("must be no more than 253 characters".to_owned());
    }
    if !name.split('.').all(label) {
        found.push(MESSAGE.to_owned());
    }
    found
}

/// The names in a list of objects.
fn names(list: &[At<'_>]) -> Vec<Value> {
    list.iter().map(|item| item.field("name").value().clone()).collect()
}
