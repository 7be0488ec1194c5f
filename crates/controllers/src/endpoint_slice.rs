//! Keeps the EndpointSlices of a Service: where its pods are, and whether they can be used.
//!
//! [`plan::plan`] decides; nothing is delayed, so that readiness reaches proxies as fast as the watch carries it.

mod plan;

use std::sync::Arc;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, PostParams};

use crate::controller::{Context, Controller};
use crate::expectations::Expectations;
use crate::{meta, pod_control, service};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";
const BY_SERVICE: &str = "service";

pub(crate) struct EndpointSlices {
    client: kube::Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    /// Slices are named by the server: a stale cache would make a second one.
    expectations: Arc<Expectations>,
}

impl Controller for EndpointSlices {
    const ACCOUNT: &'static str = "endpointslice-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (services, pods) = (context.informers.of::<Service>(), context.informers.of::<Pod>());
        let slices = context.informers.of::<EndpointSlice>();
        let expectations = Arc::new(Expectations::default());
        slices.add_index(BY_SERVICE, |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());
        services.subscribe({
            let (queue, expectations) = (queue.clone(), expectations.clone());
            move |change| {
                if let Change::Deleted(service) = change {
                    expectations.forget(&Key::of(&**service));
                }
                queue.add(Key::of(&**change.object()));
            }
        });
        service::wake_on_pods(&pods, &services, &queue);
        slices.subscribe({
            let expectations = expectations.clone();
            move |change| {
                let Some(service) = service_of(change.object()) else { return };
                match change {
                    Change::Added(_) => expectations.creation_observed(&service),
                    Change::Deleted(slice) => expectations.deletion_observed(&service, meta::uid(&**slice)),
                    Change::Updated { .. } => (),
                }
                queue.add(service);
            }
        });
        Self { client: context.client.clone(), services, pods, nodes: context.informers.of(), slices, expectations }
    }
}

/// `None` for slices that another controller (or a user) manages.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let labels = meta::labels(slice);
    let ours = labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    labels.get(SERVICE_NAME).filter(|_| ours).map(|name| Key::new(meta::namespace(slice), name))
}

#[async_trait]
impl Reconciler for EndpointSlices {
    const NAME: &'static str = "endpointslice";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        // Deleted Services are the garbage collector's, by the owner references on the slices.
        let Some(service) = self.services.get(key).filter(|service| !meta::is_deleting(&**service)) else {
            return Ok(Next::OnChange);
        };
        if !self.expectations.satisfied(key) {
            return Ok(Next::OnChange);
        }
        let Some(selector) = service::selector(&service) else { return Ok(Next::OnChange) };
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|pod| selector.matches(meta::labels(&**pod)));
        let existing = self.slices.by_index(BY_SERVICE, &key.to_string());
        let zone = |node: &str| {
            let node = self.nodes.get(&Key::new("", node))?;
            meta::labels(&*node).get(ZONE).cloned()
        };
        self.act(key, plan::plan(&service, &pods, &existing, zone)).await?;
        Ok(Next::OnChange)
    }
}

impl EndpointSlices {
    async fn act(&self, key: &Key, plan: plan::Plan) -> Result<(), ReconcileError> {
        let api = Api::<EndpointSlice>::namespaced(self.client.clone(), &key.namespace);
        for slice in &plan.update {
            api.replace(meta::name(slice), &PostParams::default(), slice).await?;
        }
        let uids = plan.delete.iter().map(|slice| meta::uid(&**slice).to_owned());
        self.expectations.expect(key, plan.create.len(), uids);
        let mut failed = None;
        for slice in &plan.create {
            if let Err(error) = api.create(&PostParams::default(), slice).await {
                self.expectations.creation_observed(key);
                if !pod_control::is_namespace_terminating(&error) {
                    failed = Some(error);
                }
            }
        }
        for slice in &plan.delete {
            match api.delete(meta::name(&**slice), &DeleteParams::default()).await {
                Ok(_) => (),
                Err(kube::Error::Api(status)) if status.code == 404 => (),
                Err(error) => {
                    self.expectations.deletion_observed(key, meta::uid(&**slice));
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}
