//! What an object uses of a namespace's ResourceQuota, and which quotas look at it. No I/O.
//!
//! Pods, services and claims are measured; of everything else the objects are counted.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::quantity::Quantity;
use crate::{Object, ObjectExt as _};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// If a quota limits one of these, every container must say how much it wants.
const DEMANDED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
/// Counted under their own name, too, from before there was `count/`.
const OLD_COUNTS: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
const BY_CLASS: &str = ".storageclass.storage.k8s.io/";

/// A resource, as quotas see it: `("", "pods")`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted<'a> {
    pub group: &'a str,
    pub plural: &'a str,
}

impl<'a> Counted<'a> {
    /// Events come and go too often to be counted.
    pub fn new(group: &'a str, plural: &'a str) -> Option<Self> {
        (plural != "events").then_some(Self { group, plural })
    }

    fn count_name(self) -> String {
        match self.group {
            "" => format!("count/{}", self.plural),
            group => format!("count/{}.{group}", self.plural),
        }
    }

    /// Whether objects of this resource can use what `name` limits.
    pub fn uses(self, name: &str) -> bool {
        let own = match (self.group, self.plural) {
            ("", "pods") => {
                let bare = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
                let extended = name.strip_prefix("requests.").is_some_and(is_extended);
                name == "pods" || COMPUTE.contains(&bare) || bare.starts_with("hugepages-") || extended
            }
            ("", "services") => ["services", "services.nodeports", "services.loadbalancers"].contains(&name),
            ("", "persistentvolumeclaims") => {
                let bare = name.split_once(BY_CLASS).map_or(name, |(_, bare)| bare);
                ["persistentvolumeclaims", "requests.storage"].contains(&bare)
            }
            ("", plural) => plural == name && OLD_COUNTS.contains(&plural),
            _ => false,
        };
        own || name.strip_prefix("count/").is_some() && name == self.count_name()
    }

    pub fn usage(self, object: &Object) -> Amounts {
        let mut used = Amounts::from([(self.count_name(), ONE)]);
        match (self.group, self.plural) {
            // What has ended needs nothing any more.
            ("", "pods") if !matches!(object.text(&["status", "phase"]), "Succeeded" | "Failed") => {
                used.extend(compute(&pod_sum(object, "requests"), &pod_sum(object, "limits")));
            }
            ("", "services") => used.extend(service(object)),
            ("", "persistentvolumeclaims") => used.extend(claim(object)),
            ("", plural) if OLD_COUNTS.contains(&plural) => drop(used.insert(plural.to_owned(), ONE)),
            _ => (),
        }
        used
    }

    /// Whether all of a quota's scopes hold of an object; what has none of them is outside any scope.
    pub fn is_in_scope(self, quota: &Object, object: &Object) -> bool {
        let plain = quota.at(&["spec", "scopes"]).and_then(Value::as_array).into_iter().flatten();
        let mut plain = plain.filter_map(Value::as_str).map(|scope| (scope, "Exists", BTreeSet::new()));
        let selected = quota.at(&["spec", "scopeSelector", "matchExpressions"]).and_then(Value::as_array);
        let mut selected = selected.into_iter().flatten().filter_map(Value::as_object).map(|requirement| {
            let values = requirement.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.filter_map(Value::as_str).collect();
            (requirement.text(&["scopeName"]), requirement.text(&["operator"]), values)
        });
        let holds = |(scope, operator, values): (&str, &str, BTreeSet<&str>)| match (self.group, self.plural) {
            ("", "pods") => pod_is(object, scope, operator, &values),
            ("", "persistentvolumeclaims") if scope == "VolumeAttributesClass" => {
                chosen(object.text(&["spec", "volumeAttributesClassName"]), operator, &values)
            }
            _ => false,
        };
        plain.all(holds) && selected.all(holds)
    }
}

const ONE: Quantity = Quantity::ONE;

/// The amounts at a place of an object, such as a quota's `status.hard`.
pub fn amounts(object: &Object, path: &[&str]) -> Amounts {
    let all = object.at(path).and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), Quantity::parse(amount.as_str()?).ok()?))).collect()
}

