//! Keeps a ServiceAccount `default` in every namespace.

use async_trait::async_trait;
use client::{Change, Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::controller::{Context, Controller};
use crate::namespace::is_active;
use crate::pod_control;

const DEFAULT: &str = "default";

pub(crate) struct ServiceAccounts {
    client: kube::Client,
    namespaces: Informer<Namespace>,
    accounts: Informer<ServiceAccount>,
}

impl Controller for ServiceAccounts {
    const ACCOUNT: &'static str = "service-account-controller";
    const WORKERS: usize = 2;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let accounts = context.informers.of::<ServiceAccount>();
        let namespaces = context.informers.of::<Namespace>();
        namespaces.subscribe({
            let queue = queue.clone();
            move |change| queue.add(Key::of(&**change.object()))
        });
        accounts.subscribe(move |change| {
            if let Change::Deleted(account) = change {
                queue.add(Key::new("", account.metadata.namespace.clone().unwrap_or_default()));
            }
        });
        Self { client: context.client.clone(), namespaces, accounts }
    }
}

#[async_trait]
impl Reconciler for ServiceAccounts {
    const NAME: &'static str = "serviceaccount";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let active = self.namespaces.get(key).is_some_and(|namespace| is_active(&namespace));
        if !active || self.accounts.get(&Key::new(&*key.name, DEFAULT)).is_some() {
            return Ok(Next::OnChange);
        }
        let metadata = ObjectMeta { name: Some(DEFAULT.into()), ..Default::default() };
        let account = ServiceAccount { metadata, ..Default::default() };
        let api = Api::<ServiceAccount>::namespaced(self.client.clone(), &key.name);
        match api.create(&PostParams::default(), &account).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Next::OnChange),
            Err(error) if pod_control::is_namespace_terminating(&error) => Ok(Next::OnChange),
            other => Ok(other.map(|_| Next::OnChange)?),
        }
    }
}
