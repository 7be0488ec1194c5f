//! The few paths that are not plain reads and writes of their resource.

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use super::list::Selection;
use super::{Writer, eviction, mean, now, review, update, wrong_kind};
use crate::admission::{self, Attributes, Operation};
use crate::auth::tokens;
use crate::field_manager::{self, FieldManager, Tracking};
use crate::health;
use crate::http::{self, Body, respond};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

pub(super) enum Outcome {
    Done(Response<Body>),
    /// Nothing special: the generic verbs take the body.
    Generic(Body),
}

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
    body: Body,
) -> Result<Outcome, ApiError> {
    let info = &context.info;
    let created = |value: Value| -> Result<Outcome, ApiError> {
        let accept = http::Accept::of(&context.headers, &context.query, http::Offer::WithoutTable)?;
        Ok(Outcome::Done(respond(StatusCode::CREATED, &accept, &value)))
    };
    match (info.group.as_str(), info.resource.as_str(), info.subresource.as_str(), info.verb) {
        ("", "pods", "binding", "create") => created(bind(server, served, context, &info.name, body).await?),
        ("", "bindings", "", "create") => {
            let pods = server.registry.find("", "v1", "pods").ok_or_else(ApiError::no_such_resource)?;
            created(bind(server, pods, context, "", body).await?)
        }
        ("", "pods", "eviction", "create") => created(eviction::evict(server, served, context, body).await?),
        ("", "serviceaccounts", "token", "create") => {
            context.dry_run("CreateOptions")?;
            let mut request = read(context, body, ("authentication.k8s.io", "v1", "TokenRequest")).await?;
            server.feed.current().await.map_err(crate::server::store_error)?;
            admit(server, served, context, (&info.name, "token"), &mut request).await?;
            created(tokens::request(server, &info.namespace, &info.name, request)?)
        }
        ("", "namespaces", "finalize", "update") => finalize(server, served, context, body).await,
        ("", "componentstatuses", "", "get" | "list") => Ok(Outcome::Done(respond(
            StatusCode::OK,
            &context.accept()?,
            &component_statuses(server, served, context).await?,
        ))),
        ("authorization.k8s.io" | "authentication.k8s.io", resource, "", "create") => {
            context.dry_run("CreateOptions")?;
            let mut request = super::read_object(served, context, body).await?;
            api::decode::complete(&mut request, &served.schema);
            let fields = FieldManager { registry: &server.registry, served, subresource: "" };
            fields.update(None, &mut request, &field_manager::of_request(context), &now());
            created(review::answer(server, context, resource, request).await?)
        }
        _ => Ok(Outcome::Generic(body)),
    }
}

/// Admission of what is created on an object rather than stored.
pub(super) async fn admit(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    (name, subresource): (&str, &str),
    object: &mut Object,
) -> Result<(), ApiError> {
    let attributes = Attributes {
        operation: Operation::Create,
        served,
        namespace: &context.info.namespace,
        name,
        generate_name: "",
        subresource,
        context: Some(context),
        dry_run: context.dry_run("CreateOptions")?,
        old: None,
        delete_options: None,
    };
    admission::mutate(server, &attributes, object).await?;
    admission::judge(server, &attributes, object).await
}

/// Reads what is sent to a path whose resource is of another kind.
pub(super) async fn read(
    context: &Context,
    body: Body,
    (group, version, kind): (&str, &str, &str),
) -> Result<Object, ApiError> {
    let bytes = http::read(body).await?;
    let (object, duplicates) = http::decode_tracked(&context.headers, &bytes, kind)?;
    let schema = api::schema::of_kind(group, version, kind).ok_or_else(ApiError::no_such_resource)?;
    let expected = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let (own_kind, own_version) = (object.text(&["kind"]), object.text(&["apiVersion"]));
    // Evictions are of an older version, too, which is the same but for its name.
    let is_known = ["", &expected].contains(&own_version) || (kind == "Eviction" && own_version == "policy/v1beta1");
    if !["", kind].contains(&own_kind) || !is_known {
        return Err(wrong_kind(kind, &expected, own_kind, own_version));
    }
    let mut object = super::fit(context, (version, kind), schema, object, &duplicates)?;
    api::decode::complete(&mut object, schema);
    Ok(object)
}

