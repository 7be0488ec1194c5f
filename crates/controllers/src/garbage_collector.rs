//! Deletes what lost its last owner, and makes owners wait for, or let go of, their dependents when the user asked for that.
//!
//! [`graph::Graph`] knows who owns whom for every resource the server has; [`GarbageCollector::reconcile`] acts on one object. Before
//! anything is deleted, an owner that the graph does not show is looked for at the server, by its uid.

mod graph;
mod monitor;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use client::{Key, Next, ReconcileError, Reconciler, WorkQueue, run_reconciler};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::discovery::verbs;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::graph::{Graph, Item, ORPHAN, Owner, Owners, Plan, Propagation};
use self::monitor::Monitor;
use crate::controller::Context;
use crate::discovery::{self, Served};

const WORKERS: usize = 20;

/// Its keys are uids.
struct GarbageCollector {
    client: kube::Client,
    served: Vec<Served>,
    graph: Arc<Mutex<Graph>>,
    queue: WorkQueue,
}

/// Discovers, watches, and collects until drained. Discovery is not on the way of other controllers' start.
pub(crate) fn start(context: &Context) -> BoxFuture<'static, ()> {
    let (client, drain) = (context.client.clone(), context.drain.clone());
    async move {
        let Some(served) = drain.run_until_cancelled(discover(&client)).await else { return };
        let (graph, queue) = (Arc::new(Mutex::new(Graph::default())), WorkQueue::new());
        let mut monitors = JoinSet::new();
        let mut waiting = Vec::new();
        for (index, served) in served.iter().enumerate() {
            let (synced, seen) = watch::channel(false);
            let (graph, queue) = (graph.clone(), queue.clone());
            let monitor = Monitor { client: client.clone(), index, served: served.clone(), graph, queue };
            monitors.spawn(monitor.run(synced));
            waiting.push(seen);
        }
        // A foreground deletion must not end before all dependents are known.
        let all_listed = async {
            for seen in &mut waiting {
                let _closed = seen.wait_for(|synced| *synced).await.is_err();
            }
        };
        if drain.run_until_cancelled(all_listed).await.is_some() {
            let collector = Arc::new(GarbageCollector { client, served, graph, queue: queue.clone() });
            run_reconciler(collector, queue, WORKERS, drain).await;
        }
        monitors.shutdown().await;
    }
    .boxed()
}

/// Events are owned by nobody and too many to watch.
async fn discover(client: &kube::Client) -> Vec<Served> {
    let mut retry = std::time::Duration::from_millis(50);
    loop {
        match discovery::deletable(client).await {
            Ok(discovery::Discovered { mut served, .. }) => {
                served.retain(|served| served.supports(&[verbs::WATCH]) && served.resource.kind != "Event");
                return served;
            }
            Err(error) => {
                tracing::warn!(%error, "resources not discovered, trying again");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(std::time::Duration::from_secs(30));
            }
        }
    }
}

#[async_trait]
impl Reconciler for GarbageCollector {
    const NAME: &'static str = "garbage-collector";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let uid = key.name.as_str();
        let (item, plan) = {
            let graph = self.graph.lock();
            let Some(item) = graph.get(uid) else { return Ok(Next::OnChange) };
            (item.clone(), graph.plan(uid))
        };
        match plan {
            Plan::Nothing => (),
            Plan::RemoveFinalizer(finalizer) => self.remove_finalizer(uid, &item, finalizer).await?,
            Plan::DeleteDependentsFirst(dependents) => {
                dependents.into_iter().for_each(|dependent| self.queue.add(Key::new("", dependent)));
            }
            Plan::OrphanDependents(dependents) => {
                for dependent in dependents {
                    self.drop_owners(&dependent, &HashSet::from([uid.to_owned()])).await?;
                }
                self.remove_finalizer(uid, &item, ORPHAN).await?;
            }
            Plan::CheckOwners(owners) => self.check_owners(uid, &item, owners).await?,
        }
        Ok(Next::OnChange)
    }
}

