//! Follows the metadata of every object of one resource into the graph.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use client::{Key, WorkQueue};
use futures::StreamExt;
use kube::api::{Api, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::graph::{Graph, Item};
use crate::discovery::Served;

/// Between attempts to list or watch a resource that does not answer.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(30);

pub(super) struct Monitor {
    pub(super) client: kube::Client,
    pub(super) index: usize,
    pub(super) served: Served,
    pub(super) graph: Arc<Mutex<Graph>>,
    pub(super) queue: WorkQueue,
}

impl Monitor {
    /// `synced` turns true when the first list is in the graph.
    pub(super) async fn run(self, synced: watch::Sender<bool>) {
        let mut retry = RETRY_MIN;
        loop {
            let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(self.client.clone(), &self.served.resource);
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            let mut listed = HashSet::new();
            while let Some(event) = events.next().await {
                let look = match event {
                    Ok(watcher::Event::Init) => {
                        listed.clear();
                        continue;
                    }
                    Ok(watcher::Event::InitApply(object)) => {
                        listed.extend(object.metadata.uid.clone());
                        self.set(&object)
                    }
                    Ok(watcher::Event::InitDone) => {
                        synced.send_replace(true);
                        self.graph.lock().retain(self.index, &std::mem::take(&mut listed))
                    }
                    Ok(watcher::Event::Apply(object)) => self.set(&object),
                    Ok(watcher::Event::Delete(object)) => {
                        self.graph.lock().remove(object.metadata.uid.as_deref().unwrap_or_default())
                    }
                    Err(error) => {
                        let resource = self.served.resource.plural.as_str();
                        tracing::debug!(resource, %error, "list and watch interrupted");
                        tokio::time::sleep(retry).await;
                        retry = (retry * 2).min(RETRY_MAX);
                        break;
                    }
                };
                retry = RETRY_MIN;
                look.into_iter().for_each(|uid| self.queue.add(Key::new("", uid)));
            }
        }
    }

    fn set(&self, object: &PartialObjectMeta<DynamicObject>) -> Vec<String> {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        self.graph.lock().set(uid, Item::new(self.index, &object.metadata))
    }
}