/// Assigns a pod to a node, once; on the old path the binding's own name tells which.
async fn bind(
    server: &Arc<ApiServer>,
    pods: &Arc<Served>,
    context: &Context,
    name: &str,
    body: Body,
) -> Result<Value, ApiError> {
    let dry_run = context.dry_run("CreateOptions")?;
    let mut binding = read(context, body, ("", "v1", "Binding")).await?;
    let name = if name.is_empty() { binding.name().to_owned() } else { name.to_owned() };
    admit(server, pods, context, (&name, "binding"), &mut binding).await?;
    let name = name.as_str();
    if binding.name() != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let node = binding.text(&["target", "name"]);
    let mut errors = Vec::new();
    if !matches!(binding.text(&["target", "kind"]), "" | "Node") {
        let kind = binding.text(&["target", "kind"]);
        errors.push(api::field::FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
    }
    if node.is_empty() {
        errors.push(api::field::FieldError::required("target.name", ""));
    }
    if !errors.is_empty() {
        // Upstream tells them bare, and as its own mistake.
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let message = if told.len() == 1 { told.concat() } else { format!("[{}]", told.join(", ")) };
        return Err(ApiError::new(500, "", message));
    }
    let tracking = Tracking::None;
    let writer = Writer { server, served: pods, context: None, subresource: "binding", dry_run, tracking };
    let change = |pod: &Object| {
        let assigned = pod.text(&["spec", "nodeName"]);
        let gates = pod.at(&["spec", "schedulingGates"]).and_then(Value::as_array);
        let wrong = if pod.is_terminating() {
            Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
        } else if !assigned.is_empty() {
            Some(format!("pod {name} is already assigned to node {assigned:?}"))
        } else if gates.is_some_and(|gates| !gates.is_empty()) {
            Some(format!("pod {name} has non-empty .spec.schedulingGates"))
        } else {
            None
        };
        // Which pod is meant is looked at first, by whoever writes it.
        let is_another = !["", pod.uid()].contains(&binding.uid());
        if let Some(why) = wrong.filter(|_| !is_another) {
            let resource = api::GroupResource { group: "", resource: "pods/binding" };
            return Err(ApiError::conflict(resource, name, why));
        }
        let mut pod = pod.clone();
        mean(&mut pod, &binding);
        pod.at_mut(&["spec"]).insert("nodeName".into(), node.into());
        // Where it was to go no longer matters.
        pod.at_mut(&["status"]).remove("nominatedNodeName");
        for (key, value) in binding.at(&["metadata", "annotations"]).and_then(Value::as_object).into_iter().flatten() {
            pod.at_mut(&["metadata", "annotations"]).insert(key.clone(), value.clone());
        }
        for (key, value) in binding.at(&["metadata", "labels"]).and_then(Value::as_object).into_iter().flatten() {
            pod.at_mut(&["metadata", "labels"]).insert(key.clone(), value.clone());
        }
        set_condition(
            &mut pod,
            json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now()}),
        );
        Ok(pod)
    };
    writer.update(&context.info.namespace, name, change).await?;
    Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
}

pub(super) fn set_condition(object: &mut Object, condition: Value) {
    let status = object.at_mut(&["status"]);
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut() {
        list.retain(|known| known.get("type") != condition.get("type"));
        list.push(condition);
    }
}

/// Sets a namespace's own finalizers; without any, a terminating namespace goes.
async fn finalize(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
    body: Body,
) -> Result<Outcome, ApiError> {
    let dry_run = context.dry_run("UpdateOptions")?;
    let wanted = read(context, body, ("", "v1", "Namespace")).await?;
    update::check_place(served, &context.info, &wanted)?;
    let manager = field_manager::of_request(context);
    let tracking = Tracking::Update(&manager);
    let writer = Writer { server, served, context: Some(context), subresource: "finalize", dry_run, tracking };
    let change = |current: &Object| {
        let mut new = current.clone();
        mean(&mut new, &wanted);
        match wanted.at(&["spec", "finalizers"]).filter(|list| list.as_array().is_none_or(|list| !list.is_empty())) {
            Some(finalizers) => new.at_mut(&["spec"]).insert("finalizers".into(), finalizers.clone()),
            None => new.at_mut(&["spec"]).remove("finalizers"),
        };
        Ok(new)
    };
    let updated = writer.update("", &context.info.name, change).await?;
    Ok(Outcome::Done(respond(StatusCode::OK, &context.accept()?, &Value::Object(updated))))
}

/// The health of the control plane, from the leases its parts renew and from the store, which is asked.
async fn component_statuses(server: &Arc<ApiServer>, served: &Served, context: &Context) -> Result<Value, ApiError> {
    let selection = (context.info.verb == "list").then(|| Selection::of(served, context)).transpose()?;
    // They have names, but neither labels nor a namespace.
    let is_selected = |name: &'static str| match &selection {
        Some(selection) => {
            let field = |field: &str| if field == "metadata.name" { name } else { "" };
            selection.labels.matches_by(|_| None) && selection.fields.matches(field)
        }
        None => context.info.name == name,
    };
    let leases = server.registry.find("coordination.k8s.io", "v1", "leases").and_then(|leases| leases.cache.clone());
    let renewed = |name: &str| {
        let lease = leases.as_ref().and_then(|cache| cache.get(&format!("kube-system/{name}"))).map(|l| l.decode());
        let renewed = lease.and_then(|l| l.text(&["spec", "renewTime"]).parse::<jiff::Timestamp>().ok());
        let is_fresh = renewed.is_some_and(|at| jiff::Timestamp::now().duration_since(at).as_secs() < 15);
        is_fresh.then_some(()).ok_or("its lease is not renewed")
    };
    let parts = [
        ("scheduler", renewed("kube-scheduler")),
        ("controller-manager", renewed("kube-controller-manager")),
        ("etcd-0", health::store_answers(server).await.then_some(()).ok_or("it does not answer")),
    ];
    let statuses: Vec<Object> = parts
        .into_iter()
        .filter(|(name, _)| is_selected(name))
        .filter_map(|(name, health)| {
            let condition = match health {
                Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
                Err(why) => json!({"type": "Healthy", "status": "False", "error": why}),
            };
            let value = json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]});
            value.as_object().cloned()
        })
        .collect();
    context.warn("v1 ComponentStatus is deprecated in v1.19+".to_owned());
    let accept = context.accept()?;
    if context.info.verb == "list" {
        return super::encode::list(served, context, &accept, &statuses, json!({}));
    }
    let resource = api::GroupResource { group: "", resource: "componentstatus" };
    let found = statuses.first().ok_or_else(|| ApiError::not_found(resource, &context.info.name))?;
    super::encode::object(served, context, &accept, found)
}
