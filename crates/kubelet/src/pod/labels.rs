//! What the kubelet writes on sandboxes and containers, so that a later kubelet recognises them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::spec;

pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub(crate) const HASH: &str = "io.kubernetes.container.hash";
pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub(crate) const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub(crate) const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";

pub(crate) fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    let own = pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    own.chain(identity(pod)).collect()
}

pub(crate) fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    identity(pod).into_iter().chain([(CONTAINER_NAME.to_owned(), container.name.clone())]).collect()
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.to_owned(), spec::name(pod).to_owned()),
        (POD_NAMESPACE.to_owned(), spec::namespace(pod).to_owned()),
        (POD_UID.to_owned(), spec::uid(pod).to_owned()),
    ]
}

pub(crate) fn container_annotations(pod: &Pod, container: &Container, restart_count: u32) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([
        (HASH.to_owned(), hash(container)),
        (RESTART_COUNT.to_owned(), restart_count.to_string()),
        (TERMINATION_PATH.to_owned(), container.termination_message_path.clone().unwrap_or_default()),
        (TERMINATION_POLICY.to_owned(), container.termination_message_policy.clone().unwrap_or_default()),
    ]);
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        all.insert(DELETION_GRACE.to_owned(), grace.to_string());
    }
    if let Some(grace) = spec::spec(pod).termination_grace_period_seconds {
        all.insert(TERMINATION_GRACE.to_owned(), grace.to_string());
    }
    let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(Ok(text)) = pre_stop.map(serde_json::to_string) {
        all.insert(PRE_STOP.to_owned(), text);
    }
    if let Some(Ok(text)) = container.ports.as_ref().filter(|ports| !ports.is_empty()).map(serde_json::to_string) {
        all.insert(PORTS.to_owned(), text);
    }
    all
}

/// Changes when the container must be replaced: only its image can change in a live pod.
pub(crate) fn hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let text = serde_json::json!({ "image": image, "name": container.name }).to_string();
    let fnv = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{fnv:x}")
}

/// The grace a container of an unknown pod was promised.
pub(crate) fn grace_of(annotations: &BTreeMap<String, String>) -> Option<i64> {
    [DELETION_GRACE, TERMINATION_GRACE].iter().find_map(|name| annotations.get(*name)?.parse().ok())
}

/// Enough of a container's spec to stop it properly when its pod is no longer known.
pub(crate) fn restore(name: &str, annotations: &BTreeMap<String, String>) -> Container {
    let pre_stop = annotations.get(PRE_STOP).and_then(|text| serde_json::from_str::<LifecycleHandler>(text).ok());
    let ports = annotations.get(PORTS).and_then(|text| serde_json::from_str(text).ok());
    let lifecycle = pre_stop
        .map(|pre_stop| k8s_openapi::api::core::v1::Lifecycle { pre_stop: Some(pre_stop), ..Default::default() });
    Container { name: name.to_owned(), lifecycle, ports, ..Default::default() }
}
