//! Empties a namespace that is being deleted, of every kind of object the server knows, and then lets it go.

mod content;

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, PostParams};

use crate::controller::{Context, Controller};
use crate::meta;

/// Our entry in `spec.finalizers`: while it is there, the server keeps the namespace.
const FINALIZER: &str = "kubernetes";

pub(crate) struct Namespaces {
    client: kube::Client,
    namespaces: Informer<Namespace>,
}

pub(crate) fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    !meta::is_deleting(namespace) && phase != Some("Terminating")
}

impl Controller for Namespaces {
    const ACCOUNT: &'static str = "namespace-controller";
    const WORKERS: usize = 10;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let namespaces = context.informers.of::<Namespace>();
        namespaces.subscribe({
            let queue = queue.clone();
            move |change| {
                if meta::is_deleting(&**change.object()) {
                    queue.add(Key::of(&**change.object()));
                }
            }
        });
        // Pods are what a namespace waits for: they leave when their node has stopped them.
        context.informers.of::<Pod>().subscribe({
            let namespaces = namespaces.clone();
            move |change| {
                let key = Key::new("", meta::namespace(&**change.object()));
                let is_terminating = || namespaces.get(&key).is_some_and(|namespace| meta::is_deleting(&*namespace));
                if matches!(change, Change::Deleted(_)) && is_terminating() {
                    queue.add(key);
                }
            }
        });
        Self { client: context.client.clone(), namespaces }
    }
}

#[async_trait]
impl Reconciler for Namespaces {
    const NAME: &'static str = "namespace";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        if !self.namespaces.get(key).is_some_and(|namespace| meta::is_deleting(&*namespace)) {
            return Ok(Next::OnChange);
        }
        let api = Api::<Namespace>::all(self.client.clone());
        let Some(mut namespace) = api.get_opt(&key.name).await? else { return Ok(Next::OnChange) };
        if !meta::is_deleting(&namespace) || !is_held(&namespace) {
            return Ok(Next::OnChange);
        }
        if namespace.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Terminating") {
            namespace.status.get_or_insert_default().phase = Some("Terminating".into());
            namespace = api.replace_status(&key.name, &PostParams::default(), &namespace).await?;
        }
        let remaining = content::delete(&self.client, &key.name).await;
        let reported = content::with_conditions(&namespace, &remaining, Timestamp::now());
        if reported != namespace {
            namespace = api.replace_status(&key.name, &PostParams::default(), &reported).await?;
        }
        let remaining = remaining?;
        if !remaining.is_empty() {
            return Ok(Next::After(remaining.retry_after()));
        }
        self.finalize(namespace).await?;
        Ok(Next::OnChange)
    }
}

fn is_held(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.iter().flat_map(|spec| spec.finalizers.iter().flatten());
    finalizers.into_iter().any(|finalizer| finalizer == FINALIZER)
}

impl Namespaces {
    async fn finalize(&self, mut namespace: Namespace) -> Result<(), ReconcileError> {
        if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        let api = Api::<Namespace>::all(self.client.clone());
        let put = api.replace_subresource("finalize", meta::name(&namespace), &PostParams::default(), &namespace).await;
        match put {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}
