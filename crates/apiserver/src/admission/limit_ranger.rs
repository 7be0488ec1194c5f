//! LimitRanger: what containers ask for is completed from, and held to, the LimitRanges of their namespace.

use std::sync::Arc;

use api::quantity::Quantity;
use api::quota::{Amounts, add, amounts};
use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::server::ApiServer;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Beyond this a quantity cannot be told in thousandths.
const MAX_MILLI_VALUE: i64 = i64::MAX / 1000;

pub(super) struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        match (attributes.operation, attributes.subresource) {
            (Operation::Create, "") => attributes.is_of("", "pods") || attributes.is_of("", "persistentvolumeclaims"),
            (Operation::Update, "") => attributes.is_of("", "persistentvolumeclaims"),
            (Operation::Update, "resize") => attributes.is_of("", "pods"),
            _ => false,
        }
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &mut Object,
    ) -> Result<(), ApiError> {
        if attributes.is_of("", "pods") {
            ranges(server, attributes).iter().for_each(|range| set_defaults(range, object));
        }
        Ok(())
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &Object,
    ) -> Result<(), ApiError> {
        for range in ranges(server, attributes) {
            let errors: Vec<String> = match attributes.is_of("", "pods") {
                true => limits(&range).flat_map(|limit| pod_errors(limit, object)).collect(),
                false => limits(&range).flat_map(|limit| claim_errors(limit, object)).collect(),
            };
            match errors.as_slice() {
                [] => (),
                [one] => return Err(attributes.forbidden(one)),
                several => return Err(attributes.forbidden(format!("[{}]", several.join(", ")))),
            }
        }
        Ok(())
    }
}

fn ranges(server: &ApiServer, attributes: &Attributes<'_>) -> Vec<Object> {
    // What is going must not be kept from going.
    if attributes.old.is_some_and(|old| old.is_terminating()) {
        return Vec::new();
    }
    server.cached_all("", "limitranges", attributes.namespace)
}

