//! Which sysctls a pod may set: the safe ones, and those that the node's administrator allows.
//!
//! Upstream's package is `pkg/kubelet/sysctl`. A sysctl is safe if it belongs to a namespace of the pod and has no effect on other
//! pods; one that belongs to a namespace can be allowed with `--allowed-unsafe-sysctls`; no other can.

use k8s_openapi::api::core::v1::Pod;

use crate::spec;

/// The reason of a pod that asks for another one.
pub(crate) const FORBIDDEN: &str = "SysctlForbidden";

/// All kernels that this kubelet runs on (5.15 and newer) have these in the network or IPC namespace.
const SAFE: [&str; 12] = [
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
const IPC_NAMES: [&str; 10] = [
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.shm",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.msg",
];
const MAX_LENGTH: usize = 253;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    fn of(name: &str) -> Option<Self> {
        match name {
            name if IPC_NAMES.contains(&name) || name.starts_with("fs.mqueue.") => Some(Self::Ipc),
            name if name.starts_with("net.") => Some(Self::Net),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        if self == Self::Ipc { "IPC" } else { "Net" }
    }
}

/// Why a pattern of `--allowed-unsafe-sysctls` cannot be allowed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SysctlError {
    #[error(
        "sysctl {0:?} must have at most {MAX_LENGTH} characters: lower case letters, digits, '-', '_' in parts separated by '.' or '/', with '*' only at the end"
    )]
    Pattern(String),
    #[error("the sysctls {0:?} are not known to be namespaced")]
    NotNamespaced(String),
}

/// The sysctls that pods of this node may set.
#[derive(Clone, Debug)]
pub struct Allowlist {
    names: Vec<(String, Namespace)>,
    prefixes: Vec<(String, Namespace)>,
}

impl Default for Allowlist {
    fn default() -> Self {
        let safe = SAFE.iter().filter_map(|name| Some(((*name).to_owned(), Namespace::of(name)?)));
        Self { names: safe.collect(), prefixes: Vec::new() }
    }
}

impl Allowlist {
    /// The safe sysctls and those that match `patterns`: names, or prefixes that end in `*`.
    ///
    /// # Errors
    /// If a pattern is malformed, or names a sysctl of the whole node.
    pub fn with(patterns: &[String]) -> Result<Self, SysctlError> {
        let mut list = Self::default();
        for pattern in patterns {
            if !is_pattern(pattern) {
                return Err(SysctlError::Pattern(pattern.clone()));
            }
            let name = normalize(pattern);
            let (name, is_prefix) = match name.strip_suffix('*') {
                Some(prefix) => (prefix.to_owned(), true),
                None => (name, false),
            };
            // `kernel.shm*` and `kernel.msg*` are namespaced as a whole.
            let namespace = Namespace::of(&name).ok_or_else(|| SysctlError::NotNamespaced(name.clone()))?;
            if is_prefix { &mut list.prefixes } else { &mut list.names }.push((name, namespace));
        }
        Ok(list)
    }

    /// Refuses the first sysctl of the pod that is not allowed, or whose namespace the pod shares with the node.
    pub(crate) fn check(&self, pod: &Pod) -> Result<(), String> {
        let pod_spec = spec::spec(pod);
        let sysctls = pod_spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
        for sysctl in sysctls {
            let name = normalize(&sysctl.name);
            let exact = self.names.iter().find(|(allowed, _)| *allowed == name);
            let found = exact.or_else(|| self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix)));
            let Some((_, namespace)) = found else {
                return Err(format!("forbidden sysctl: {name:?} not allowlisted"));
            };
            let is_shared = match namespace {
                Namespace::Ipc => pod_spec.host_ipc == Some(true),
                Namespace::Net => pod_spec.host_network == Some(true),
            };
            if is_shared {
                return Err(format!("forbidden sysctl: {name:?} not allowed with host {} enabled", namespace.name()));
            }
        }
        Ok(())
    }
}

