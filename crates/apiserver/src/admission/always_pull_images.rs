//! AlwaysPullImages: who runs an image has shown at its registry that they may.

use std::sync::Arc;

use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::server::ApiServer;

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

pub(super) struct AlwaysPullImages;

fn images(pod: &Object) -> Vec<&str> {
    let lists = LISTS.iter().filter_map(|list| pod.at(&["spec", list])?.as_array()).flatten();
    lists.filter_map(|container| container.get("image")?.as_str()).collect()
}

fn has_new_images(pod: &Object, old: Option<&Object>) -> bool {
    old.is_none_or(|old| images(pod).iter().any(|image| !images(old).contains(image)))
}

#[async_trait]
impl Plugin for AlwaysPullImages {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && attributes.is("", "pods")
    }

    async fn admit(&self, _: &Arc<ApiServer>, attributes: &Attributes<'_>, pod: &mut Object) -> Result<(), ApiError> {
        if !has_new_images(pod, attributes.old) {
            return Ok(());
        }
        let spec = pod.at_mut(&["spec"]);
        for list in LISTS {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for container in containers.filter_map(Value::as_object_mut) {
                container.insert("imagePullPolicy".into(), "Always".into());
            }
        }
        let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten();
        for image in volumes.filter_map(|volume| volume.get_mut("image")?.as_object_mut()) {
            image.insert("pullPolicy".into(), "Always".into());
        }
        Ok(())
    }

    async fn validate(&self, _: &Arc<ApiServer>, attributes: &Attributes<'_>, pod: &Object) -> Result<(), ApiError> {
        if !has_new_images(pod, attributes.old) {
            return Ok(());
        }
        let items = |field: &str| pod.at(&["spec", field]).and_then(Value::as_array).cloned().unwrap_or_default();
        let mut errors = Vec::new();
        let mut check = |path: String, policy: Option<&Value>| {
            let policy = policy.and_then(Value::as_str).unwrap_or_default();
            if policy != "Always" {
                errors.push(attributes.forbidden(FieldError::not_supported(path, policy, &["Always"])).message);
            }
        };
        for list in LISTS {
            for (index, container) in items(list).iter().enumerate() {
                check(format!("spec.{list}[{index}].imagePullPolicy"), container.get("imagePullPolicy"));
            }
        }
        for (index, volume) in items("volumes").iter().enumerate() {
            if let Some(image) = volume.get("image") {
                check(format!("spec.volumes[{index}].image.pullPolicy"), image.get("pullPolicy"));
            }
        }
        match errors.as_slice() {
            [] => Ok(()),
            [one] => Err(ApiError::new(403, "Forbidden", one.clone())),
            several => Err(ApiError::internal(format!("[{}]", several.join(", ")))),
        }
    }
}
