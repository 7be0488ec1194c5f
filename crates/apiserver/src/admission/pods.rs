//! Priority and DefaultTolerationSeconds.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use super::Attributes;
use crate::server::ApiServer;

/// The class of pods that name none; there is one at most.
fn default_class(server: &ApiServer) -> Option<Object> {
    let classes = server.registry.find("scheduling.k8s.io", "v1", "priorityclasses")?.cache.as_ref()?;
    let snapshot = classes.snapshot();
    let mut all = snapshot.objects.values().map(|stored| stored.decode());
    all.find(|class| class.get("globalDefault") == Some(&Value::Bool(true)))
}

pub(super) fn one_default(server: &ApiServer, attributes: &Attributes<'_>, class: &Object) -> Result<(), ApiError> {
    let wanted = class.get("globalDefault") == Some(&Value::Bool(true));
    match default_class(server).filter(|known| wanted && known.name() != attributes.name) {
        Some(known) => Err(attributes.forbidden(format!(
            "PriorityClass {} is already marked as default. Only one default can exist",
            known.name()
        ))),
        None => Ok(()),
    }
}

/// Resolves a pod's priority class into its number.
pub(super) fn priority(server: &Arc<ApiServer>, attributes: &Attributes<'_>, pod: &mut Object) -> Result<(), ApiError> {
    let classes = server.registry.find("scheduling.k8s.io", "v1", "priorityclasses").and_then(|s| s.cache.as_ref());
    let wanted = pod.text(&["spec", "priorityClassName"]).to_owned();
    let class = if wanted.is_empty() {
        default_class(server)
    } else {
        let found = classes.and_then(|cache| cache.get(&wanted)).map(|stored| stored.decode());
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
    let spec = pod.at_mut(&["spec"]);
    spec.insert("priority".into(), value.into());
    spec.entry("preemptionPolicy").or_insert_with(|| policy.into());
    if let (true, Some(class)) = (wanted.is_empty(), class) {
        spec.insert("priorityClassName".into(), class.name().into());
    }
    Ok(())
}

/// A pod stays on a node that is not ready or unreachable for five minutes, unless it says otherwise.
pub(super) fn default_toleration_seconds(pod: &mut Object) {
    let spec = pod.at_mut(&["spec"]);
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(list) = tolerations.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list.iter().any(|toleration| {
            let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or_default();
            (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
        });
        if !tolerated {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
}
