//! Requests and limits: of containers and pods, and as the kernel takes them.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::{qos, spec};

pub(crate) type List = BTreeMap<String, Text>;

pub(crate) const CPU_PERIOD_US: i64 = 100_000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA_US: i64 = 1000;

pub(crate) fn amount(list: Option<&List>, name: &str) -> Option<Quantity> {
    Quantity::parse(&list?.get(name)?.0).ok()
}

pub(crate) fn request(container: &Container, name: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.requests.as_ref(), name)
}

pub(crate) fn limit(container: &Container, name: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.limits.as_ref(), name)
}

pub(crate) fn shares(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 { MIN_SHARES } else { (milli_cpu * 1024 / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// Zero (no limit) stays zero.
pub(crate) fn quota(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 { 0 } else { (milli_cpu * CPU_PERIOD_US / 1000).max(MIN_QUOTA_US) }
}

pub(crate) fn of_container(pod: &Pod, container: &Container, memory_capacity: i64) -> LinuxContainerResources {
    let own = spec::spec(pod).resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let cpu_limit = limit(container, "cpu").or_else(|| amount(own, "cpu"));
    let cpu_request = request(container, "cpu").or_else(|| limit(container, "cpu"));
    let memory = limit(container, "memory").or_else(|| amount(own, "memory"));
    LinuxContainerResources {
        cpu_shares: shares(cpu_request.map_or(0, |cpu| cpu.milli_value())),
        cpu_quota: quota(cpu_limit.map_or(0, |cpu| cpu.milli_value())),
        cpu_period: CPU_PERIOD_US,
        memory_limit_in_bytes: memory.map_or(0, |memory| memory.value()),
        oom_score_adj: qos::oom_score_adj(pod, container, memory_capacity),
        ..Default::default()
    }
}

/// What the pod's cgroup is given. `None` leaves the kernel's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodLimits {
    pub(crate) cpu_shares: i64,
    pub(crate) cpu_quota: Option<i64>,
    pub(crate) memory: Option<i64>,
    pub(crate) pids: Option<u64>,
}

pub(crate) fn of_pod(pod: &Pod) -> PodLimits {
    let class = qos::class(pod);
    if class == qos::Class::BestEffort {
        return PodLimits { cpu_shares: MIN_SHARES, ..Default::default() };
    }
    let own = spec::spec(pod).resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let declared = |name: &str| {
        let all = spec::init_containers(pod).iter().chain(spec::containers(pod));
        amount(own, name).is_some() || all.into_iter().all(|c| limit(c, name).is_some_and(|q| !q.is_zero()))
    };
    let total = |name: &str| total(pod, name, limit, own);
    PodLimits {
        cpu_shares: shares(pod_request(pod, "cpu").map_or(0, |cpu| cpu.milli_value())),
        cpu_quota: declared("cpu").then(|| quota(total("cpu").map_or(0, |cpu| cpu.milli_value()))),
        memory: declared("memory").then(|| total("memory").map_or(0, |memory| memory.value())),
        pids: None,
    }
}

pub(crate) fn pod_request(pod: &Pod, name: &str) -> Option<Quantity> {
    let own = spec::spec(pod).resources.as_ref().and_then(|resources| resources.requests.as_ref());
    total(pod, name, request, own)
}

pub(crate) fn pod_limit(pod: &Pod, name: &str) -> Option<Quantity> {
    let own = spec::spec(pod).resources.as_ref().and_then(|resources| resources.limits.as_ref());
    total(pod, name, limit, own)
}

/// The most a pod holds at one time: regular containers and sidecars together, or an init container beside earlier sidecars.
fn total(pod: &Pod, name: &str, of: fn(&Container, &str) -> Option<Quantity>, own: Option<&List>) -> Option<Quantity> {
    let overhead = amount(spec::spec(pod).overhead.as_ref(), name);
    let add = |a: Option<Quantity>, b: Option<Quantity>| match (a, b) {
        (Some(a), Some(b)) => Some(a.plus(b)),
        (a, b) => a.or(b),
    };
    if let Some(own) = amount(own, name) {
        return add(Some(own), overhead);
    }
    let mut sum = spec::containers(pod).iter().fold(None, |sum, container| add(sum, of(container, name)));
    let mut sidecars = None;
    let mut peak: Option<Quantity> = None;
    for container in spec::init_containers(pod) {
        let held = of(container, name);
        if spec::is_sidecar(container) {
            sum = add(sum, held);
            sidecars = add(sidecars, held);
        }
        let now = if spec::is_sidecar(container) { sidecars } else { add(sidecars, held) };
        peak = peak.max(now);
    }
    add(sum.max(peak), overhead)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(init: &[(&str, bool)], regular: &[&str], want: Option<i64>) {
        let container = |cpu: &str| json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } });
        let init: Vec<_> = init
            .iter()
            .map(|(cpu, sidecar)| {
                let mut c = container(cpu);
                if *sidecar {
                    c["restartPolicy"] = json!("Always");
                }
                c
            })
            .collect();
        let regular: Vec<_> = regular.iter().map(|cpu| container(cpu)).collect();
        let pod: Pod = serde_json::from_value(
            json!({ "metadata": {}, "spec": { "initContainers": init, "containers": regular } }),
        )
        .expect("a pod");
        assert_eq!(pod_request(&pod, "cpu").map(|cpu| cpu.milli_value()), want);
    }

    #[test]
    fn a_pod_holds_its_peak() {
        check(&[], &["1", "500m"], Some(1500));
        check(&[("2", false)], &["1"], Some(2000));
        check(&[("1", true), ("2", false)], &["1"], Some(3000));
        check(&[("2", false), ("1", true)], &["1"], Some(2000));
    }

    #[test]
    fn cpu_as_the_kernel_counts_it() {
        for (milli, want) in [(0, (2, 0)), (1, (2, 1000)), (100, (102, 10_000)), (1000, (1024, 100_000))] {
            assert_eq!((shares(milli), quota(milli)), want, "{milli}m");
        }
    }
}
