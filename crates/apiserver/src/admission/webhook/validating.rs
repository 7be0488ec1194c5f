//! ValidatingAdmissionWebhook: asks all whom a request concerns at once; each may refuse it.

use std::sync::Arc;
use std::time::Instant;

use api::{ApiError, Object};
use async_trait::async_trait;

use super::{Hook, Seen, asked};
use crate::admission::{Attributes, Operation, Plugin};
use crate::server::ApiServer;

const FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/round_0_index_";

pub(crate) struct ValidatingAdmissionWebhook;

#[async_trait]
impl Plugin for ValidatingAdmissionWebhook {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        asked(attributes).is_some()
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &Object,
    ) -> Result<(), ApiError> {
        let hooks = server.validating_webhooks.hooks();
        let Some(context) = asked(attributes).filter(|_| !hooks.is_empty()) else { return Ok(()) };
        let object = Some(object).filter(|_| attributes.operation != Operation::Delete);
        let mut concerned: Vec<(&Hook, Seen)> = Vec::new();
        for hook in hooks.iter() {
            if let Some(seen) = hook.seen(server, attributes, object).await? {
                concerned.push((hook, seen));
            }
        }
        let calls = concerned.iter().enumerate().map(|(index, (hook, seen))| async move {
            let began = Instant::now();
            let answer = hook.ask(server, attributes, context, (seen, object), false).await;
            hook.count(server, attributes.operation, "validating", began, answer.as_ref().err());
            answer.map(|_| ()).or_else(|failure| hook.settle(context, failure, &format!("{FAILED_OPEN}{index}")))
        });
        futures::future::join_all(calls).await.into_iter().collect()
    }
}
