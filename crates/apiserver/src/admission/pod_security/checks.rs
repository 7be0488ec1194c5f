//! The Pod Security Standards: what each level forbids since which version, told as upstream tells it.

use std::collections::BTreeSet;

use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::policy::{Level, LevelVersion, Version};

/// What is wrong, and where.
pub(super) struct Violation {
    pub(super) reason: String,
    detail: String,
}

type Check = fn(&Pod<'_>) -> Option<Violation>;

/// Since which minor version, until before which; the second list replaces what it names of the first.
struct Rule {
    since: u32,
    until: u32,
    check: Check,
    replaces: usize,
}

const NOTHING: usize = usize::MAX;
const END: u32 = u32::MAX;
/// Where in the list they are that restricted rules replace.
const CAPABILITIES: usize = 1;
const HOST_PATH: usize = 3;
const SECCOMP: usize = 9;
const PROC_MOUNT: usize = 7;

const fn rule(since: u32, until: u32, check: Check, replaces: usize) -> Rule {
    Rule { since, until, check, replaces }
}

/// The rules of one name, by the place of that name in upstream's order.
const BASELINE: [&[Rule]; 12] = [
    &[rule(0, END, app_armor, NOTHING)],
    &[rule(0, END, capabilities_baseline, NOTHING)],
    &[rule(0, END, host_namespaces, NOTHING)],
    &[rule(0, END, host_path, NOTHING)],
    &[rule(0, END, host_ports, NOTHING)],
    &[rule(34, END, host_probes, NOTHING)],
    &[rule(0, END, privileged, NOTHING)],
    &[rule(0, 35, proc_mount, NOTHING), rule(35, END, |pod| pod.unless_user_namespace(proc_mount), NOTHING)],
    &[
        rule(0, 31, |pod| selinux(pod, &SELINUX_TYPES[..4]), NOTHING),
        rule(31, END, |pod| selinux(pod, &SELINUX_TYPES), NOTHING),
    ],
    &[rule(0, 19, seccomp_annotations, NOTHING), rule(19, END, seccomp_baseline, NOTHING)],
    &[
        rule(0, 27, |pod| sysctls(pod, &SYSCTLS[..5]), NOTHING),
        rule(27, 29, |pod| sysctls(pod, &SYSCTLS[..6]), NOTHING),
        rule(29, 32, |pod| sysctls(pod, &SYSCTLS[..10]), NOTHING),
        rule(32, END, |pod| sysctls(pod, &SYSCTLS), NOTHING),
    ],
    &[rule(0, END, windows_host_process, NOTHING)],
];

const RESTRICTED: [&[Rule]; 7] = [
    &[
        rule(8, 25, privilege_escalation, NOTHING),
        rule(25, END, |pod| pod.unless_windows(privilege_escalation), NOTHING),
    ],
    &[
        rule(22, 25, capabilities_restricted, CAPABILITIES),
        rule(25, END, |pod| pod.unless_windows(capabilities_restricted), CAPABILITIES),
    ],
    &[rule(35, END, proc_mount, PROC_MOUNT)],
    &[rule(0, END, restricted_volumes, HOST_PATH)],
    &[rule(0, 35, run_as_non_root, NOTHING), rule(35, END, |pod| pod.unless_user_namespace(run_as_non_root), NOTHING)],
    &[rule(23, 35, run_as_user, NOTHING), rule(35, END, |pod| pod.unless_user_namespace(run_as_user), NOTHING)],
    &[rule(19, 25, seccomp_restricted, SECCOMP), rule(25, END, |pod| pod.unless_windows(seccomp_restricted), SECCOMP)],
];

const CAPABILITY_NAMES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
/// In the order of the versions that allow them.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
const SAFE_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// All violations of a level, in upstream's order.
pub(super) fn evaluate(wanted: LevelVersion, metadata: &Object, spec: &Object) -> Vec<Violation> {
    let Version(version) = wanted.version;
    let pod = Pod { metadata, spec };
    let at =
        |rules: &'static [Rule]| rules.iter().find(|rule| (rule.since..rule.until).contains(&version.min(END - 1)));
    let restricted: Vec<&Rule> = match wanted.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => Vec::new(),
        Level::Restricted => RESTRICTED.into_iter().filter_map(at).collect(),
    };
    let replaced = |index: usize| restricted.iter().any(|rule| rule.replaces == index);
    let baseline = BASELINE.into_iter().enumerate().filter(|(index, _)| !replaced(*index));
    let baseline: Vec<&Rule> = baseline.filter_map(|(_, rules)| at(rules)).collect();
    baseline.into_iter().chain(restricted).filter_map(|rule| (rule.check)(&pod)).collect()
}

