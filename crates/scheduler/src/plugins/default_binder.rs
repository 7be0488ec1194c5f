//! Binds a pod to its node through the `binding` subresource.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::framework::{Bind, Plugin};
use crate::queue::Event;

pub(crate) struct DefaultBinder {
    client: kube::Client,
}

impl DefaultBinder {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self { client }
    }
}

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }

    fn is_helped_by(&self, _: Event) -> bool {
        false
    }
}

#[async_trait]
impl Bind for DefaultBinder {
    async fn bind(&self, pod: &Pod, node: &str) -> kube::Result<()> {
        let (name, namespace) = (pod.metadata.name.clone().unwrap_or_default(), pod.metadata.namespace.clone());
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace.as_deref().unwrap_or_default());
        let binding = Binding {
            // The uid makes sure that a pod deleted and made again under the same name is not bound by mistake.
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace,
                uid: pod.metadata.uid.clone(),
                ..Default::default()
            },
            target: ObjectReference { kind: Some("Node".into()), name: Some(node.to_owned()), ..Default::default() },
        };
        let _: serde_json::Value = api.create_subresource("binding", &name, &PostParams::default(), &binding).await?;
        Ok(())
    }
}
