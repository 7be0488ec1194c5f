//! Writes a pod's status to the API: the latest one only, as a patch of what changed, retried until it is there.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::conditions::{DISRUPTION_TARGET, OWNED};
use crate::spec;

const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The worker's end: never waits for the API.
pub(crate) struct StatusWriter {
    wanted: watch::Sender<Option<PodStatus>>,
    written: watch::Receiver<Option<PodStatus>>,
    _task: AbortOnDropHandle<()>,
}

impl StatusWriter {
    pub(crate) fn new(client: kube::Client, pod: &Arc<Pod>) -> Self {
        let (wanted, changes) = watch::channel(None);
        let (done, written) = watch::channel(None);
        let api = Api::namespaced(client, spec::namespace(pod));
        let task = Task { api, pod: pod.clone(), known: spec::status(pod).clone() };
        Self { wanted, written, _task: AbortOnDropHandle::new(tokio::spawn(task.run(changes, done))) }
    }

    pub(crate) fn write(&self, status: PodStatus) {
        self.wanted.send_if_modified(|wanted| {
            let changed = wanted.as_ref() != Some(&status);
            if changed {
                *wanted = Some(status);
            }
            changed
        });
    }

    /// Resolves when the newest status is on the server, or the pod is not.
    pub(crate) async fn flushed(&mut self) {
        let wanted = self.wanted.borrow().clone();
        // The task only ends with this object.
        let _ = self.written.wait_for(|written| *written == wanted).await;
    }
}

struct Task {
    api: Api<Pod>,
    pod: Arc<Pod>,
    /// What the server has, as far as we know.
    known: PodStatus,
}

impl Task {
    async fn run(mut self, mut changes: watch::Receiver<Option<PodStatus>>, done: watch::Sender<Option<PodStatus>>) {
        let mut retry = RETRY_MIN;
        while changes.changed().await.is_ok() {
            loop {
                let Some(wanted) = changes.borrow_and_update().clone() else { break };
                match self.write(&wanted).await {
                    Ok(()) => {
                        done.send_replace(Some(wanted));
                        retry = RETRY_MIN;
                        break;
                    }
                    Err(error) => {
                        tracing::debug!(pod = %spec::display(&self.pod), %error, "status could not be written");
                        tokio::time::sleep(retry).await;
                        retry = (retry * 2).min(RETRY_MAX);
                    }
                }
            }
        }
    }

    async fn write(&mut self, wanted: &PodStatus) -> Result<(), kube::Error> {
        let Some(status) = diff(&self.known, wanted) else { return Ok(()) };
        let mirrored = spec::is_static(&self.pod);
        let patch = match mirrored {
            // A static pod's status is its mirror's, whose uid is the API server's choice.
            true => json!({ "status": status }),
            false => json!({ "metadata": { "uid": spec::uid(&self.pod) }, "status": status }),
        };
        let name = spec::name(&self.pod);
        match self.api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(pod) => {
                self.known = pod.status.unwrap_or_default();
                Ok(())
            }
            Err(kube::Error::Api(error)) if error.is_not_found() && !mirrored => {
                self.known = wanted.clone();
                Ok(())
            }
            Err(kube::Error::Api(error)) if error.code == 409 => match self.api.get_opt(name).await? {
                Some(pod) if pod.metadata.uid == self.pod.metadata.uid => {
                    self.known = pod.status.unwrap_or_default();
                    Err(kube::Error::Api(error))
                }
                // Gone, or another pod of the same name: nobody reads this status any more.
                _ => {
                    self.known = wanted.clone();
                    Ok(())
                }
            },
            Err(error) => Err(error),
        }
    }
}

/// A strategic merge patch from `old` to `new`: changed fields, and of the conditions only those that are ours and changed.
fn diff(old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let fields = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let (old, new) = (fields(old), fields(new));
    let mut patch = Map::new();
    for (field, value) in &new {
        let known = old.get(field);
        if known == Some(value) {
            continue;
        }
        let value = match field.as_str() {
            "conditions" => match changed_conditions(known, value) {
                Some(changed) => changed,
                None => continue,
            },
            // Merged by address, so that old addresses would stay.
            "podIPs" | "hostIPs" => replaced(value),
            _ => value.clone(),
        };
        patch.insert(field.clone(), value);
    }
    let foreign = ["resize", "nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"];
    for field in old.keys().filter(|field| !new.contains_key(*field) && !foreign.contains(&field.as_str())) {
        patch.insert(field.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn changed_conditions(old: Option<&Value>, new: &Value) -> Option<Value> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let old = list(old);
    let is_ours = |type_: &str| OWNED.contains(&type_) || type_ == DISRUPTION_TARGET;
    let ours = |condition: &Value| condition.get("type").and_then(Value::as_str).is_some_and(is_ours);
    let named = |condition: &Value| old.iter().find(|known| known.get("type") == condition.get("type")).cloned();
    let mut changed = Vec::new();
    for condition in list(Some(new)).into_iter().filter(|condition| ours(condition)) {
        let known = named(&condition);
        if known.as_ref() == Some(&condition) {
            continue;
        }
        let (mut condition, known) = (condition, known.unwrap_or_default());
        if let Some(fields) = condition.as_object_mut() {
            for field in ["reason", "message"].into_iter().filter(|field| known.get(field).is_some()) {
                fields.entry(field).or_insert(Value::Null);
            }
        }
        changed.push(condition);
    }
    (!changed.is_empty()).then_some(Value::Array(changed))
}

fn replaced(value: &Value) -> Value {
    let items = value.as_array().cloned().unwrap_or_default();
    Value::Array(std::iter::once(json!({ "$patch": "replace" })).chain(items).collect())
}

/// Removes the object for good: grace zero, and only if it is still this pod.
pub(crate) async fn delete(client: &kube::Client, pod: &Pod) {
    let api: Api<Pod> = Api::namespaced(client.clone(), spec::namespace(pod));
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
        ..Default::default()
    };
    let mut retry = RETRY_MIN;
    loop {
        match api.delete(spec::name(pod), &params).await {
            Ok(_) => return,
            Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => return,
            Err(error) => {
                tracing::debug!(pod = %spec::display(pod), %error, "pod could not be deleted");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(old: Value, new: Value, want: Value) {
        let parse = |value| serde_json::from_value::<PodStatus>(value).expect("a status");
        assert_eq!(diff(&parse(old), &parse(new)).unwrap_or(Value::Null), want);
    }

    #[test]
    fn only_changes_are_sent() {
        check(json!({ "phase": "Running" }), json!({ "phase": "Running" }), Value::Null);
        check(
            json!({ "phase": "Pending", "reason": "x" }),
            json!({ "phase": "Running" }),
            json!({ "phase": "Running", "reason": null }),
        );
        check(
            json!({ "podIPs": [{ "ip": "10.0.0.1" }] }),
            json!({ "podIPs": [{ "ip": "10.0.0.2" }] }),
            json!({ "podIPs": [{ "$patch": "replace" }, { "ip": "10.0.0.2" }] }),
        );
    }

    #[test]
    fn conditions_of_others_are_left_alone() {
        let gate = json!({ "type": "gate", "status": "True" });
        check(
            json!({ "conditions": [gate, { "type": "Ready", "status": "False", "reason": "r" }] }),
            json!({ "conditions": [{ "type": "gate", "status": "False" }, { "type": "Ready", "status": "True" }] }),
            json!({ "conditions": [{ "type": "Ready", "status": "True", "reason": null }] }),
        );
    }
}