impl GarbageCollector {
    fn api(&self, item: &Item) -> Option<Api<DynamicObject>> {
        let served = self.served.get(item.resource)?;
        Some(match &item.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &served.resource),
            None => Api::all_with(self.client.clone(), &served.resource),
        })
    }

    async fn check_owners(&self, uid: &str, item: &Item, owners: Owners) -> Result<(), ReconcileError> {
        let mut gone = HashSet::new();
        let mut solid = owners.solid;
        for owner in &owners.unknown {
            if self.exists(item, owner).await? {
                solid = true;
            } else {
                gone.insert(owner.uid.clone());
            }
        }
        if solid {
            // Some owner stays: the object lives on, without those that are gone or wait for it.
            gone.extend(owners.waiting);
            return if gone.is_empty() { Ok(()) } else { self.drop_owners(uid, &gone).await };
        }
        let waiting = !owners.waiting.is_empty();
        let (propagation, circular) = {
            let graph = self.graph.lock();
            (graph.propagation(uid, waiting), waiting && graph.is_in_circle(uid))
        };
        if circular {
            self.unblock(uid, item).await?;
        }
        self.delete(uid, item, propagation).await
    }

    /// An owner of a kind the server does not serve may exist where we cannot look: its dependents are left alone.
    async fn exists(&self, item: &Item, owner: &Owner) -> Result<bool, ReconcileError> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let of_kind = |served: &&Served| served.resource.kind == owner.kind && served.resource.group == group;
        let Some(served) = self.served.iter().find(of_kind) else { return Ok(true) };
        let api = match (&item.namespace, served.namespaced) {
            (Some(namespace), true) => Api::namespaced_with(self.client.clone(), namespace, &served.resource),
            // A cluster-scoped object cannot be owned by a namespaced one.
            (None, true) => return Ok(false),
            (_, false) => Api::<DynamicObject>::all_with(self.client.clone(), &served.resource),
        };
        let live = api.get_metadata_opt(&owner.name).await?;
        Ok(live.is_some_and(|live| live.metadata.uid.as_deref() == Some(&owner.uid)))
    }

    async fn delete(&self, uid: &str, item: &Item, propagation: Propagation) -> Result<(), ReconcileError> {
        let Some(api) = self.api(item) else { return Ok(()) };
        let Some(live) = self.live(&api, uid, item).await? else { return Ok(()) };
        if !has_only(&live, &item.owners) {
            return Ok(());
        }
        let params = match propagation {
            Propagation::Background => DeleteParams::background(),
            Propagation::Foreground => DeleteParams::foreground(),
            Propagation::Orphan => DeleteParams::orphan(),
        };
        let only_this = Preconditions { uid: Some(uid.to_owned()), resource_version: live.resource_version };
        match api.delete(&item.name, &params.preconditions(only_this)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    async fn live(
        &self,
        api: &Api<DynamicObject>,
        uid: &str,
        item: &Item,
    ) -> Result<Option<ObjectMeta>, ReconcileError> {
        let live = api.get_metadata_opt(&item.name).await?.map(|live| live.metadata);
        Ok(live.filter(|live| live.uid.as_deref() == Some(uid)))
    }

    /// Changes the metadata of the live object; a conflict brings another pass.
    async fn change(
        &self,
        uid: &str,
        item: &Item,
        change: impl FnOnce(&ObjectMeta) -> Option<serde_json::Value>,
    ) -> Result<(), ReconcileError> {
        let Some(api) = self.api(item) else { return Ok(()) };
        let Some(live) = self.live(&api, uid, item).await? else { return Ok(()) };
        let Some(mut metadata) = change(&live) else { return Ok(()) };
        if let Some(fields) = metadata.as_object_mut() {
            fields.insert("resourceVersion".into(), json!(live.resource_version));
            fields.insert("uid".into(), json!(live.uid));
        }
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match api.patch_metadata(&item.name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    async fn drop_owners(&self, uid: &str, owners: &HashSet<String>) -> Result<(), ReconcileError> {
        let Some(item) = self.graph.lock().get(uid).cloned() else { return Ok(()) };
        self.change(uid, &item, |live| {
            let all = live.owner_references.clone().unwrap_or_default();
            let kept: Vec<_> = all.iter().filter(|owner| !owners.contains(&owner.uid)).collect();
            (kept.len() != all.len()).then(|| json!({ "ownerReferences": kept }))
        })
        .await
    }

    async fn unblock(&self, uid: &str, item: &Item) -> Result<(), ReconcileError> {
        self.change(uid, item, |live| {
            let mut owners = live.owner_references.clone()?;
            owners.iter_mut().for_each(|owner| owner.block_owner_deletion = Some(false));
            Some(json!({ "ownerReferences": owners }))
        })
        .await
    }

    async fn remove_finalizer(&self, uid: &str, item: &Item, finalizer: &str) -> Result<(), ReconcileError> {
        self.change(uid, item, |live| {
            let all = live.finalizers.clone().unwrap_or_default();
            let kept: Vec<_> = all.iter().filter(|known| *known != finalizer).collect();
            (kept.len() != all.len()).then(|| json!({ "finalizers": kept }))
        })
        .await
    }
}

/// The live object is asked once more before it is deleted: since the graph heard of it, it may have found another owner,
/// or have been let go by those it had.
fn has_only(live: &ObjectMeta, gone: &[Owner]) -> bool {
    let owners = live.owner_references.as_deref().unwrap_or_default();
    !owners.is_empty() && owners.iter().all(|owner| gone.iter().any(|gone| gone.uid == owner.uid))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;

    #[test]
    fn an_object_is_deleted_only_while_all_its_owners_are_those_that_are_gone() {
        check("a", "a", true);
        check("a", "a b", true);
        check("a c", "a b", false);
        check("", "a", false);
    }

    #[track_caller]
    fn check(live: &str, gone: &str, want: bool) {
        let reference = |uid: &str| OwnerReference { uid: uid.into(), ..Default::default() };
        let references = |text: &str| Some(text.split_whitespace().map(reference).collect());
        let live = ObjectMeta { owner_references: references(live), ..Default::default() };
        let gone = Item::new(0, &ObjectMeta { owner_references: references(gone), ..Default::default() });
        assert_eq!(has_only(&live, &gone.owners), want, "{live:?} {gone:?}");
    }
}
