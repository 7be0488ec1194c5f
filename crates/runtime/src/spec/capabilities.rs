//! Which capabilities a container's processes hold.

use std::collections::HashSet;

use cri::v1::LinuxContainerSecurityContext;
use oci_spec::runtime::{Capability, LinuxCapabilities};

/// What every runtime grants without being asked.
const DEFAULT: [Capability; 14] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fsetid,
    Capability::Fowner,
    Capability::Mknod,
    Capability::NetRaw,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setfcap,
    Capability::Setpcap,
    Capability::NetBindService,
    Capability::SysChroot,
    Capability::Kill,
    Capability::AuditWrite,
];

/// By number, as the kernel's masks count them.
#[rustfmt::skip]
const ALL: [Capability; 41] = [
    Capability::Chown, Capability::DacOverride, Capability::DacReadSearch, Capability::Fowner, Capability::Fsetid,
    Capability::Kill, Capability::Setgid, Capability::Setuid, Capability::Setpcap, Capability::LinuxImmutable,
    Capability::NetBindService, Capability::NetBroadcast, Capability::NetAdmin, Capability::NetRaw, Capability::IpcLock,
    Capability::IpcOwner, Capability::SysModule, Capability::SysRawio, Capability::SysChroot, Capability::SysPtrace,
    Capability::SysPacct, Capability::SysAdmin, Capability::SysBoot, Capability::SysNice, Capability::SysResource,
    Capability::SysTime, Capability::SysTtyConfig, Capability::Mknod, Capability::Lease, Capability::AuditWrite,
    Capability::AuditControl, Capability::Setfcap, Capability::MacOverride, Capability::MacAdmin, Capability::Syslog,
    Capability::WakeAlarm, Capability::BlockSuspend, Capability::AuditRead, Capability::Perfmon, Capability::Bpf,
    Capability::CheckpointRestore,
];

pub(super) fn resolve(security: &LinuxContainerSecurityContext) -> LinuxCapabilities {
    let ours = held_by_us();
    let wanted = wanted(security);
    let granted: HashSet<Capability> = wanted.intersection(&ours).copied().collect();
    let ambient = security.capabilities.iter().flat_map(|c| &c.add_ambient_capabilities);
    let ambient: HashSet<Capability> = ambient.filter_map(|name| parse(name)).filter(|c| granted.contains(c)).collect();
    let mut capabilities = LinuxCapabilities::default();
    capabilities.set_bounding(Some(granted.clone())).set_effective(Some(granted.clone())).set_permitted(Some(granted));
    capabilities.set_inheritable(Some(ambient.clone())).set_ambient(Some(ambient));
    capabilities
}

fn wanted(security: &LinuxContainerSecurityContext) -> HashSet<Capability> {
    if security.privileged {
        return ALL.into_iter().collect();
    }
    let mut set: HashSet<Capability> = DEFAULT.into_iter().collect();
    let Some(change) = &security.capabilities else { return set };
    if change.add_capabilities.iter().any(|name| name.eq_ignore_ascii_case("ALL")) {
        set = ALL.into_iter().collect();
    }
    if change.drop_capabilities.iter().any(|name| name.eq_ignore_ascii_case("ALL")) {
        set.clear();
    }
    set.extend(change.add_capabilities.iter().filter_map(|name| parse(name)));
    for dropped in change.drop_capabilities.iter().filter_map(|name| parse(name)) {
        set.remove(&dropped);
    }
    set
}

/// Both `NET_ADMIN` and `CAP_NET_ADMIN` are written in the wild.
fn parse(name: &str) -> Option<Capability> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    serde_json::from_value(serde_json::Value::String(format!("CAP_{bare}"))).ok()
}

/// Nobody can grant what he does not hold: even root may lack some, in a virtual machine or a container.
fn held_by_us() -> HashSet<Capability> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let mask = mask.unwrap_or(u64::MAX);
    ALL.into_iter().zip(0u32..).filter(|(_, bit)| mask >> bit & 1 == 1).map(|(capability, _)| capability).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_and_drops_apply_in_the_published_order() {
        check(&[], &[], 14, None);
        check(&["NET_ADMIN"], &[], 15, Some(Capability::NetAdmin));
        check(&["CAP_SYS_TIME"], &["ALL"], 1, Some(Capability::SysTime));
        check(&["ALL"], &["NET_RAW"], 40, Some(Capability::SysAdmin));
        check(&[], &["KILL", "chown"], 12, None);
    }

    #[track_caller]
    fn check(add: &[&str], drop: &[&str], count: usize, holds: Option<Capability>) {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let change =
            cri::v1::Capability { add_capabilities: owned(add), drop_capabilities: owned(drop), ..Default::default() };
        let set = wanted(&LinuxContainerSecurityContext { capabilities: Some(change), ..Default::default() });
        assert_eq!(set.len(), count, "{add:?} {drop:?}");
        assert!(holds.is_none_or(|capability| set.contains(&capability)));
    }
}
