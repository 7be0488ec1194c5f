//! NodeDeclaredFeatureValidator: a pod that runs is changed only in ways its node says it can follow.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::server::ApiServer;

pub(super) struct NodeDeclaredFeatureValidator;

#[async_trait]
impl Plugin for NodeDeclaredFeatureValidator {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let written = attributes.operation == Operation::Update && attributes.is_of("", "pods");
        written && matches!(attributes.subresource, "" | "resize")
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &Object,
    ) -> Result<(), ApiError> {
        let name = pod.text(&["spec", "nodeName"]);
        let Some(old) = attributes.old.filter(|_| !name.is_empty()) else { return Ok(()) };
        let required = required(old, pod);
        if required.is_empty() {
            return Ok(());
        }
        let node = server.cached("", "nodes", name);
        let node = node.ok_or_else(|| attributes.forbidden(format!("node {name:?} not found")))?;
        let missing = missing(&required, &node);
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        let why = format!("pod update requires features {missing} which are not available on node {name:?}");
        Err(attributes.forbidden(why))
    }
}

/// What a node must be able to do for the change, in the order of the names.
fn required(old: &Object, new: &Object) -> Vec<&'static str> {
    let resources = |pod: &Object| pod.at(&["spec", "resources"]).cloned();
    let init =
        |pod: &Object| pod.at(&["spec", "initContainers"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let resized = |(old, new): (Value, Value)| {
        old.get("restartPolicy").and_then(Value::as_str) != Some("Always")
            && old.get("resources") != new.get("resources")
    };
    let mut required = Vec::new();
    if resources(old) != resources(new) {
        required.push("InPlacePodLevelResourcesVerticalScaling");
    }
    if init(old).into_iter().zip(init(new)).any(resized) {
        required.push("InPlacePodVerticalScalingInitContainers");
    }
    required
}

fn missing<'a>(required: &[&'a str], node: &Object) -> Vec<&'a str> {
    let declared = node.at(&["status", "declaredFeatures"]).and_then(Value::as_array);
    let has = |name: &str| declared.is_some_and(|list| list.iter().any(|known| known == name));
    required.iter().copied().filter(|name| !has(name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_change_requires_what_it_is() {
        let pod = |whole: &str, init: &str, sidecar: &str| {
            let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
            object(json!({"spec": {
                "resources": cpu(whole),
                "initContainers": [
                    {"name": "i", "resources": cpu(init)},
                    {"name": "s", "restartPolicy": "Always", "resources": cpu(sidecar)},
                ],
                "containers": [{"name": "c"}],
            }}))
        };
        let old = pod("1", "1", "1");
        for (new, want) in [
            (pod("1", "1", "2"), &[][..]),
            (pod("1", "2", "1"), &["InPlacePodVerticalScalingInitContainers"]),
            (
                pod("2", "2", "1"),
                &["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"],
            ),
        ] {
            assert_eq!(required(&old, &new), want);
        }
    }

    #[test]
    fn what_a_node_does_not_declare_it_lacks() {
        let node = object(json!({"status": {"declaredFeatures": ["A", "C"]}}));
        assert_eq!(missing(&["A", "B"], &node), ["B"]);
        assert_eq!(missing(&["A"], &Object::new()), ["A"]);
    }
}