/// What a pod must still say to be counted against these names: `must specify cpu for: a,b`.
pub fn unsaid(pod: &Object, limited: &[&str]) -> Option<String> {
    if pod.at(&["spec", "resources"]).and_then(Value::as_object).is_some_and(|own| !own.is_empty()) {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in containers(pod, "containers").chain(containers(pod, "initContainers")) {
        let said =
            compute(&amounts(container, &["resources", "requests"]), &amounts(container, &["resources", "limits"]));
        for name in limited.iter().filter(|name| DEMANDED.contains(*name) && !said.contains_key(**name)) {
            missing.entry(name).or_default().insert(container.text(&["name"]));
        }
    }
    let told =
        missing.into_iter().map(|(name, who)| format!("{name} for: {}", who.into_iter().collect::<Vec<_>>().join(",")));
    let told = told.collect::<Vec<_>>().join("; ");
    (!told.is_empty()).then(|| format!("must specify {told}"))
}

fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::from([("pods".to_owned(), ONE)]);
    for (name, amount) in requests {
        let bare = COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-");
        if bare {
            used.insert(name.clone(), *amount);
        }
        if bare || is_extended(name) {
            used.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits.iter().filter(|(name, _)| COMPUTE.contains(&name.as_str())) {
        used.insert(format!("limits.{name}"), *amount);
    }
    used
}

fn containers<'a>(pod: &'a Object, list: &str) -> impl Iterator<Item = &'a Object> {
    pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// What a pod's containers need at once: all of them, or an init container beside the sidecars before it.
fn pod_sum(pod: &Object, kind: &str) -> Amounts {
    let mut sum = Amounts::new();
    let mut sidecars = Amounts::new();
    let mut first = Amounts::new();
    for container in containers(pod, "containers") {
        add(&mut sum, &amounts(container, &["resources", kind]));
    }
    for container in containers(pod, "initContainers") {
        let mut own = amounts(container, &["resources", kind]);
        if container.text(&["restartPolicy"]) == "Always" {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            own.clone_from(&sidecars);
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut first, own);
    }
    raise(&mut sum, first);
    // What is said of the whole pod counts instead.
    let whole = amounts(pod, &["spec", "resources", kind]);
    sum.extend(whole.into_iter().filter(|(name, _)| name != "ephemeral-storage"));
    for (name, amount) in amounts(pod, &["spec", "overhead"]) {
        if kind == "requests" || sum.contains_key(&name) {
            add(&mut sum, &Amounts::from([(name, amount)]));
        }
    }
    sum
}

/// Adds each amount to its own.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let known = sum.get(name).copied().unwrap_or(Quantity::ZERO);
        sum.insert(name.clone(), known.plus(*amount));
    }
}

fn raise(most: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let known = most.entry(name).or_insert(amount);
        *known = amount.max(*known);
    }
}

