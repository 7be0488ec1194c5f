//! PodResizeValidator: a pod that runs grows no larger than its node.

use std::sync::Arc;

use api::quantity::Quantity;
use api::quota::{Amounts, add, amounts};
use api::status::{Cause, Details};
use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;

use super::limit_ranger::of_pod;
use super::{Attributes, Operation, Plugin};
use crate::server::ApiServer;

pub(super) struct PodResizeValidator;

#[async_trait]
impl Plugin for PodResizeValidator {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let resize = attributes.is_of("", "pods") && attributes.subresource == "resize";
        resize && attributes.operation == Operation::Update
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &Object,
    ) -> Result<(), ApiError> {
        let name = pod.text(&["spec", "nodeName"]);
        let generation = |pod: &Object| pod.at(&["metadata", "generation"]).cloned();
        if name.is_empty() || attributes.old.and_then(generation) == generation(pod) {
            return Ok(());
        }
        let node = server.cached("", "nodes", name);
        let node = node.ok_or_else(|| attributes.forbidden(format!("node {name:?} not found")))?;
        let refuse = |why: String, reason: &str| {
            let error = attributes.forbidden(why);
            let cause = Cause { reason: reason.into(), message: String::new(), field: String::new() };
            let details = error.details.as_deref().cloned().unwrap_or_default();
            Err(error.with(Details { causes: vec![cause], ..details }))
        };
        let system = node.text(&["metadata", "labels", "kubernetes.io/os"]);
        if !matches!(system, "" | "linux") {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
            return refuse(why, "UnsupportedPlatform");
        }
        match excess(pod, &amounts(&node, &["status", "allocatable"])) {
            Some(why) => refuse(why, "NodeCapacity"),
            None => Ok(()),
        }
    }
}

fn excess(pod: &Object, allocatable: &Amounts) -> Option<String> {
    let mut requests = of_pod(pod, "requests");
    add(&mut requests, &amounts(pod, &["spec", "overhead"]));
    let both = |name: &str| {
        let of = |amounts: &Amounts| amounts.get(name).copied().unwrap_or(Quantity::ZERO);
        (of(&requests), of(allocatable))
    };
    let (cpu, memory) = (both("cpu"), both("memory"));
    let mut told = Vec::new();
    if cpu.0 > cpu.1 {
        told.push(format!("cpu, requested: {}, allocatable: {}", cpu.0.milli_value(), cpu.1.milli_value()));
    }
    if memory.0 > memory.1 {
        told.push(format!("memory, requested: {}, allocatable: {}", memory.0.value(), memory.1.value()));
    }
    (!told.is_empty()).then(|| format!("node didn't have enough allocatable resources: {}", told.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_is_no_larger_than_its_node() {
        let node = json!({"cpu": "2", "memory": "1Gi"});
        let allocatable = amounts(json!({"a": node}).as_object().unwrap(), &["a"]);
        let check = |requests: Value, overhead: Value, want: Option<&str>| {
            let pod = json!({"spec": {"containers": [{"resources": {"requests": requests}}], "overhead": overhead}});
            assert_eq!(excess(pod.as_object().unwrap(), &allocatable).as_deref(), want);
        };
        check(json!({"cpu": "2", "memory": "1Gi"}), json!({}), None);
        check(
            json!({"cpu": "2500m", "memory": "1025Mi"}),
            json!({}),
            Some(
                "node didn't have enough allocatable resources: cpu, requested: 2500, allocatable: 2000; memory, requested: 1074790400, allocatable: 1073741824",
            ),
        );
        check(
            json!({"cpu": "2"}),
            json!({"cpu": "1m"}),
            Some("node didn't have enough allocatable resources: cpu, requested: 2001, allocatable: 2000"),
        );
    }
}
