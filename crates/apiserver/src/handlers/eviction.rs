//! Eviction: a deletion that respects disruption budgets.

use std::sync::Arc;

use api::selector::Selector;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use super::special::{self, read};
use super::{DeleteOptions, Writer};
use crate::field_manager::Tracking;
use crate::http::Body;
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

pub(super) async fn evict(
    server: &Arc<ApiServer>,
    pods: &Arc<Served>,
    context: &Context,
    body: Body,
) -> Result<Value, ApiError> {
    let mut eviction = read(context, body, ("policy", "v1", "Eviction")).await?;
    let (namespace, name) = (context.info.namespace.as_str(), context.info.name.as_str());
    special::admit(server, pods, context, (name, "eviction"), &mut eviction).await?;
    let options: DeleteOptions = match eviction.get("deleteOptions") {
        Some(options) => serde_json::from_value(options.clone()).map_err(|e| ApiError::bad_request(e.to_string()))?,
        None => DeleteOptions::default(),
    };
    let dry_run = context.dry_run("CreateOptions")? || options.is_dry_run();
    let writer =
        Writer { server, served: pods, context: None, subresource: "eviction", dry_run, tracking: Tracking::None };
    let (_, pod) = writer.current(namespace, name).await?;
    let finished = matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed" | "Pending");
    if !finished && !pod.is_terminating() {
        spend_budget(server, dry_run, &pod).await?;
    }
    writer.delete(namespace, name, &options).await?;
    Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
}

/// Takes one disruption from the budget that covers the pod; the write is a compare-and-set, so none is spent twice.
async fn spend_budget(server: &Arc<ApiServer>, dry_run: bool, pod: &Object) -> Result<(), ApiError> {
    let budgets =
        server.registry.find("policy", "v1", "poddisruptionbudgets").ok_or_else(ApiError::no_such_resource)?;
    let labels = pod.at(&["metadata", "labels"]).cloned().unwrap_or_else(|| json!({}));
    let labels = serde_json::from_value(labels).unwrap_or_default();
    let snapshot = budgets.cache.as_ref().ok_or_else(ApiError::no_such_resource)?.snapshot();
    let covering: Vec<String> = snapshot
        .objects
        .values()
        .filter(|stored| stored.namespace() == pod.namespace())
        .filter(|stored| {
            let selector = stored.decode().at(&["spec", "selector"]).cloned();
            let selector = selector.and_then(|s| serde_json::from_value(s).ok());
            Selector::from_label_selector(selector.as_ref()).is_ok_and(|selector| selector.matches(&labels))
        })
        .map(|stored| stored.name().to_owned())
        .collect();
    let budget = match covering.as_slice() {
        [] => return Ok(()),
        [one] => one,
        _ => {
            return Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    let writer = Writer {
        server,
        served: budgets,
        context: None,
        subresource: "status",
        dry_run,
        tracking: Tracking::Update("kube-apiserver"),
    };
    let spend = |current: &Object| {
        let number = |path: &[&str]| current.at(path).and_then(Value::as_i64).unwrap_or(0);
        if number(&["status", "observedGeneration"]) < number(&["metadata", "generation"]) {
            return Err(ApiError::too_many_requests(
                format!(
                    "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget {budget} is still being processed by the server."
                ),
                10,
            ));
        }
        let allowed = number(&["status", "disruptionsAllowed"]);
        if allowed <= 0 {
            let why = "Cannot evict pod as it would violate the pod's disruption budget.";
            return Err(ApiError::too_many_requests(why, 0));
        }
        let mut new = current.clone();
        let status = new.at_mut(&["status"]);
        status.insert("disruptionsAllowed".into(), (allowed - 1).into());
        new.at_mut(&["status", "disruptedPods"]).insert(pod.name().to_owned(), super::now().into());
        Ok(new)
    };
    writer.update(pod.namespace(), budget, spend).await.map(|_| ())
}
