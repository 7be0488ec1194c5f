//! Eviction: a deletion that respects disruption budgets.

use std::sync::Arc;

use api::selector::Selector;
use api::status::Cause;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use super::special::{self, read};
use super::{DeleteOptions, Writer, now};
use crate::field_manager::Tracking;
use crate::http::Body;
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

const VIOLATED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// Upstream's limit of evictions that a budget has not seen the end of.
const MAX_DISRUPTED: usize = 2000;
/// Upstream's tries with a pod that changes meanwhile.
const MAX_TRIES: usize = 20;

pub(super) async fn evict(
    server: &Arc<ApiServer>,
    pods: &Arc<Served>,
    context: &Context,
    body: Body,
) -> Result<Value, ApiError> {
    let dry_run = context.dry_run("CreateOptions")?;
    let mut eviction = read(context, body, ("policy", "v1", "Eviction")).await?;
    let (namespace, name) = (context.info.namespace.as_str(), context.info.name.as_str());
    special::admit(server, pods, context, (name, "eviction"), &mut eviction).await?;
    if eviction.name() != name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let options: DeleteOptions = match eviction.get("deleteOptions").filter(|options| !options.is_null()) {
        Some(options) => serde_json::from_value(options.clone()).map_err(|e| ApiError::bad_request(e.to_string()))?,
        None => DeleteOptions::default(),
    };
    let conditions = options.preconditions.as_ref();
    let chosen = conditions.is_some_and(|wanted| wanted.uid.is_some() || wanted.resource_version.is_some());
    let (dry_run, tracking) = (dry_run || options.is_dry_run(), Tracking::None);
    let writer = Writer { server, served: pods, context: None, subresource: "eviction", dry_run, tracking };
    for _ in 0..MAX_TRIES {
        match attempt(server, &writer, (namespace, name), options.clone()).await {
            // It changed while it was looked at.
            Err(error) if error.reason == "Conflict" && !chosen => (),
            outcome => {
                outcome?;
                return Ok(
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
                );
            }
        }
    }
    let resource = api::GroupResource { group: "", resource: "pods" };
    Err(ApiError::conflict(resource, name, "the object changes too often"))
}

async fn attempt(
    server: &Arc<ApiServer>,
    writer: &Writer<'_>,
    (namespace, name): (&str, &str),
    mut options: DeleteOptions,
) -> Result<(), ApiError> {
    let (_, pod) = writer.current(namespace, name).await?;
    options.validate()?;
    let is_over = matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed") || pod.is_terminating();
    let budget = match is_over || pod.text(&["status", "phase"]) == "Pending" {
        true => None,
        false => budget_of(server, &pod)?,
    };
    let is_spared = budget.as_ref().is_some_and(|budget| !is_ready(&pod) && is_evictable_unready(budget));
    if let Some(budget) = budget.as_ref().filter(|_| !is_spared) {
        spend(server, writer.dry_run, &pod, budget.name()).await?;
    }
    // What was judged unready, or not yet running, must not have become ready meanwhile.
    let is_waiting = budget.is_none() && pod.text(&["status", "phase"]) == "Pending" && !is_over;
    let wanted = options.preconditions.get_or_insert_default();
    if (is_spared || is_waiting) && wanted.resource_version.is_none() {
        wanted.resource_version = Some(pod.resource_version().to_owned());
    }
    match (mark_and_delete(writer, namespace, name, options).await, budget) {
        (Err(error), Some(budget)) if error.reason == "Conflict" && is_spared => Err(unprocessed(budget.name())),
        (outcome, _) => outcome,
    }
}

/// Says on the pod why it goes, and deletes it.
async fn mark_and_delete(
    writer: &Writer<'_>,
    namespace: &str,
    name: &str,
    mut options: DeleteOptions,
) -> Result<(), ApiError> {
    if !writer.dry_run {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": now(),
        });
        let mark = |pod: &Object| {
            writer.check_preconditions(pod, &options)?;
            let mut pod = pod.clone();
            special::set_condition(&mut pod, condition.clone());
            Ok(pod)
        };
        let marked = writer.update(namespace, name, mark).await?;
        if let Some(version) = options.preconditions.as_mut().and_then(|wanted| wanted.resource_version.as_mut()) {
            marked.resource_version().clone_into(version);
        }
    }
    writer.delete(namespace, name, &options).await.map(|_| ())
}

fn is_ready(pod: &Object) -> bool {
    let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition.get("type").is_some_and(|kind| kind == "Ready"));
    ready.any(|condition| condition.get("status").is_some_and(|status| status == "True"))
}