fn limits(range: &Object) -> impl Iterator<Item = &Object> {
    range.at(&["spec", "limits"]).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn set_defaults(range: &Object, pod: &mut Object) {
    let collect = |field: &str| {
        let mut all = Object::new();
        for limit in limits(range).filter(|limit| limit.text(&["type"]) == "Container") {
            all.extend(limit.get(field).and_then(Value::as_object).cloned().unwrap_or_default());
        }
        all
    };
    let defaults = [("requests", "request", collect("defaultRequest")), ("limits", "limit", collect("default"))];
    let mut said = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod.at_mut(&["spec"]).get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            for (part, word, values) in &defaults {
                let known = container.at(&["resources", part]).and_then(Value::as_object);
                let missing: Vec<_> =
                    values.iter().filter(|(name, _)| known.is_none_or(|own| !own.contains_key(*name))).collect();
                if missing.is_empty() {
                    continue;
                }
                let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
                said.push(format!("{} {word} for {what} {}", names.join(", "), container.text(&["name"])));
                let own = container.at_mut(&["resources", part]);
                own.extend(missing.into_iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
    }
    if !said.is_empty() {
        let text = format!("LimitRanger plugin set: {}", said.join("; "));
        pod.at_mut(&["metadata", "annotations"]).insert(ANNOTATION.into(), json!(text));
    }
}

fn claim_errors(limit: &Object, claim: &Object) -> Vec<String> {
    const TYPE: &str = "PersistentVolumeClaim";
    if limit.text(&["type"]) != TYPE {
        return Vec::new();
    }
    let asked =
        Asked { kind: TYPE, requests: amounts(claim, &["spec", "resources", "requests"]), limits: Amounts::new() };
    let least = amounts(limit, &["min"]).into_iter().filter_map(|(name, min)| asked.min(&name, min));
    let most = amounts(limit, &["max"]).into_iter().filter_map(|(name, max)| asked.max_request(&name, max));
    least.chain(most).collect()
}

fn pod_errors(limit: &Object, pod: &Object) -> Vec<String> {
    let asked: Vec<Asked> = match limit.text(&["type"]) {
        "Container" => {
            containers(pod, "containers").chain(containers(pod, "initContainers")).map(Asked::container).collect()
        }
        "Pod" => vec![Asked { kind: "Pod", requests: of_pod(pod, "requests"), limits: of_pod(pod, "limits") }],
        _ => Vec::new(),
    };
    let check = |asked: &Asked| {
        let least = amounts(limit, &["min"]).into_iter().filter_map(|(name, min)| asked.min(&name, min));
        let most = amounts(limit, &["max"]).into_iter().filter_map(|(name, max)| asked.max(&name, max));
        let ratios = amounts(limit, &["maxLimitRequestRatio"]).into_iter();
        least.chain(most).chain(ratios.filter_map(|(name, ratio)| asked.ratio(&name, ratio))).collect::<Vec<_>>()
    };
    asked.iter().flat_map(check).collect()
}

fn containers<'a>(pod: &'a Object, list: &str) -> impl Iterator<Item = &'a Object> + use<'a> {
    pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// What all containers need at once; those that only begin, one after the other, do not add up.
pub(super) fn of_pod(pod: &Object, part: &str) -> Amounts {
    let own = |container: &Object| amounts(container, &["resources", part]);
    let mut sum = Amounts::new();
    containers(pod, "containers").for_each(|container| add(&mut sum, &own(container)));
    let (mut beside, mut highest) = (Amounts::new(), Amounts::new());
    for container in containers(pod, "initContainers") {
        let mut now = own(container);
        if container.text(&["restartPolicy"]) == "Always" {
            add(&mut sum, &now);
            add(&mut beside, &now);
            now = beside.clone();
        } else {
            add(&mut now, &beside);
        }
        raise(&mut highest, now);
    }
    raise(&mut sum, highest);
    let whole = amounts(pod, &["spec", "resources", part]);
    sum.extend(whole.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")));
    sum
}

fn raise(list: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let known = list.entry(name).or_insert(amount);
        *known = (*known).max(amount);
    }
}

struct Asked {
    kind: &'static str,
    requests: Amounts,
    limits: Amounts,
}

impl Asked {
    fn container(container: &Object) -> Self {
        let part = |part: &str| amounts(container, &["resources", part]);
        Self { kind: "Container", requests: part("requests"), limits: part("limits") }
    }

    fn min(&self, name: &str, min: Quantity) -> Option<String> {
        let told = format!("minimum {name} usage per {} is {min}", self.kind);
        match (self.requests.get(name), self.limits.get(name)) {
            (None, _) => Some(format!("{told}.  No request is specified")),
            (Some(request), _) if *request < min => Some(format!("{told}, but request is {request}")),
            (_, Some(limit)) if *limit < min => Some(format!("{told}, but limit is {limit}")),
            _ => None,
        }
    }

    fn max(&self, name: &str, max: Quantity) -> Option<String> {
        let told = format!("maximum {name} usage per {} is {max}", self.kind);
        match (self.limits.get(name), self.requests.get(name)) {
            (None, _) => Some(format!("{told}.  No limit is specified")),
            (Some(limit), _) if *limit > max => Some(format!("{told}, but limit is {limit}")),
            (_, Some(request)) if *request > max => Some(format!("{told}, but request is {request}")),
            _ => None,
        }
    }

    fn max_request(&self, name: &str, max: Quantity) -> Option<String> {
        let told = format!("maximum {name} usage per {} is {max}", self.kind);
        match self.requests.get(name) {
            None => Some(format!("{told}.  No request is specified")),
            Some(request) if *request > max => Some(format!("{told}, but request is {request}")),
            Some(_) => None,
        }
    }

    fn ratio(&self, name: &str, most: Quantity) -> Option<String> {
        let told = format!("{name} max limit to request ratio per {} is {most}, but", self.kind);
        let value = |amounts: &Amounts| amounts.get(name).copied().filter(|amount| !amount.is_zero());
        let Some(request) = value(&self.requests) else {
            return Some(format!("{told} no request is specified or request is 0"));
        };
        let Some(limit) = value(&self.limits) else {
            return Some(format!("{told} no limit is specified or limit is 0"));
        };
        let number = |amount: Quantity| match amount.value() <= MAX_MILLI_VALUE {
            true => amount.milli_value() as f64 / 1000.0,
            false => amount.value() as f64,
        };
        let ratio = number(limit) / number(request);
        (ratio > number(most)).then(|| format!("{told} provided ratio is {ratio:.6}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().cloned().unwrap()
    }

    #[track_caller]
    fn check(limit: Value, spec: Value, want: &[&str]) {
        assert_eq!(pod_errors(&object(limit), &object(json!({"spec": spec}))), want);
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn containers_and_pods_are_held_to_the_limits() {
        let limit = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}});
        let one = |requests, limits| json!({"containers": [container(requests, limits)]});
        check(limit.clone(), one(json!({"cpu": "500m"}), json!({"cpu": "1"})), &[]);
        check(
            limit.clone(),
            one(json!({"cpu": "50m"}), json!({"cpu": "2"})),
            &[
                "minimum cpu usage per Container is 100m, but request is 50m",
                "maximum cpu usage per Container is 1, but limit is 2",
                "cpu max limit to request ratio per Container is 2, but provided ratio is 40.000000",
            ],
        );
        check(
            limit,
            one(json!({}), json!({})),
            &[
                "minimum cpu usage per Container is 100m.  No request is specified",
                "maximum cpu usage per Container is 1.  No limit is specified",
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ],
        );
        let pod = json!({"type": "Pod", "max": {"memory": "1Gi"}});
        let half = || container(json!({}), json!({"memory": "512Mi"}));
        check(pod.clone(), json!({"containers": [half(), half()]}), &[]);
        check(
            pod.clone(),
            json!({"containers": [half(), half(), half()]}),
            &["maximum memory usage per Pod is 1Gi, but limit is 1536Mi"],
        );
        check(pod, json!({"containers": [half()], "initContainers": [half(), half()]}), &[]);
    }

    #[test]
    fn what_is_not_said_is_filled_in_and_told() {
        let range = object(
            json!({"spec": {"limits": [{"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}]}}),
        );
        let mut pod =
            object(json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"memory": "2Gi"}}}]}}));
        set_defaults(&range, &mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "100m"}})
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu limit for container a"
        );
    }
}
