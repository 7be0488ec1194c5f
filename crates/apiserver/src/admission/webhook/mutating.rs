//! MutatingAdmissionWebhook: asks all whom a request concerns one after the other, each with what those before it made.

use std::sync::Arc;
use std::time::Instant;

use api::patch::json_patch;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{Failure, Hook, Seen, asked};
use crate::admission::{Attributes, Operation, Reinvocation, refit};
use crate::convert;
use crate::pipeline::Context;
use crate::server::ApiServer;

pub(crate) const NAME: &str = "MutatingAdmissionWebhook";

/// Whether anything was changed.
pub(crate) async fn mutate(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
    round: &mut Reinvocation,
) -> Result<bool, ApiError> {
    let hooks = server.mutating_webhooks.hooks();
    let Some(context) = asked(attributes).filter(|_| !hooks.is_empty()) else { return Ok(false) };
    round.begin(object);
    let mut is_changed = false;
    for (index, hook) in hooks.iter().enumerate() {
        let current = Some(&*object).filter(|_| attributes.operation != Operation::Delete);
        let Some(seen) = hook.seen(server, attributes, current).await? else { continue };
        if !round.is_asked(&hook.key) {
            continue;
        }
        let place = format!("round_{}_index_{index}", round.round());
        let began = Instant::now();
        let outcome = hook.change(server, attributes, context, seen, object, &place).await;
        hook.count(server, attributes.operation, "admit", began, outcome.as_ref().err());
        let told = json!({
            "configuration": hook.configuration, "webhook": hook.name, "mutated": outcome.as_ref().is_ok_and(|c| *c),
        });
        context.annotate(format!("mutation.webhook.admission.k8s.io/{place}"), told.to_string());
        let changed = outcome.or_else(|failure| {
            let key = format!("failed-open.mutation.webhook.admission.k8s.io/{place}");
            hook.settle(context, failure, &key).map(|()| false)
        })?;
        if changed {
            is_changed = true;
            round.changed();
        }
        if hook.reinvoked {
            round.invoked(&hook.key);
        }
    }
    round.end(object);
    Ok(is_changed)
}

impl Hook {
    /// Asks, and makes the change that it wants; whether it was one.
    async fn change(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        context: &Context,
        mut seen: Seen,
        object: &mut Object,
        place: &str,
    ) -> Result<bool, Failure> {
        let is_delete = attributes.operation == Operation::Delete;
        let current = Some(&*object).filter(|_| !is_delete);
        let answer = self.ask(server, attributes, context, (&seen, current), true).await?;
        let Some(patch) = answer.patch.filter(|patch| patch != &json!([])) else { return Ok(false) };
        let internal = |why: String| Failure::Refused(ApiError::internal(why));
        if is_delete {
            return Err(internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                self.name
            )));
        }
        let before = seen.object.take().unwrap_or_else(|| object.clone());
        let mut value = Value::Object(before.clone());
        json_patch(&mut value, &patch).map_err(|error| internal(error.to_string()))?;
        let served = seen.served(attributes);
        let (patched, _) = refit(attributes, served, value).map_err(internal)?;
        for field in ["apiVersion", "kind"] {
            let (was, is) = (before.text(&[field]), patched.text(&[field]));
            if was != is {
                return Err(internal(format!(
                    "admission webhook {:?} changed {field} from {was:?} to {is:?}",
                    self.name
                )));
            }
        }
        let told = json!({
            "configuration": self.configuration, "webhook": self.name, "patch": patch, "patchType": "JSONPatch",
        });
        context.annotate_request(format!("patch.webhook.admission.k8s.io/{place}"), || told.to_string());
        if patched == before {
            return Ok(false);
        }
        *object = match attributes.is_of_another_kind() || std::ptr::eq(served, attributes.served) {
            true => patched,
            false => {
                let back = convert::to_version(server, served, attributes.served, patched).await;
                back.map_err(Failure::Refused)?
            }
        };
        Ok(true)
    }
}