/// The name with `.` between its parts. Where the first separator is a slash the two are exchanged, because a part may hold the
/// other: `net/ipv4/conf/eno2.100/rp_filter` is `net.ipv4.conf.eno2/100.rp_filter`.
pub(crate) fn normalize(name: &str) -> String {
    match name.find(['.', '/']).and_then(|at| name.as_bytes().get(at)) {
        Some(b'/') => name
            .chars()
            .map(|c| {
                if c == '.' {
                    '/'
                } else if c == '/' {
                    '.'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

fn is_pattern(pattern: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(is_alphanumeric) && part.chars().all(|c| is_alphanumeric(c) || matches!(c, '-' | '_'))
    };
    let mut parts = pattern.split(['.', '/']);
    let last = parts.next_back().unwrap_or_default();
    let is_last = match last.strip_suffix('*') {
        Some(start) => start.is_empty() || is_part(start),
        None => is_part(last) && last.ends_with(is_alphanumeric),
    };
    pattern.len() <= MAX_LENGTH && is_last && parts.all(|part| is_part(part) && part.ends_with(is_alphanumeric))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(allowed: &[&str], sysctl: &str, host: Option<&str>, want: Option<&str>) {
        let mut spec = json!({
            "containers": [{ "name": "c" }],
            "securityContext": { "sysctls": [{ "name": sysctl, "value": "1" }] },
        });
        if let Some(field) = host {
            spec[field] = json!(true);
        }
        let pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).expect("a pod");
        let allowed: Vec<String> = allowed.iter().map(|pattern| (*pattern).to_owned()).collect();
        let got = Allowlist::with(&allowed).expect("patterns").check(&pod).err();
        assert_eq!(got.as_deref(), want, "{sysctl}");
    }

    #[test]
    fn safe_sysctls_are_allowed_and_others_only_by_flag() {
        check(&[], "net.ipv4.tcp_syncookies", None, None);
        check(&[], "net/ipv4/tcp_syncookies", None, None);
        check(&[], "kernel.shm_rmid_forced", None, None);
        let forbidden = Some("forbidden sysctl: \"kernel.msgmax\" not allowlisted");
        check(&[], "kernel.msgmax", None, forbidden);
        check(&["kernel.msg*"], "kernel.msgmax", None, None);
        check(&["net.*"], "kernel.msgmax", None, forbidden);
        check(&["net.core.somaxconn"], "net.core.somaxconn", None, None);
        check(&["net.core.somaxconn"], "net/core/somaxconn", None, None);
        check(&["net.ipv4.tcp_*"], "net.ipv4.tcp_mem", None, None);
        check(
            &["net.core.somaxconn"],
            "net.core.somaxconn2",
            None,
            Some("forbidden sysctl: \"net.core.somaxconn2\" not allowlisted"),
        );
    }

    #[test]
    fn a_sysctl_of_a_namespace_that_the_node_shares_is_forbidden() {
        check(
            &[],
            "net.ipv4.tcp_syncookies",
            Some("hostNetwork"),
            Some("forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
        );
        check(&[], "net.ipv4.tcp_syncookies", Some("hostIPC"), None);
        check(
            &["kernel.sem"],
            "kernel.sem",
            Some("hostIPC"),
            Some("forbidden sysctl: \"kernel.sem\" not allowed with host IPC enabled"),
        );
    }

    #[test]
    fn sysctls_of_the_whole_node_cannot_be_allowed() {
        for pattern in ["kernel.core_pattern", "vm.*", "kernel.*", "fs.file-max", "*"] {
            let name = pattern.trim_end_matches('*').to_owned();
            assert_eq!(
                Allowlist::with(&[pattern.to_owned()]).err(),
                Some(SysctlError::NotNamespaced(name)),
                "{pattern}"
            );
        }
        for pattern in ["", "net.*.x", "net.-x", "Net.x", "net..x", &"n".repeat(300)] {
            let error = Allowlist::with(&[pattern.to_owned()]).err();
            assert!(matches!(error, Some(SysctlError::Pattern(_))), "{pattern}: {error:?}");
        }
    }
}
