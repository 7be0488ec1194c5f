//! The node's heartbeat: its Lease in `kube-node-lease`, renewed every ten seconds.

use std::time::Duration;

use client::Key;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::PostParams;

use crate::context::Context;

const NAMESPACE: &str = "kube-node-lease";
const DURATION_SECONDS: i32 = 40;
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(7);

pub(super) async fn keep(context: &Context, period: Duration) {
    let api: Api<Lease> = Api::namespaced(context.client.clone(), NAMESPACE);
    let mut held: Option<Lease> = None;
    let mut retry = RETRY;
    loop {
        match renew(context, &api, held.take()).await {
            Ok(lease) => {
                held = Some(lease);
                retry = RETRY;
                tokio::time::sleep(period).await;
            }
            Err(error) => {
                tracing::debug!(%error, "node lease could not be renewed");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
    }
}

async fn renew(context: &Context, api: &Api<Lease>, held: Option<Lease>) -> Result<Lease, kube::Error> {
    let name = &context.node_name;
    let known = match held {
        Some(lease) => Some(lease),
        None => api.get_opt(name).await?,
    };
    let is_new = known.is_none();
    let mut lease = known.unwrap_or_default();
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(name.clone()),
        lease_duration_seconds: Some(DURATION_SECONDS),
        renew_time: Some(MicroTime(context.clock.now())),
        ..lease.spec.unwrap_or_default()
    });
    if is_new {
        lease.metadata = ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: owner(context),
            ..Default::default()
        };
        return api.create(&PostParams::default(), &lease).await;
    }
    if lease.metadata.owner_references.is_none() {
        lease.metadata.owner_references = owner(context);
    }
    api.replace(name, &PostParams::default(), &lease).await
}

/// The lease goes with its node.
fn owner(context: &Context) -> Option<Vec<OwnerReference>> {
    let node = context.nodes.get(&Key::new("", context.node_name.clone()))?;
    Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: context.node_name.clone(),
        uid: node.metadata.uid.clone()?,
        ..Default::default()
    }])
}