/// A pod that is not ready guards nothing: it may go where its budget says so, or has enough without it.
fn is_evictable_unready(budget: &Object) -> bool {
    let number = |field| budget.at(&["status", field]).and_then(Value::as_i64).unwrap_or(0);
    let (current, desired) = (number("currentHealthy"), number("desiredHealthy"));
    budget.text(&["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow" || (current >= desired && desired > 0)
}

/// The one budget that covers the pod.
fn budget_of(server: &Arc<ApiServer>, pod: &Object) -> Result<Option<Object>, ApiError> {
    let budgets =
        server.registry.find("policy", "v1", "poddisruptionbudgets").ok_or_else(ApiError::no_such_resource)?;
    let labels = pod.at(&["metadata", "labels"]).cloned().unwrap_or_else(|| json!({}));
    let labels = serde_json::from_value(labels).unwrap_or_default();
    let snapshot = budgets.cache.as_ref().ok_or_else(ApiError::no_such_resource)?.snapshot();
    snapshot.check_prefix(&format!("{}/", pod.namespace()))?;
    let own = snapshot.objects.values().filter(|stored| stored.namespace() == pod.namespace());
    let mut covering = own.map(|stored| stored.decode()).filter(|budget| {
        let selector = budget.at(&["spec", "selector"]).and_then(|s| serde_json::from_value(s.clone()).ok());
        Selector::from_label_selector(selector.as_ref()).is_ok_and(|selector| selector.matches(&labels))
    });
    match (covering.next(), covering.next()) {
        (_, Some(_)) => {
            let why =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            Err(ApiError::new(500, "", why))
        }
        (budget, None) => Ok(budget),
    }
}

/// Takes one disruption from a budget; the write is a compare-and-set, so none is spent twice.
async fn spend(server: &Arc<ApiServer>, dry_run: bool, pod: &Object, budget: &str) -> Result<(), ApiError> {
    let budgets =
        server.registry.find("policy", "v1", "poddisruptionbudgets").ok_or_else(ApiError::no_such_resource)?;
    let writer = Writer {
        server,
        served: budgets,
        context: None,
        subresource: "status",
        dry_run,
        tracking: Tracking::Update("kube-apiserver"),
    };
    let spent = |current: &Object| {
        let allowed = allowance(current)?;
        let mut new = current.clone();
        new.at_mut(&["status"]).insert("disruptionsAllowed".into(), (allowed - 1).into());
        if allowed == 1 {
            set_allowed_condition(&mut new);
        }
        new.at_mut(&["status", "disruptedPods"]).insert(pod.name().to_owned(), now().into());
        Ok(new)
    };
    writer.update(pod.namespace(), budget, spent).await.map(|_| ())
}

/// How many may still go; why none may.
fn allowance(budget: &Object) -> Result<i64, ApiError> {
    let number = |path: &[&str]| budget.at(path).and_then(Value::as_i64).unwrap_or(0);
    let name = budget.name();
    if number(&["status", "observedGeneration"]) < number(&["metadata", "generation"]) {
        return Err(unprocessed(name));
    }
    let allowed = number(&["status", "disruptionsAllowed"]);
    let disrupted = budget.at(&["status", "disruptedPods"]).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    let forbidden = match (allowed, disrupted) {
        (..0, _) => Some("pdb disruptions allowed is negative"),
        (_, disrupted) if disrupted > MAX_DISRUPTED => {
            Some("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
        }
        _ => None,
    };
    if let Some(why) = forbidden {
        let resource = api::GroupResource { group: "policy", resource: "poddisruptionbudget" };
        return Err(ApiError::forbidden(resource, name, why));
    }
    if allowed > 0 {
        return Ok(allowed);
    }
    let conditions = budget.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let text =
        |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let refused = conditions
        .into_iter()
        .find(|condition| text(condition, "type") == "DisruptionAllowed" && text(condition, "status") == "False");
    let told = refused.map(|refused| (text(refused, "reason"), text(refused, "message")));
    let told = told.filter(|(_, message)| !message.is_empty());
    let (desired, current) = (number(&["status", "desiredHealthy"]), number(&["status", "currentHealthy"]));
    let why = match told {
        Some((reason, message)) if reason == "SyncFailed" => {
            format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
            )
        }
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        Some((reason, message)) => {
            format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}")
        }
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    };
    Err(violated(why, 0))
}

fn unprocessed(budget: &str) -> ApiError {
    violated(format!("The disruption budget {budget} is still being processed by the server."), 10)
}

fn violated(why: String, retry_after_seconds: u32) -> ApiError {
    let mut error = ApiError::too_many_requests(VIOLATED, retry_after_seconds);
    if let Some(details) = &mut error.details {
        details.causes.push(Cause { reason: "DisruptionBudget".into(), message: why, field: String::new() });
    }
    error
}

/// Nothing more may go: a budget that says what it allows says so.
fn set_allowed_condition(budget: &mut Object) {
    let generation = budget.at(&["status", "observedGeneration"]).cloned().unwrap_or_default();
    let list = budget.at_mut(&["status"]).entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    let of_kind = |condition: &&mut Value| condition.get("type").is_some_and(|kind| kind == "DisruptionAllowed");
    let mut condition = json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        "lastTransitionTime": now(), "observedGeneration": generation,
    });
    match list.iter_mut().find(of_kind) {
        Some(known) => {
            if known.get("status") == condition.get("status")
                && let (Some(since), Some(new)) = (known.get("lastTransitionTime").cloned(), condition.as_object_mut())
            {
                new.insert("lastTransitionTime".into(), since);
            }
            *known = condition;
        }
        None => list.push(condition),
    }
}
