//! The rules of what a pod and its containers may do.

use std::sync::atomic::{AtomicBool, Ordering};

use api::field::FieldError;
use api::validation::is_subdomain;
use serde_json::Value;

use super::super::check::At;
use super::super::volume_sources::descending;
use super::USER_IDS;

/// Whether this process lets containers be privileged: as upstream, one answer for all that it validates.
static MAY_BE_PRIVILEGED: AtomicBool = AtomicBool::new(true);
/// How long the path of a profile may be.
pub(in super::super) const PROFILE_MAX: usize = 4095;
const IPC_SYSCTLS: [&str; 10] = [
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

/// Says whether containers may be privileged, for all API servers of this process; they may if nobody says.
pub fn allow_privileged(allowed: bool) {
    MAY_BE_PRIVILEGED.store(allowed, Ordering::Relaxed);
}

pub(super) fn may_be_privileged() -> bool {
    MAY_BE_PRIVILEGED.load(Ordering::Relaxed)
}

pub(super) fn of_pod(spec: &At<'_>) {
    let at = spec.field("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        at.field(field).between(USER_IDS.0, USER_IDS.1);
    }
    at.each("supplementalGroups").iter().for_each(|group| group.between(USER_IDS.0, USER_IDS.1));
    if spec.field("shareProcessNamespace").is_true() && spec.field("hostPID").is_true() {
        let place = at.path().child("shareProcessNamespace");
        at.complain(FieldError::invalid(&place, true, "ShareProcessNamespace and HostPID cannot both be enabled"));
    }
    sysctls(spec, &at.field("sysctls"));
    at.field("fsGroupChangePolicy").one_of_if_set(&["Always", "OnRootMismatch"]);
    seccomp(&at.field("seccompProfile"));
    windows(&at.field("windowsOptions"));
    apparmor(&at.field("appArmorProfile"));
    at.field("supplementalGroupsPolicy").one_of_if_set(&["Merge", "Strict"]);
    at.field("seLinuxChangePolicy").one_of_if_set(&["Recursive"]);
}

pub(super) fn of_container(at: &At<'_>, spec: &At<'_>) {
    if !at.exists() {
        return;
    }
    if at.field("privileged").is_true() && !may_be_privileged() {
        at.field("privileged").forbidden("disallowed by cluster policy");
    }
    for field in ["runAsUser", "runAsGroup"] {
        at.field(field).between(USER_IDS.0, USER_IDS.1);
    }
    let mount = at.field("procMount");
    mount.one_of_if_set(&["Default", "Unmasked"]);
    if mount.text() == "Unmasked" && spec.field("hostUsers").value() != &Value::Bool(false) {
        mount.invalid("`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(&at.field("seccompProfile"));
    if at.field("allowPrivilegeEscalation").value() == &Value::Bool(false) {
        let tell = |detail: &str| at.invalid_as("SecurityContext", detail);
        if at.field("privileged").is_true() {
            tell("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        for name in at.at(&["capabilities", "add"]).items() {
            if name.text() == "CAP_SYS_ADMIN" {
                tell("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
            }
        }
    }
    windows(&at.field("windowsOptions"));
    apparmor(&at.field("appArmorProfile"));
}

fn sysctls(spec: &At<'_>, list: &At<'_>) {
    let mut seen = Vec::new();
    for sysctl in list.items() {
        let name = sysctl.field("name");
        if name.is_empty() {
            name.required("");
        } else if !is_sysctl(name.text()) {
            name.invalid("must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$");
        } else if seen.contains(&name.text()) {
            name.duplicate();
        }
        // What belongs to the host is not a pod's to set.
        match namespace_of(name.text()) {
            Some(host) if spec.field(host).is_true() => {
                name.invalid(format!("may not be specified when '{host}' is true"));
            }
            _ => (),
        }
        seen.push(name.text());
    }
}

/// The field that gives a pod the namespace of its host that a sysctl is of.
fn namespace_of(name: &str) -> Option<&'static str> {
    // A name that begins with a slash-separated part has its dots and slashes swapped.
    let swapped = |c: char| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    let name = match name.find(['.', '/']).and_then(|at| name.get(at..)) {
        Some(rest) if rest.starts_with('/') => name.chars().map(swapped).collect(),
        _ => name.to_owned(),
    };
    let name = name.split('*').next().unwrap_or_default();
    match name {
        _ if IPC_SYSCTLS.contains(&name) || name.starts_with("fs.mqueue.") => Some("hostIPC"),
        _ if name.starts_with("net.") => Some("hostNetwork"),
        _ => None,
    }
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
        ("Localhost", true) => descending(&profile),
        (_, true) => {
            let detail = "can only be set when seccomp type is Localhost";
            at.called(profile.path().clone()).invalid_as("SeccompProfile", detail);
        }
        _ => (),
    }
}

fn apparmor(at: &At<'_>) {
    const NEEDED: &str = "must be set when AppArmor type is Localhost";
    if !at.exists() {
        return;
    }
    let (kind, profile) = (at.field("type"), at.field("localhostProfile"));
    match kind.text() {
        "Localhost" => {
            if profile.text().trim() != profile.text() {
                profile.invalid("must not be padded with whitespace");
            } else if profile.is_empty() {
                profile.required(NEEDED);
            }
            if profile.text().len() > PROFILE_MAX {
                profile.complain(FieldError::too_long(profile.path(), PROFILE_MAX));
            }
        }
        "RuntimeDefault" | "Unconfined" if profile.exists() => {
            profile.invalid("can only be set when AppArmor type is Localhost");
        }
        "RuntimeDefault" | "Unconfined" => (),
        "" => kind.required("type is required when appArmorProfile is set"),
        _ => kind.one_of(&["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn windows(at: &At<'_>) {
    const CREDENTIAL_MAX_KIB: usize = 64;
    let (name, credential) = (at.field("gmsaCredentialSpecName"), at.field("gmsaCredentialSpec"));
    if name.exists() {
        name.named(is_subdomain);
    }
    if credential.exists() && credential.is_empty() {
        credential.invalid("gmsaCredentialSpec cannot be an empty string");
    } else if credential.text().len() > CREDENTIAL_MAX_KIB * 1024 {
        credential.invalid(format!("gmsaCredentialSpec size must be under {CREDENTIAL_MAX_KIB} KiB"));
    }
    let user = at.field("runAsUserName");
    if user.exists() {
        is_windows_user(user.text()).into_iter().for_each(|detail| user.invalid(detail));
    }
}

/// `user`, or `domain\user`.
fn is_windows_user(text: &str) -> Vec<&'static str> {
    if text.is_empty() {
        return vec!["runAsUserName cannot be an empty string"];
    }
    if text.bytes().any(|b| b.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters"];
    }
    let (domain, user) = match text.split('\\').collect::<Vec<_>>().as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec!["runAsUserName cannot contain more than one backslash"],
    };
    let mut wrong = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= 256) {
        wrong.push("runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_windows_domain(domain)) {
        wrong.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        wrong.push("runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        wrong.push("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        wrong.push("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong.push("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    wrong
}

fn is_net_bios(domain: &str) -> bool {
    let forbidden = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];
    (1..=15).contains(&domain.chars().count()) && !domain.contains(forbidden) && !domain.starts_with('.')
}

fn is_windows_domain(domain: &str) -> bool {
    domain.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_belongs_to_what_it_is_a_part_of() {
        assert_eq!(namespace_of("net.ipv4.tcp_syncookies"), Some("hostNetwork"));
        assert_eq!(namespace_of("net/ipv4/tcp_syncookies"), Some("hostNetwork"));
        assert_eq!(namespace_of("kernel.shm*"), Some("hostIPC"));
        assert_eq!(namespace_of("fs.mqueue.msg_max"), Some("hostIPC"));
        assert_eq!(namespace_of("vm.swappiness"), None);
    }

    #[test]
    fn users_of_windows_are_named_as_it_names_them() {
        assert!(["ContainerUser", "CORP\\me", "corp.example\\a b"].iter().all(|user| is_windows_user(user).is_empty()));
        assert!(!["", "a\\b\\c", "\\a", "a:b", "..", "a\nb"].iter().any(|user| is_windows_user(user).is_empty()));
    }
}
