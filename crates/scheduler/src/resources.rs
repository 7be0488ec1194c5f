//! Amounts of resources: what nodes have and what pods ask for.

use std::collections::BTreeMap;

use api::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

type List = BTreeMap<String, Quantity>;

/// CPU in thousandths, the rest in whole units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    /// Extended resources and huge pages.
    pub(crate) scalar: BTreeMap<String, i64>,
}

/// What scoring assumes for a container that asks for nothing, so that such pods spread as well.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

impl Resources {
    pub(crate) fn of(list: Option<&List>) -> Self {
        let mut all = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            let Ok(amount) = Amount::parse(&quantity.0) else { continue };
            match name.as_str() {
                "cpu" => all.milli_cpu = amount.milli_value(),
                "memory" => all.memory = amount.value(),
                "ephemeral-storage" => all.ephemeral_storage = amount.value(),
                "pods" => (),
                _ => drop(all.scalar.insert(name.clone(), amount.value())),
            }
        }
        all
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, |a, b| a.saturating_add(b));
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.combine(other, |a, b| a.saturating_sub(b));
    }

    fn raise_to(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalar {
            let known = self.scalar.entry(name.clone()).or_insert(0);
            *known = with(*known, *amount);
        }
    }
}

/// What a pod needs at its most demanding moment: its containers together, or any one init container with the sidecars
/// started before it; plus overhead. Requests given for the pod as a whole take the place of the sum.
pub(crate) fn pod_requests(pod: &Pod) -> Resources {
    requests(pod, |container| Resources::of(container.resources.as_ref().and_then(|all| all.requests.as_ref())))
}

/// [`pod_requests`] with a default for what is not asked for, used by scoring only.
pub(crate) fn nonzero_requests(pod: &Pod) -> Resources {
    requests(pod, |container| {
        let asked = container.resources.as_ref().and_then(|all| all.requests.as_ref());
        let mut all = Resources::of(asked);
        let asks = |name: &str| asked.is_some_and(|asked| asked.contains_key(name));
        if !asks("cpu") {
            all.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !asks("memory") {
            all.memory = DEFAULT_MEMORY;
        }
        all
    })
}

fn requests(pod: &Pod, of: impl Fn(&Container) -> Resources) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let mut running = Resources::default();
    spec.containers.iter().for_each(|container| running.add(&of(container)));
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut moment = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&moment);
            sidecars.add(&moment);
            starting.raise_to(&sidecars);
        } else {
            moment.add(&sidecars);
            starting.raise_to(&moment);
        }
    }
    running.raise_to(&starting);
    apply_pod_level(&mut running, spec);
    running.add(&Resources::of(spec.overhead.as_ref()));
    running
}

fn apply_pod_level(total: &mut Resources, spec: &PodSpec) {
    let Some(list) = spec.resources.as_ref().and_then(|all| all.requests.as_ref()) else { return };
    let given = Resources::of(Some(list));
    for name in list.keys() {
        match name.as_str() {
            "cpu" => total.milli_cpu = given.milli_cpu,
            "memory" => total.memory = given.memory,
            scalar => drop(given.scalar.get(scalar).map(|amount| total.scalar.insert(scalar.to_owned(), *amount))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(cpu: &str, sidecar: bool) -> Value {
        let policy = sidecar.then_some("Always");
        json!({ "name": "c", "restartPolicy": policy, "resources": { "requests": { "cpu": cpu } } })
    }

    #[track_caller]
    fn check(spec: Value, milli_cpu: i64) {
        let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        assert_eq!(pod_requests(&pod).milli_cpu, milli_cpu);
    }

    #[test]
    fn a_pod_needs_what_its_most_demanding_moment_needs() {
        check(json!({ "containers": [container("100m", false), container("200m", false)] }), 300);
        check(json!({ "containers": [container("100m", false)], "initContainers": [container("1", false)] }), 1000);
        check(json!({ "containers": [container("100m", false)], "initContainers": [container("50m", true)] }), 150);
        let init = [container("50m", true), container("1", false)];
        check(json!({ "containers": [container("100m", false)], "initContainers": init }), 1050);
        check(json!({ "containers": [container("100m", false)], "overhead": { "cpu": "10m" } }), 110);
        check(json!({ "containers": [container("100m", false)], "resources": { "requests": { "cpu": "2" } } }), 2000);
    }

    #[test]
    fn scoring_assumes_something_for_those_who_ask_for_nothing() {
        let pod: Pod = serde_json::from_value(json!({ "spec": { "containers": [{ "name": "c" }] } })).unwrap();
        let assumed = nonzero_requests(&pod);
        assert_eq!((assumed.milli_cpu, assumed.memory), (DEFAULT_MILLI_CPU, DEFAULT_MEMORY));
        assert_eq!(pod_requests(&pod), Resources::default());
    }
}
