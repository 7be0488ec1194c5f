//! The pods of a Job: how they are made, and how they say which index they work on.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, Pod};

use crate::{meta, pod_control};

pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(super) fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed")
}

pub(super) fn index_of(pod: &Pod) -> Option<i32> {
    meta::annotation(pod, INDEX)?.parse().ok()
}

/// Its end is not counted yet.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|known| known == FINALIZER)
}

pub(super) fn pod_for(job: &Job, index: Option<i32>) -> Pod {
    let Some(spec) = &job.spec else { return Pod::default() };
    let mut pod = pod_control::from_template(job, &spec.template);
    pod.metadata.finalizers.get_or_insert_default().push(FINALIZER.into());
    let Some(index) = index else { return pod };
    let (name, text) = (meta::name(job), index.to_string());
    pod.metadata.generate_name = Some(format!("{name}-{index}-"));
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.into(), text.clone());
    pod.metadata.labels.get_or_insert_default().insert(INDEX.into(), text.clone());
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{name}-{index}"));
        let variable = EnvVar { name: "JOB_COMPLETION_INDEX".into(), value: Some(text), ..Default::default() };
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            let env = container.env.get_or_insert_default();
            if !env.iter().any(|known| known.name == variable.name) {
                env.push(variable.clone());
            }
        }
    }
    pod
}
