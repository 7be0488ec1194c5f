//! TaintNodesByCondition: a node takes no pods until it has said that it is ready.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::json;

use super::{Attributes, Plugin};
use crate::server::ApiServer;

const KEY: &str = "node.kubernetes.io/not-ready";

pub(super) struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.creates("", "nodes")
    }

    async fn admit(&self, _: &Arc<ApiServer>, _: &Attributes<'_>, node: &mut Object) -> Result<(), ApiError> {
        let taints = node.at_mut(&["spec"]).entry("taints").or_insert_with(|| json!([]));
        if let Some(list) = taints.as_array_mut()
            && !list.iter().any(|taint| {
                taint.get("key").is_some_and(|key| key == KEY) && taint.get("effect").is_some_and(|e| e == "NoSchedule")
            })
        {
            list.push(json!({"key": KEY, "effect": "NoSchedule"}));
        }
        Ok(())
    }
}
