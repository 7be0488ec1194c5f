//! Quality of service: a pod's class, and what the kernel's memory killer is told about its containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::resources::{self, amount};
use crate::spec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Class {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// What the API server decided, or the same rule for pods it has not seen.
pub(crate) fn class(pod: &Pod) -> Class {
    match spec::status(pod).qos_class.as_deref() {
        Some("Guaranteed") => return Class::Guaranteed,
        Some("Burstable") => return Class::Burstable,
        Some("BestEffort") => return Class::BestEffort,
        _ => (),
    }
    let all = spec::init_containers(pod).iter().chain(spec::containers(pod)).map(|c| c.resources.clone());
    let own = spec::spec(pod).resources.clone();
    let all: Vec<ResourceRequirements> = match own {
        Some(own) if own.requests.is_some() || own.limits.is_some() => vec![own],
        _ => all.map(Option::unwrap_or_default).collect(),
    };
    compute(&all)
}

fn compute(all: &[ResourceRequirements]) -> Class {
    let value =
        |of: &Option<BTreeMap<String, Quantity>>, name: &str| amount(of.as_ref(), name).map(|q| q.milli_value());
    let asks = |r: &ResourceRequirements| {
        ["cpu", "memory"]
            .iter()
            .any(|name| [&r.requests, &r.limits].iter().any(|of| value(of, name).is_some_and(|value| value > 0)))
    };
    let guaranteed = |r: &ResourceRequirements| {
        ["cpu", "memory"].iter().all(|name| {
            let limit = value(&r.limits, name).filter(|limit| *limit > 0);
            limit.is_some() && value(&r.requests, name).is_none_or(|request| Some(request) == limit)
        })
    };
    if !all.iter().any(asks) {
        Class::BestEffort
    } else if all.iter().all(guaranteed) {
        Class::Guaranteed
    } else {
        Class::Burstable
    }
}

const GUARANTEED_ADJ: i64 = -997;
const BEST_EFFORT_ADJ: i64 = 1000;
const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Lower is killed later. A burstable container is protected in proportion to the memory it asked for.
pub(crate) fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    if spec::spec(pod).priority.is_some_and(|priority| priority >= NODE_CRITICAL_PRIORITY) || spec::is_static(pod) {
        return GUARANTEED_ADJ;
    }
    match class(pod) {
        Class::Guaranteed => return GUARANTEED_ADJ,
        Class::BestEffort => return BEST_EFFORT_ADJ,
        Class::Burstable => (),
    }
    let request = |container: &Container| resources::request(container, "memory").map_or(0, |q| q.value());
    let adjust = |bytes: i64| 1000 - 1000_i64.saturating_mul(bytes) / memory_capacity.max(1);
    let mut adj = adjust(request(container));
    if spec::is_sidecar(container) {
        adj = adj.min(adjust(spec::containers(pod).iter().map(request).min().unwrap_or(0)));
    }
    adj.clamp(1000 + GUARANTEED_ADJ, BEST_EFFORT_ADJ - 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Requests and limits as `cpu/memory`, `-` for none.
    #[track_caller]
    fn check(requests: &str, limits: &str, want: (Class, i64)) {
        let parse = |text: &str| -> BTreeMap<String, String> {
            let (cpu, memory) = text.split_once('/').expect("a slash");
            let all = [("cpu", cpu), ("memory", memory)];
            all.into_iter().filter(|(_, v)| *v != "-").map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
        };
        let container = json!({ "name": "c", "resources": { "requests": parse(requests), "limits": parse(limits) } });
        let pod: Pod =
            serde_json::from_value(json!({ "metadata": {}, "spec": { "containers": [container] } })).expect("a pod");
        let first = spec::containers(&pod).first().expect("a container");
        assert_eq!((class(&pod), oom_score_adj(&pod, first, 1 << 30)), want, "{requests} {limits}");
    }

    #[test]
    fn classes_and_their_scores() {
        check("-/-", "-/-", (Class::BestEffort, 1000));
        check("1/1Gi", "1/1Gi", (Class::Guaranteed, -997));
        check("-/-", "1/1Gi", (Class::Guaranteed, -997));
        check("1/512Mi", "1/1Gi", (Class::Burstable, 500));
        check("100m/-", "-/-", (Class::Burstable, 999));
        check("-/1Gi", "-/-", (Class::Burstable, 3));
    }
}
