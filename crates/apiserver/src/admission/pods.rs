//! Priority and DefaultTolerationSeconds.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::server::{ApiServer, store_error};

pub(super) struct Priority;

#[async_trait]
impl Plugin for Priority {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let written = attributes.operation != Operation::Delete;
        written && (attributes.is("", "pods") || attributes.is("scheduling.k8s.io", "priorityclasses"))
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &mut Object,
    ) -> Result<(), ApiError> {
        match (attributes.is("", "pods"), attributes.old) {
            (true, None) => priority(server, attributes, pod),
            (true, Some(old)) => {
                keep(pod, old);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        class: &Object,
    ) -> Result<(), ApiError> {
        if attributes.is("", "pods") || class.get("globalDefault") != Some(&Value::Bool(true)) {
            return Ok(());
        }
        server.feed.current().await.map_err(store_error)?;
        match default_class(server).filter(|known| known.name() != attributes.name) {
            Some(known) => Err(attributes.forbidden(format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                known.name()
            ))),
            None => Ok(()),
        }
    }
}

/// The class of pods that name none. Where a race left several, the lowest.
fn default_class(server: &ApiServer) -> Option<Object> {
    let classes = server.cached_all("scheduling.k8s.io", "priorityclasses", "");
    let defaults = classes.into_iter().filter(|class| class.get("globalDefault") == Some(&Value::Bool(true)));
    defaults.min_by_key(|class| class.get("value").and_then(Value::as_i64))
}

/// What was resolved at creation stays, though the client does not repeat it.
fn keep(pod: &mut Object, old: &Object) {
    for field in ["priority", "preemptionPolicy"] {
        if let (None, Some(value)) = (pod.at(&["spec", field]), old.at(&["spec", field])) {
            pod.at_mut(&["spec"]).insert(field.into(), value.clone());
        }
    }
}

/// Resolves a pod's priority class into its number.
fn priority(server: &ApiServer, attributes: &Attributes<'_>, pod: &mut Object) -> Result<(), ApiError> {
    let wanted = pod.text(&["spec", "priorityClassName"]).to_owned();
    let class = if wanted.is_empty() {
        default_class(server)
    } else {
        let found = server.cached("scheduling.k8s.io", "priorityclasses", &wanted);
        Some(found.ok_or_else(|| attributes.forbidden(format!("no PriorityClass with name {wanted} was found")))?)
    };
    let value = class.as_ref().and_then(|class| class.get("value")).and_then(Value::as_i64).unwrap_or(0);
    let asked = pod.at(&["spec", "priority"]).and_then(Value::as_i64);
    if let Some(asked) = asked.filter(|asked| *asked != value) {
        let why = format!(
            "the integer value of priority ({asked}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(attributes.forbidden(why));
    }
    let policy = class.as_ref().map_or("", |class| class.text(&["preemptionPolicy"]));
    let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy }.to_owned();
    let asked = pod.at(&["spec", "preemptionPolicy"]).and_then(Value::as_str);
    if let Some(asked) = asked.filter(|asked| *asked != policy) {
        let why = format!(
            "the string value of PreemptionPolicy ({asked}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(attributes.forbidden(why));
    }
    let spec = pod.at_mut(&["spec"]);
    spec.insert("priority".into(), value.into());
    spec.insert("preemptionPolicy".into(), policy.into());
    if let (true, Some(class)) = (wanted.is_empty(), class) {
        spec.insert("priorityClassName".into(), class.name().into());
    }
    Ok(())
}

/// A pod stays on a node that is not ready or unreachable for a while, unless it says otherwise.
pub(super) struct DefaultTolerationSeconds;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && attributes.is("", "pods")
    }

    async fn admit(&self, server: &Arc<ApiServer>, _: &Attributes<'_>, pod: &mut Object) -> Result<(), ApiError> {
        default_toleration_seconds(pod, server.config.toleration_seconds);
        Ok(())
    }
}

fn default_toleration_seconds(pod: &mut Object, [not_ready, unreachable]: [i64; 2]) {
    let spec = pod.at_mut(&["spec"]);
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(list) = tolerations.as_array_mut() else { return };
    for (key, seconds) in [("node.kubernetes.io/not-ready", not_ready), ("node.kubernetes.io/unreachable", unreachable)]
    {
        let tolerated = list.iter().any(|toleration| {
            let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or_default();
            (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
        });
        if !tolerated {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}));
        }
    }
}
