//! `matchConditions` of webhooks: whether a webhook is to be called for a request.

use std::sync::Arc;

use api::Object;
use cel::policy::Compiler;
use serde_json::Value;

use super::Attributes;
use super::policy::definition::{Expression, conditions};
use super::policy::evaluate::{Inputs, conditions_hold};
use super::policy::request;
use crate::registry::Served;
use crate::server::ApiServer;

/// The conditions of one webhook, compiled once.
pub(crate) struct MatchConditions {
    expressions: Vec<Expression>,
    ignores_failure: bool,
}

impl MatchConditions {
    /// Of a webhook as it is written in its configuration.
    pub(crate) fn of(webhook: &Object) -> Self {
        let list = webhook.get("matchConditions").and_then(Value::as_array).into_iter().flatten();
        let expressions = conditions(list.filter_map(Value::as_object), &Compiler::new(false, false));
        let ignores_failure = webhook.get("failurePolicy").is_some_and(|policy| policy == "Ignore");
        Self { expressions, ignores_failure }
    }

    /// Whether they hold for the request, with the objects in the version of `seen_as`. A condition that cannot be
    /// evaluated is an error, or means no where failures are ignored.
    pub(crate) async fn hold(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        seen_as: &Served,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<bool, String> {
        if self.expressions.is_empty() {
            return Ok(true);
        }
        let request = request::request(attributes, seen_as);
        request::settled(server, attributes, |answers| {
            let resource = request::own_resource(attributes);
            let (namespace, params, variables) = (None, None, &[][..]);
            let inputs = Inputs { object, old, namespace, request: &request, params, answers, resource, variables };
            conditions_hold(&self.expressions, &inputs, self.ignores_failure)
        })
        .await
    }
}
