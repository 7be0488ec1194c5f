//! News from the runtime: its event stream, or a list every second where it has none.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use client::Drain;
use cri::v1::{ListContainersRequest, ListPodSandboxRequest};
use futures::StreamExt;
use tokio::sync::mpsc;
use tonic::Code;

use super::Input;
use crate::pod::labels;

const LIST_PERIOD: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

pub(super) async fn follow(cri: Arc<dyn cri::Cri>, tell: mpsc::UnboundedSender<Input>, drain: Drain) {
    let lists = drain.run_until_cancelled(stream(cri.clone(), tell.clone())).await;
    if lists.is_some() {
        tracing::info!("the runtime has no events; its containers are listed every second");
        drain.run_until_cancelled(list(cri, tell)).await;
    }
}

/// Returns only when the runtime cannot stream events.
async fn stream(cri: Arc<dyn cri::Cri>, tell: mpsc::UnboundedSender<Input>) {
    let mut retry = RETRY_MIN;
    loop {
        match cri.events().await {
            Ok(mut events) => {
                // Whatever happened before the stream began is seen by looking now.
                let _ = tell.send(Input::RuntimeLost);
                while let Some(event) = events.next().await {
                    let event = match event {
                        Ok(event) => event,
                        // Over gRPC a runtime says what it lacks in the stream.
                        Err(status) if status.code() == Code::Unimplemented => return,
                        Err(status) => {
                            tracing::debug!(%status, "runtime events interrupted");
                            break;
                        }
                    };
                    retry = RETRY_MIN;
                    let uid =
                        event.pod_sandbox_status.and_then(|sandbox| sandbox.metadata).map(|metadata| metadata.uid);
                    let input = uid.map_or(Input::RuntimeLost, Input::Runtime);
                    if tell.send(input).is_err() {
                        return;
                    }
                }
            }
            Err(status) if status.code() == Code::Unimplemented => return,
            Err(status) => tracing::debug!(%status, "runtime events unavailable"),
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// Tells the pods whose containers or sandboxes changed state between two lists.
async fn list(cri: Arc<dyn cri::Cri>, tell: mpsc::UnboundedSender<Input>) {
    let mut known: HashMap<String, (String, i32)> = HashMap::new();
    loop {
        if let Ok(now) = states(cri.as_ref()).await {
            let mut changed: Vec<String> = now
                .iter()
                .filter(|(id, state)| known.get(*id) != Some(*state))
                .map(|(_, (uid, _))| uid.clone())
                .collect();
            changed.extend(known.iter().filter(|(id, _)| !now.contains_key(*id)).map(|(_, (uid, _))| uid.clone()));
            changed.sort();
            changed.dedup();
            for uid in changed {
                if tell.send(Input::Runtime(uid)).is_err() {
                    return;
                }
            }
            known = now;
        }
        tokio::time::sleep(LIST_PERIOD).await;
    }
}

async fn states(cri: &dyn cri::Cri) -> Result<HashMap<String, (String, i32)>, tonic::Status> {
    let uid = |labels: &BTreeMap<String, String>| labels.get(labels::POD_UID).cloned().unwrap_or_default();
    let sandboxes = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await?.items;
    let containers = cri.list_containers(ListContainersRequest::default()).await?.containers;
    let sandboxes = sandboxes.into_iter().map(|s| (s.id, (uid(&s.labels), s.state)));
    Ok(sandboxes.chain(containers.into_iter().map(|c| (c.id, (uid(&c.labels), c.state)))).collect())
}
