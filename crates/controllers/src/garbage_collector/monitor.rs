//! Follows the metadata of every object of one resource into the graph.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use client::{Event, Key, Target, WorkQueue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use kube::api::DynamicObject;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;

use super::graph::{Graph, Item};
use crate::discovery::Served;

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
        let path = DynamicObject::url_path(&self.served.resource, None);
        let target = Target { path, metadata_only: true, ..Target::default() };
        let mut listed = HashSet::new();
        client::follow(&self.client, &target, &mut |event| {
            let look = match event {
                Event::Begin => {
                    listed.clear();
                    Vec::new()
                }
                Event::Listed(object) => read(object).map_or_else(Vec::new, |meta| {
                    listed.extend(meta.uid.clone());
                    self.set(&meta)
                }),
                Event::End => {
                    synced.send_replace(true);
                    self.graph.lock().retain(self.index, &std::mem::take(&mut listed))
                }
                Event::Applied(object) => read(object).map_or_else(Vec::new, |meta| self.set(&meta)),
                Event::Deleted(object) => {
                    let uid = read(object).and_then(|meta| meta.uid).unwrap_or_default();
                    self.graph.lock().remove(&uid)
                }
            };
            look.into_iter().for_each(|uid| self.queue.add(Key::new("", uid)));
            ControlFlow::Continue(())
        })
        .await;
    }

    fn set(&self, meta: &ObjectMeta) -> Vec<String> {
        let uid = meta.uid.as_deref().unwrap_or_default();
        self.graph.lock().set(uid, Item::new(self.index, meta))
    }
}

#[derive(Deserialize)]
struct Partial {
    metadata: ObjectMeta,
}

fn read(object: &str) -> Option<ObjectMeta> {
    let read = serde_json::from_str(object);
    let read = read.inspect_err(|error| tracing::error!(%error, object, "metadata that cannot be read"));
    read.ok().map(|partial: Partial| partial.metadata)
}