fn service(service: &Object) -> Amounts {
    let ports: Vec<&Value> = service.at(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten().collect();
    let unasked = service.at(&["spec", "allocateLoadBalancerNodePorts"]) == Some(&Value::Bool(false));
    let chosen = |port: &&&Value| port.get("nodePort").and_then(Value::as_u64).is_some_and(|port| port > 0);
    let (balancers, node_ports) = match service.text(&["spec", "type"]) {
        "NodePort" => (0, ports.len()),
        "LoadBalancer" if unasked => (1, ports.iter().filter(chosen).count()),
        "LoadBalancer" => (1, ports.len()),
        _ => (0, 0),
    };
    let counts = [("services", 1), ("services.loadbalancers", balancers), ("services.nodeports", node_ports)];
    counts.into_iter().map(|(name, count)| (name.to_owned(), Quantity::from_count(count))).collect()
}

fn claim(claim: &Object) -> Amounts {
    const ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
    let annotated = claim.at(&["metadata", "annotations"]).and_then(|all| all.get(ANNOTATION)?.as_str());
    let class = annotated.unwrap_or_else(|| claim.text(&["spec", "storageClassName"]));
    let asked = amounts(claim, &["spec", "resources", "requests"]).remove("storage");
    let allocated = amounts(claim, &["status", "allocatedResources"]).remove("storage");
    let mut used = Amounts::from([("persistentvolumeclaims".to_owned(), ONE)]);
    if let Some(asked) = asked {
        used.insert("requests.storage".to_owned(), allocated.map_or(asked, |allocated| allocated.max(asked)));
    }
    if !class.is_empty() {
        let by_class: Amounts =
            used.iter().map(|(name, amount)| (format!("{class}{BY_CLASS}{name}"), *amount)).collect();
        used.extend(by_class);
    }
    used
}

fn pod_is(pod: &Object, scope: &str, operator: &str, values: &BTreeSet<&str>) -> bool {
    let ends = pod.at(&["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0);
    let best_effort = pod.text(&["status", "qosClass"]) == "BestEffort";
    match scope {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        "PriorityClass" => chosen(pod.text(&["spec", "priorityClassName"]), operator, values),
        "CrossNamespacePodAffinity" => looks_into_other_namespaces(pod),
        _ => false,
    }
}

fn chosen(name: &str, operator: &str, values: &BTreeSet<&str>) -> bool {
    match operator {
        "Exists" => !name.is_empty(),
        "DoesNotExist" => name.is_empty(),
        "In" => values.contains(name),
        "NotIn" => !values.contains(name),
        _ => false,
    }
}

fn looks_into_other_namespaces(pod: &Object) -> bool {
    let terms = |kind: &str, list: &str| -> Vec<Value> {
        pod.at(&["spec", "affinity", kind, list]).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    ["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let required = terms(kind, "requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = terms(kind, "preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = preferred.iter().filter_map(|term| term.get("podAffinityTerm"));
        required.iter().chain(preferred).any(|term| {
            let named = term.get("namespaces").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
            named || term.get("namespaceSelector").is_some()
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_use_what_they_ask_for() {
        let pod = json!({"spec": {
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m", "x.y/z": "2"}, "limits": {"cpu": "1"}}}],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "i", "resources": {"requests": {"cpu": "800m", "memory": "1Gi"}}},
            ],
            "overhead": {"cpu": "10m"},
        }});
        usage(
            "pods",
            pod.clone(),
            "count/pods=1 cpu=910m limits.cpu=1010m memory=1Gi pods=1 requests.cpu=910m requests.memory=1Gi requests.x.y/z=2",
        );
        let mut ended = pod;
        ended["status"] = json!({"phase": "Succeeded"});
        usage("pods", ended, "count/pods=1");
        usage("configmaps", json!({}), "configmaps=1 count/configmaps=1");
        usage("podtemplates", json!({}), "count/podtemplates=1");
        let ports = json!([{"port": 1, "nodePort": 30000}, {"port": 2}]);
        let service = |kind: &str, asked: bool| json!({"spec": {"type": kind, "ports": ports, "allocateLoadBalancerNodePorts": asked}});
        usage(
            "services",
            service("NodePort", true),
            "count/services=1 services=1 services.loadbalancers=0 services.nodeports=2",
        );
        usage(
            "services",
            service("LoadBalancer", false),
            "count/services=1 services=1 services.loadbalancers=1 services.nodeports=1",
        );
        let claim = json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}});
        usage(
            "persistentvolumeclaims",
            claim,
            "count/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
             gold.storageclass.storage.k8s.io/requests.storage=1Gi persistentvolumeclaims=1 requests.storage=1Gi",
        );
    }

    #[track_caller]
    fn usage(plural: &str, object: Value, want: &str) {
        let counted = Counted::new("", plural).unwrap();
        let used = counted.usage(object.as_object().unwrap());
        let told: Vec<String> = used.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(told.join(" "), want);
        assert!(used.keys().all(|name| counted.uses(name)), "{told:?}");
    }

    #[test]
    fn scopes_choose_pods() {
        let best = json!({"status": {"qosClass": "BestEffort"}, "spec": {"priorityClassName": "high"}});
        let ends = json!({"status": {"qosClass": "Burstable"}, "spec": {"activeDeadlineSeconds": 0}});
        scope(&best, json!({"scopes": ["BestEffort", "NotTerminating"]}), true);
        scope(&ends, json!({"scopes": ["BestEffort"]}), false);
        scope(&ends, json!({"scopes": ["Terminating", "NotBestEffort"]}), true);
        let class = |operator: &str| {
            json!({"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": ["high"]},
            ]}})
        };
        scope(&best, class("In"), true);
        scope(&best, class("NotIn"), false);
        scope(&ends, class("NotIn"), true);
        scope(&ends, class("Exists"), false);
    }

    #[track_caller]
    fn scope(pod: &Value, spec: Value, want: bool) {
        let quota = json!({ "spec": spec });
        let (quota, pod) = (quota.as_object().unwrap(), pod.as_object().unwrap());
        assert_eq!(Counted::new("", "pods").unwrap().is_in_scope(quota, pod), want, "{spec}");
        let unscoped = Counted::new("", "secrets").unwrap();
        assert!(!unscoped.is_in_scope(quota, pod), "{spec}");
    }

    #[test]
    fn containers_must_say_what_is_limited() {
        let pod =
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a", "resources": {"limits": {"cpu": "1"}}}]}});
        let said = unsaid(pod.as_object().unwrap(), &["limits.cpu", "memory", "pods"]);
        assert_eq!(said.as_deref(), Some("must specify limits.cpu for: b; memory for: a,b"));
        assert_eq!(unsaid(pod.as_object().unwrap(), &["pods", "requests.storage"]), None);
    }
}
