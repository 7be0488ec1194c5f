//! Creates and deletes the pods of a controller, and says so in events.

use client::{Object, Recorder, reference};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};

use crate::meta;

const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
const FAILED_CREATE: &str = "FailedCreate";
const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
const FAILED_DELETE: &str = "FailedDelete";

#[derive(Clone)]
pub(crate) struct PodControl {
    client: kube::Client,
    recorder: Recorder,
}

impl PodControl {
    pub(crate) fn new(client: kube::Client, recorder: Recorder) -> Self {
        Self { client, recorder }
    }

    /// A failure is told as an event, except for a namespace that is being deleted: that one needs no telling.
    pub(crate) async fn create<O: Object>(&self, owner: &O, pod: &Pod) -> kube::Result<Pod> {
        let api = Api::<Pod>::namespaced(self.client.clone(), meta::namespace(owner));
        match api.create(&PostParams::default(), pod).await {
            Ok(created) => {
                let message = format!("Created pod: {}", meta::name(&created));
                self.recorder.normal(&reference(owner), SUCCESSFUL_CREATE, message);
                Ok(created)
            }
            Err(error) => {
                if !is_namespace_terminating(&error) {
                    self.recorder.warning(
                        &reference(owner),
                        FAILED_CREATE,
                        format!("Error creating: {}", reason(&error)),
                    );
                }
                Err(error)
            }
        }
    }

    /// A pod that is gone already is as good as deleted.
    pub(crate) async fn delete<O: Object>(&self, owner: &O, pod: &Pod) -> kube::Result<()> {
        let api = Api::<Pod>::namespaced(self.client.clone(), meta::namespace(owner));
        let only_this = kube::api::Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        match api.delete(meta::name(pod), &DeleteParams::default().preconditions(only_this)).await {
            Ok(_) => {
                let message = format!("Deleted pod: {}", meta::name(pod));
                self.recorder.normal(&reference(owner), SUCCESSFUL_DELETE, message);
                Ok(())
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => {
                self.recorder.warning(&reference(owner), FAILED_DELETE, format!("Error deleting: {}", reason(&error)));
                Err(error)
            }
        }
    }
}

/// A pod from a controller's template, named by the server.
pub(crate) fn from_template<O: Object>(owner: &O, template: &PodTemplateSpec) -> Pod {
    let given = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", meta::name(owner))),
            namespace: owner.meta().namespace.clone(),
            labels: given.labels,
            annotations: given.annotations,
            finalizers: given.finalizers,
            owner_references: Some(vec![meta::controller_reference(owner)]),
            ..Default::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Creation in a namespace on its way out fails for ever; retrying helps nobody.
pub(crate) fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating")
}

/// What the server said, without the client's wrapping.
pub(crate) fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
