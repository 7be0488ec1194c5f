//! Sandboxes, folders and cgroups of pods that were deleted while no kubelet was looking.

use std::collections::HashSet;
use std::sync::Arc;

use cri::v1::ListPodSandboxRequest;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::context::{Context, log_dir};
use crate::pod::observed::{observe, unless_gone};
use crate::pod::{kill, labels};
use crate::volumes::mounts;

/// Ends in the background everything of pods that are not in `known`.
pub(super) async fn remove(context: &Arc<Context>, known: HashSet<String>) {
    let sandboxes = match context.cri.list_pod_sandbox(ListPodSandboxRequest::default()).await {
        Ok(listed) => listed.items,
        Err(error) => {
            tracing::warn!(%error, "sandboxes could not be listed, so orphans stay");
            return;
        }
    };
    let mut pods: std::collections::HashMap<String, (String, String)> = std::collections::HashMap::new();
    for sandbox in sandboxes {
        let Some(metadata) = sandbox.metadata else { continue };
        // Sandboxes that no kubelet made are somebody else's.
        if sandbox.labels.contains_key(labels::POD_UID) && !known.contains(&metadata.uid) {
            pods.insert(metadata.uid, (metadata.namespace, metadata.name));
        }
    }
    let folders = std::fs::read_dir(context.root_dir.join("pods")).into_iter().flatten().flatten();
    let folders = folders.filter_map(|entry| entry.file_name().into_string().ok());
    for uid in folders.chain(context.cgroups.pods()).filter(|uid| !known.contains(uid)) {
        pods.entry(uid).or_default();
    }
    for (uid, (namespace, name)) in pods {
        let context = context.clone();
        tokio::spawn(async move {
            tracing::info!(uid, namespace, name, "removing what a deleted pod left");
            if let Err(error) = end(&context, &uid, &namespace, &name).await {
                tracing::warn!(uid, %error, "an orphaned pod could not be removed");
            }
        });
    }
}

async fn end(context: &Arc<Context>, uid: &str, namespace: &str, name: &str) -> Result<(), tonic::Status> {
    let observed = observe(context.cri.as_ref(), uid).await?;
    let grace = observed.containers.iter().filter_map(|seen| labels::grace_of(&seen.annotations)).max();
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        uid: Some(uid.to_owned()),
        ..Default::default()
    };
    let pod = Pod { metadata, ..Default::default() };
    kill::pod(context, &pod, &observed, grace).await?;
    for sandbox in &observed.sandboxes {
        let request = cri::v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        unless_gone(context.cri.remove_pod_sandbox(request).await)?;
    }
    let (context, uid) = (context.clone(), uid.to_owned());
    let logs = (!name.is_empty()).then(|| log_dir(&context.pod_logs_dir, namespace, name, &uid));
    let removed = tokio::task::spawn_blocking(move || {
        if let Some(logs) = logs {
            let _ = std::fs::remove_dir_all(logs);
        }
        if let Err(error) = context.cgroups.remove(&uid) {
            tracing::warn!(%error, "an orphaned cgroup could not be removed");
        }
        mounts::remove_all(&context.pod_dir(&uid))
    });
    if let Ok(Err(error)) = removed.await {
        tracing::warn!(%error, "an orphaned pod folder could not be removed");
    }
    Ok(())
}
