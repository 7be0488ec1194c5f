//! Creates the Node object, or brings an existing one's labels up to date.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};

use super::NodeKeeper;

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(7);

impl NodeKeeper {
    pub(super) async fn register_node(&self) {
        let mut retry = RETRY_MIN;
        while let Err(error) = self.try_register().await {
            tracing::debug!(%error, "node could not be registered");
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
        tracing::info!(node = self.context.node_name, "node registered");
    }

    async fn try_register(&self) -> Result<(), kube::Error> {
        let api: Api<Node> = Api::all(self.context.client.clone());
        let metadata = ObjectMeta {
            name: Some(self.context.node_name.clone()),
            labels: Some(self.all_labels()),
            annotations: Some(BTreeMap::from([(
                "volumes.kubernetes.io/controller-managed-attach-detach".into(),
                "true".into(),
            )])),
            ..Default::default()
        };
        let taints = (!self.taints.is_empty()).then(|| self.taints.clone());
        let spec = NodeSpec { pod_cidr: None, taints, ..Default::default() };
        let node = Node { metadata, spec: Some(spec), status: None };
        match api.create(&PostParams::default(), &node).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let patch = serde_json::json!({ "metadata": { "labels": self.all_labels() } });
                let name = &self.context.node_name;
                api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }

    fn all_labels(&self) -> BTreeMap<String, String> {
        let arch = &self.machine.arch;
        let known = [
            ("kubernetes.io/hostname", self.context.node_name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", arch),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", arch),
        ];
        let known = known.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        known.chain(self.labels.clone()).collect()
    }
}