/// `reason (detail), reason (detail)`
pub(super) fn told(violations: &[Violation]) -> String {
    let each = violations.iter().map(|Violation { reason, detail }| match detail.as_str() {
        "" => reason.clone(),
        detail => format!("{reason} ({detail})"),
    });
    each.collect::<Vec<_>>().join(", ")
}

struct Pod<'a> {
    metadata: &'a Object,
    spec: &'a Object,
}

fn list<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Object> + use<'a> {
    object.at(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn name(object: &Object) -> &str {
    object.text(&["name"])
}

fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| format!("\"{}\"", item.as_ref())).collect::<Vec<_>>().join(", ")
}

fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`
fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

fn violation(reason: &str, detail: String) -> Option<Violation> {
    Some(Violation { reason: reason.to_owned(), detail })
}

impl<'a> Pod<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Object> + use<'a> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|field| list(spec, &[field]))
    }

    fn names(&self, bad: impl Fn(&Object) -> bool) -> Vec<&'a str> {
        self.containers().filter(|container| bad(container)).map(name).collect()
    }

    fn unless_windows(&self, check: Check) -> Option<Violation> {
        if self.spec.text(&["os", "name"]) == "windows" { None } else { check(self) }
    }

    fn unless_user_namespace(&self, check: Check) -> Option<Violation> {
        if self.spec.get("hostUsers") == Some(&Value::Bool(false)) { None } else { check(self) }
    }

    /// The pod's own security context, then those of its containers that are bad: `pod and container "a"`.
    fn setters(&self, bad: impl Fn(&Object) -> bool) -> Option<String> {
        let bad_at = |object: &Object| object.get("securityContext").and_then(Value::as_object).is_some_and(&bad);
        let mut setters: Vec<String> = bad_at(self.spec).then(|| "pod".to_owned()).into_iter().collect();
        let names = self.names(bad_at);
        if !names.is_empty() {
            setters.push(containers(&names));
        }
        (!setters.is_empty()).then(|| setters.join(" and "))
    }

    /// The values at a path of all security contexts.
    fn values(&self, path: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
        let contexts = std::iter::once(self.spec).chain(self.containers());
        contexts.filter_map(move |at| at.get("securityContext")?.as_object()?.at(path)?.as_str())
    }
}

fn is(object: &Object, path: &[&str], wanted: bool) -> bool {
    object.at(path) == Some(&Value::Bool(wanted))
}

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    const PATH: [&str; 2] = ["appArmorProfile", "type"];
    let allowed = |kind: &str| matches!(kind, "RuntimeDefault" | "Localhost");
    let bad = |context: &Object| context.contains_key("appArmorProfile") && !allowed(context.text(&PATH));
    let mut setters: Vec<String> = pod.setters(bad).into_iter().collect();
    let values: BTreeSet<&str> = pod.values(&PATH).filter(|kind| !allowed(kind)).collect();
    let mut values: Vec<String> = values.into_iter().map(ToOwned::to_owned).collect();
    let annotations = pod.metadata.get("annotations").and_then(Value::as_object).into_iter().flatten();
    let forbidden: BTreeSet<String> = annotations
        .filter(|(key, _)| key.starts_with("container.apparmor.security.beta.kubernetes.io/"))
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(_, value)| !value.is_empty() && *value != "runtime/default" && !value.starts_with("localhost/"))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if !forbidden.is_empty() {
        setters.push(plural("annotation", "annotations", forbidden.len()).to_owned());
        values.extend(forbidden);
    }
    if setters.is_empty() {
        return None;
    }
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    violation(reason, format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(values)))
}

fn added<'a>(container: &'a Object, allowed: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let add = container.at(&["securityContext", "capabilities", "add"]).and_then(Value::as_array);
    add.into_iter().flatten().filter_map(Value::as_str).filter(|name| !allowed.contains(name))
}

fn forbidden_capabilities(pod: &Pod<'_>, allowed: &[&str]) -> Option<String> {
    let bad = pod.names(|container| added(container, allowed).next().is_some());
    let names: BTreeSet<&str> = pod.containers().flat_map(|container| added(container, allowed)).collect();
    let told =
        || format!("{} must not include {} in securityContext.capabilities.add", containers(&bad), quoted(names));
    (!bad.is_empty()).then(told)
}

fn capabilities_baseline(pod: &Pod<'_>) -> Option<Violation> {
    violation("non-default capabilities", forbidden_capabilities(pod, &CAPABILITY_NAMES)?)
}

fn capabilities_restricted(pod: &Pod<'_>) -> Option<Violation> {
    let missing = pod.names(|container| {
        let drop = container.at(&["securityContext", "capabilities", "drop"]).and_then(Value::as_array);
        !drop.is_some_and(|drop| drop.iter().any(|name| name == "ALL"))
    });
    let mut details = Vec::new();
    if !missing.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&missing)));
    }
    details.extend(forbidden_capabilities(pod, &["NET_BIND_SERVICE"]));
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let used = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| is(pod.spec, &[field], true));
    let used: Vec<String> = used.map(|field| format!("{field}=true")).collect();
    if used.is_empty() { None } else { violation("host namespaces", used.join(", ")) }
}

fn host_path(pod: &Pod<'_>) -> Option<Violation> {
    let volumes: Vec<&str> =
        list(pod.spec, &["volumes"]).filter(|volume| volume.contains_key("hostPath")).map(name).collect();
    let told = || format!("{} {}", plural("volume", "volumes", volumes.len()), quoted(&volumes));
    if volumes.is_empty() { None } else { violation("hostPath volumes", told()) }
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    fn used(container: &Object) -> impl Iterator<Item = String> {
        let ports = list(container, &["ports"]).filter_map(|port| port.get("hostPort")?.as_i64());
        ports.filter(|port| *port != 0).map(|port| port.to_string())
    }
    let bad = pod.names(|container| used(container).next().is_some());
    let ports: BTreeSet<String> = pod.containers().flat_map(used).collect();
    if bad.is_empty() {
        return None;
    }
    let (uses, what) = (plural("uses", "use", bad.len()), plural("hostPort", "hostPorts", ports.len()));
    let ports: Vec<String> = ports.into_iter().collect();
    violation("hostPort", format!("{} {uses} {what} {}", containers(&bad), ports.join(", ")))
}

fn host_probes(pod: &Pod<'_>) -> Option<Violation> {
    const PLACES: [&[&str]; 5] = [
        &["livenessProbe"],
        &["readinessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    fn hosts(container: &Object) -> impl Iterator<Item = &str> {
        let places = PLACES.into_iter().filter_map(|path| container.at(path)?.as_object());
        let named = places.flat_map(|place| [place.text(&["httpGet", "host"]), place.text(&["tcpSocket", "host"])]);
        named.filter(|host| !host.is_empty())
    }
    let bad: BTreeSet<&str> = pod.names(|container| hosts(container).next().is_some()).into_iter().collect();
    let hosts: BTreeSet<&str> = pod.containers().flat_map(hosts).collect();
    if bad.is_empty() {
        return None;
    }
    let bad: Vec<&str> = bad.into_iter().collect();
    let uses = plural("uses", "use", bad.len());
    let what = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
    violation("probe or lifecycle host", format!("{} {uses} {what} {}", containers(&bad), quoted(hosts)))
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.names(|container| is(container, &["securityContext", "privileged"], true));
    let told = || format!("{} must not set securityContext.privileged=true", containers(&bad));
    if bad.is_empty() { None } else { violation("privileged", told()) }
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let kind = |container: &'_ Object| container.text(&["securityContext", "procMount"]).to_owned();
    let is_bad = |kind: &str| !kind.is_empty() && kind != "Default";
    let bad = pod.names(|container| is_bad(&kind(container)));
    let kinds: BTreeSet<String> = pod.containers().map(kind).filter(|kind| is_bad(kind)).collect();
    let told = || format!("{} must not set securityContext.procMount to {}", containers(&bad), quoted(kinds));
    if bad.is_empty() { None } else { violation("procMount", told()) }
}

fn selinux(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let part = |context: &'_ Object, field: &str| context.text(&["seLinuxOptions", field]).to_owned();
    let bad = |context: &Object| {
        !allowed.contains(&part(context, "type").as_str())
            || !part(context, "user").is_empty()
            || !part(context, "role").is_empty()
    };
    let setters = pod.setters(bad)?;
    let types: BTreeSet<&str> =
        pod.values(&["seLinuxOptions", "type"]).filter(|kind| !allowed.contains(kind)).collect();
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", "types", types.len()), quoted(types)));
    }
    if pod.values(&["seLinuxOptions", "user"]).any(|user| !user.is_empty()) {
        data.push("user may not be set".to_owned());
    }
    if pod.values(&["seLinuxOptions", "role"]).any(|role| !role.is_empty()) {
        data.push("role may not be set".to_owned());
    }
    violation("seLinuxOptions", format!("{setters} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")))
}

fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let annotation = |key: String| {
        let value = pod.metadata.at(&["annotations", &key])?.as_str()?;
        let fine = matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
        (!fine).then(|| format!("{key}={value:?}"))
    };
    let containers =
        pod.containers().map(|container| format!("container.seccomp.security.alpha.kubernetes.io/{}", name(container)));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned()).chain(containers);
    let forbidden: BTreeSet<String> = keys.filter_map(annotation).collect();
    let what = plural("annotation", "annotations", forbidden.len());
    let forbidden: Vec<String> = forbidden.into_iter().collect();
    if forbidden.is_empty() {
        None
    } else {
        violation("seccompProfile", format!("forbidden {what} {}", forbidden.join(", ")))
    }
}

const SECCOMP_TYPE: [&str; 2] = ["seccompProfile", "type"];

fn is_seccomp(kind: &str) -> bool {
    matches!(kind, "RuntimeDefault" | "Localhost")
}

fn seccomp_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let setters =
        pod.setters(|context| context.contains_key("seccompProfile") && !is_seccomp(context.text(&SECCOMP_TYPE)))?;
    let values: BTreeSet<&str> = pod.values(&SECCOMP_TYPE).filter(|kind| !is_seccomp(kind)).collect();
    let told = format!("{setters} must not set securityContext.seccompProfile.type to {}", quoted(values));
    violation("seccompProfile", told)
}

fn seccomp_restricted(pod: &Pod<'_>) -> Option<Violation> {
    let explicit = seccomp_baseline(pod);
    let path = ["securityContext", "seccompProfile"];
    if explicit.is_some() || pod.spec.at(&path).is_some() {
        return explicit;
    }
    let unset = pod.names(|container| container.at(&path).is_none());
    let told = || {
        format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            containers(&unset)
        )
    };
    if unset.is_empty() { None } else { violation("seccompProfile", told()) }
}

fn sysctls(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let asked = list(pod.spec, &["securityContext", "sysctls"]).map(name);
    let forbidden: Vec<&str> = asked.filter(|name| !allowed.contains(name)).collect();
    if forbidden.is_empty() { None } else { violation("forbidden sysctls", forbidden.join(", ")) }
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| is(context, &["windowsOptions", "hostProcess"], true))?;
    violation("hostProcess", format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.names(|container| !is(container, &["securityContext", "allowPrivilegeEscalation"], false));
    let told = || format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&bad));
    if bad.is_empty() { None } else { violation("allowPrivilegeEscalation != false", told()) }
}

fn restricted_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let is_safe = |volume: &Object| SAFE_VOLUMES.iter().any(|kind| volume.contains_key(*kind));
    let bad: Vec<&Object> = list(pod.spec, &["volumes"]).filter(|volume| !is_safe(volume)).collect();
    let kind = |volume: &'_ Object| volume.keys().find(|key| *key != "name").cloned().unwrap_or("unknown".to_owned());
    let kinds: BTreeSet<String> = bad.iter().map(|volume| kind(volume)).collect();
    if bad.is_empty() {
        return None;
    }
    let (what, uses) = (plural("volume", "volumes", bad.len()), plural("uses", "use", bad.len()));
    let types = plural("restricted volume type", "restricted volume types", kinds.len());
    let names = quoted(bad.iter().map(|volume| name(volume)));
    violation("restricted volume types", format!("{what} {names} {uses} {types} {}", quoted(kinds)))
}

fn run_as_non_root(pod: &Pod<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    if let Some(setters) = pod.setters(|context| is(context, &["runAsNonRoot"], false)) {
        return violation(REASON, format!("{setters} must not set securityContext.runAsNonRoot=false"));
    }
    let path = ["securityContext", "runAsNonRoot"];
    if is(pod.spec, &path, true) {
        return None;
    }
    let unset = pod.names(|container| container.at(&path).is_none());
    let told = || format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&unset));
    if unset.is_empty() { None } else { violation(REASON, told()) }
}

fn run_as_user(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| context.get("runAsUser").and_then(Value::as_i64) == Some(0))?;
    violation("runAsUser=0", format!("{setters} must not set runAsUser=0"))
}

#[cfg(test)]
mod tests;
