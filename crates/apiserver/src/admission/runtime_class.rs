//! RuntimeClass: a pod pays for its runtime's overhead and goes where that runtime is.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::Value;

use super::{Attributes, Plugin, tolerations, unaskable};
use crate::server::{ApiServer, store_error};

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(super) struct RuntimeClass;

#[async_trait]
impl Plugin for RuntimeClass {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.creates("", "pods")
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &mut Object,
    ) -> Result<(), ApiError> {
        match class_of(server, attributes, pod).await? {
            Some(class) => complete(&class, pod).map_err(|why| attributes.forbidden(why)),
            None => Ok(()),
        }
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &Object,
    ) -> Result<(), ApiError> {
        let class = class_of(server, attributes, pod).await?;
        let wanted = class.as_ref().and_then(|class| class.at(&["overhead", "podFixed"]));
        match (wanted, pod.at(&["spec", "overhead"])) {
            (Some(wanted), own) if own != Some(wanted) => Err(attributes.forbidden(MISMATCH)),
            (None, Some(_)) => Err(attributes
                .forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")),
            _ => Ok(()),
        }
    }
}

async fn class_of(server: &ApiServer, attributes: &Attributes<'_>, pod: &Object) -> Result<Option<Object>, ApiError> {
    let Some(name) = pod.at(&["spec", "runtimeClassName"]).and_then(Value::as_str) else { return Ok(None) };
    if let Some(why) = unaskable(name) {
        return Err(ApiError::new(500, "", why));
    }
    let find = || server.cached("node.k8s.io", "runtimeclasses", name);
    if let Some(class) = find() {
        return Ok(Some(class));
    }
    server.feed.current().await.map_err(store_error)?;
    match find() {
        Some(class) => Ok(Some(class)),
        None => Err(attributes.forbidden(format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

fn complete(class: &Object, pod: &mut Object) -> Result<(), String> {
    if let Some(overhead) = class.at(&["overhead", "podFixed"]) {
        let own = pod.at(&["spec", "overhead"]).filter(|own| own.as_object().is_some_and(|own| !own.is_empty()));
        if own.is_some_and(|own| own != overhead) {
            return Err(MISMATCH.to_owned());
        }
        pod.at_mut(&["spec"]).insert("overhead".into(), overhead.clone());
    }
    let Some(scheduling) = class.get("scheduling").and_then(Value::as_object) else { return Ok(()) };
    for (key, value) in scheduling.get("nodeSelector").and_then(Value::as_object).into_iter().flatten() {
        let own = pod.at_mut(&["spec", "nodeSelector"]);
        if let Some(known) = own.get(key).filter(|known| *known != value) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                text(value),
                text(known)
            ));
        }
        own.insert(key.clone(), value.clone());
    }
    let list = |object: &Object, path: &[&str]| object.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let more = list(scheduling, &["tolerations"]);
    if !more.is_empty() {
        let merged = tolerations::merge(&list(pod, &["spec", "tolerations"]), &more);
        pod.at_mut(&["spec"]).insert("tolerations".into(), merged.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_completes_a_pod_or_contradicts_it() {
        let class = json!({"overhead": {"podFixed": {"cpu": "1"}}, "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "t", "operator": "Exists"}]}});
        let class = class.as_object().unwrap();
        let check = |spec: Value, want: Result<Value, &str>| {
            let mut pod = json!({"spec": spec}).as_object().cloned().unwrap();
            let done = complete(class, &mut pod).map(|()| pod["spec"].clone());
            assert_eq!(done, want.map_err(ToOwned::to_owned));
        };
        let whole = json!({"overhead": {"cpu": "1"}, "nodeSelector": {"a": "b"}, "tolerations": [{"key": "t", "operator": "Exists"}]});
        check(json!({}), Ok(whole));
        check(json!({"overhead": {"cpu": "2"}}), Err(MISMATCH));
        check(
            json!({"nodeSelector": {"a": "c"}}),
            Err("conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = c"),
        );
    }
}
