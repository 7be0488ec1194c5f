//! Publishes the cluster's root certificate to every namespace as the ConfigMap `kube-root-ca.crt`, which pods mount.

use std::collections::BTreeMap;

use async_trait::async_trait;
use client::{Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::controller::{Context, Controller};
use crate::namespace::is_active;
use crate::pod_control;

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service \
     IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
);

pub(crate) struct RootCaPublisher {
    client: kube::Client,
    namespaces: Informer<Namespace>,
    published: Informer<ConfigMap>,
    root_ca: String,
}

impl Controller for RootCaPublisher {
    const ACCOUNT: &'static str = "root-ca-cert-publisher";
    const WORKERS: usize = 2;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let namespaces = context.informers.of::<Namespace>();
        // Only this one name: users' ConfigMaps may be large and many.
        let published = context.informers.selected::<ConfigMap>("", "metadata.name=kube-root-ca.crt");
        namespaces.subscribe({
            let queue = queue.clone();
            move |change| queue.add(Key::of(&**change.object()))
        });
        published.subscribe(move |change| {
            queue.add(Key::new("", change.object().metadata.namespace.clone().unwrap_or_default()));
        });
        Self { client: context.client.clone(), namespaces, published, root_ca: context.root_ca.clone() }
    }
}

#[async_trait]
impl Reconciler for RootCaPublisher {
    const NAME: &'static str = "root-ca-certificate-publisher";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        if !self.namespaces.get(key).is_some_and(|namespace| is_active(&namespace)) {
            return Ok(Next::OnChange);
        }
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), &key.name);
        let data = BTreeMap::from([("ca.crt".to_owned(), self.root_ca.clone())]);
        let Some(known) = self.published.get(&Key::new(&*key.name, NAME)) else {
            let annotations = BTreeMap::from([(DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned())]);
            let metadata = ObjectMeta { name: Some(NAME.into()), annotations: Some(annotations), ..Default::default() };
            let map = ConfigMap { metadata, data: Some(data), ..Default::default() };
            return match api.create(&PostParams::default(), &map).await {
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(Next::OnChange),
                Err(error) if pod_control::is_namespace_terminating(&error) => Ok(Next::OnChange),
                other => Ok(other.map(|_| Next::OnChange)?),
            };
        };
        if known.data.as_ref() != Some(&data) {
            let map = ConfigMap { data: Some(data), binary_data: None, ..(*known).clone() };
            api.replace(NAME, &PostParams::default(), &map).await?;
        }
        Ok(Next::OnChange)
    }
}
