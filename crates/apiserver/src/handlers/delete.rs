//! DELETE of one object or of a collection: preconditions, grace, propagation, finalizers.

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::field::FieldError;
use api::{ApiError, GroupResource, Object, ObjectExt as _};
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{Selection, list_meta};
use super::{Writer, respond_object};
use crate::admission::{self, Operation};
use crate::convert;
use crate::field_manager::Tracking;
use crate::http::{self, Body, respond};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::{ApiServer, ServerError};
use crate::storage::Precondition;
use crate::strategy;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    pub(crate) preconditions: Option<Preconditions>,
    dry_run: Vec<String>,
}

impl DeleteOptions {
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run.iter().any(|value| value == "All")
    }

    /// What of them was said, as it was.
    pub(crate) fn told(&self) -> Object {
        let conditions = self.preconditions.as_ref().map(|wanted| {
            let texts = [("uid", &wanted.uid), ("resourceVersion", &wanted.resource_version)];
            let said = texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text.clone()?.into())));
            Value::Object(said.collect())
        });
        let fields = [
            ("gracePeriodSeconds", self.grace_period_seconds.map(Value::from)),
            ("propagationPolicy", self.propagation_policy.clone().map(Value::from)),
            ("orphanDependents", self.orphan_dependents.map(Value::from)),
            ("preconditions", conditions),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    fn validate(&self) -> Result<(), ApiError> {
        const POLICIES: [&str; 4] = ["Foreground", "Background", "Orphan", "nil"];
        let mut errors = Vec::new();
        if let Some(policy) = &self.propagation_policy {
            if self.orphan_dependents.is_some() {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                errors.push(FieldError::invalid("propagationPolicy", policy.as_str(), detail));
            } else if !POLICIES.contains(&policy.as_str()) {
                errors.push(FieldError::not_supported("propagationPolicy", policy.as_str(), &POLICIES));
            }
        }
        if self.dry_run.iter().any(|value| value != "All") {
            errors.push(FieldError::not_supported("dryRun", json!(self.dry_run), &["All"]));
        }
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &errors)) }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

/// What became of a deletion.
pub(crate) enum Deleted {
    /// Gone; this is what it last was.
    Gone(Object),
    /// Marked; finalizers or a grace period hold it.
    Pending(Object),
}

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let info = &context.info;
    let options = read_options(context, body).await?;
    let writer = writer(server, served, context, &options)?;
    match writer.delete(&info.namespace, &info.name, &options).await? {
        Deleted::Pending(object) => Ok(respond_object(served, StatusCode::OK, context, &accept, &object)),
        Deleted::Gone(object) if strategy::returns_deleted(&served.info.group, &served.info.plural) => {
            Ok(respond_object(served, StatusCode::OK, context, &accept, &object))
        }
        Deleted::Gone(object) => {
            let details = api::status::Details {
                name: info.name.clone(),
                group: served.info.group.clone(),
                kind: served.info.plural.clone(),
                uid: object.uid().to_owned(),
                ..Default::default()
            };
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details.to_json()});
            Ok(respond(StatusCode::OK, &accept, &status))
        }
    }
}

pub(super) async fn collection(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let options = read_options(context, body).await?;
    let selection = Selection::of(served, context)?;
    let writer = writer(server, served, context, &options)?;
    server.feed.current().await.map_err(crate::server::store_error)?;
    let snapshot = writer.cache()?.snapshot();
    let mut items = Vec::new();
    for stored in snapshot.objects.values() {
        if !selection.selects(server, served, stored).await? {
            continue;
        }
        match writer.delete(stored.namespace(), stored.name(), &options).await {
            Ok(Deleted::Gone(object) | Deleted::Pending(object)) => items.push(Value::Object(object)),
            Err(error) if error.code == 404 => (),
            Err(error) => return Err(error),
        }
    }
    let list = json!({
        "kind": served.list_kind, "apiVersion": served.info.api_version(),
        "metadata": list_meta(served, server.feed.applied()), "items": items,
    });
    Ok(respond(StatusCode::OK, &accept, &list))
}

fn writer<'a>(
    server: &'a Arc<ApiServer>,
    served: &'a Served,
    context: &'a Context,
    options: &DeleteOptions,
) -> Result<Writer<'a>, ApiError> {
    let dry_run = context.dry_run("DeleteOptions")? || options.is_dry_run();
    Ok(Writer { server, served, context: Some(context), subresource: "", dry_run, tracking: Tracking::None })
}

async fn read_options(context: &Context, body: Body) -> Result<DeleteOptions, ApiError> {
    let bytes = http::read(body).await?;
    let mut options = if bytes.is_empty() {
        DeleteOptions::default()
    } else {
        let object = http::decode_object(&context.headers, &bytes, "DeleteOptions")?;
        serde_json::from_value(Value::Object(object))
            .map_err(|error| ApiError::bad_request(format!("could not decode DeleteOptions: {error}")))?
    };
    if let Some(seconds) = context.query.number("gracePeriodSeconds") {
        options.grace_period_seconds = Some(seconds);
    }
    if let Some(policy) = context.query.get("propagationPolicy") {
        options.propagation_policy = Some(policy.to_owned());
    }
    options.validate()?;
    if let (None, Some(orphan)) = (&options.propagation_policy, options.orphan_dependents) {
        options.propagation_policy = Some(if orphan { "Orphan" } else { "Background" }.to_owned());
    }
    Ok(options)
}

impl Writer<'_> {
    pub(crate) async fn delete(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        loop {
            match self.delete_once(namespace, name, options).await {
                Ok(deleted) => return Ok(deleted),
                Err(ServerError::Unmet(revision) | ServerError::Claimed(revision)) => {
                    self.server.feed.reached(revision).await;
                }
                Err(ServerError::Api(error)) => return Err(error),
            }
        }
    }

    async fn delete_once(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, ServerError> {
        let (stored, old) = self.current(namespace, name).await?;
        self.check_preconditions(&old, options)?;
        let mut attributes = self.attributes(Operation::Delete, namespace, name, Some(&old));
        attributes.delete_options = Some(options);
        let mut seen = Object::new();
        admission::mutate(self.server, &attributes, &mut seen).await?;
        admission::judge(self.server, &attributes, &seen).await?;
        let mut new = old.clone();
        if !old.is_terminating() {
            self.served.strategy().prepare_for_delete(&mut new);
        }
        propagate(&mut new, options.propagation_policy.as_deref());
        let grace = self.served.strategy().grace_period(&old, options.grace_period_seconds).unwrap_or(0);
        self.mark(&mut new, &old, grace);
        let pending = !new.finalizers().is_empty() || grace > 0 || is_namespace_held(self.served, &new);
        if self.dry_run {
            return Ok(if pending { Deleted::Pending(new) } else { Deleted::Gone(new) });
        }
        let key = self.served.key(namespace, name);
        let cache = self.cache()?;
        if !pending {
            let freed = admission::quota::charge(self.server, &attributes, Some(&old), None).await?;
            cache.delete(self.server.store(), &key, stored.revision, freed).await?;
            // What can go gracefully is shown as it went.
            let graceful = self.served.strategy().grace_period(&old, Some(0)).is_some();
            return Ok(Deleted::Gone(if graceful { new } else { old }));
        }
        if new == old {
            return Ok(Deleted::Pending(new));
        }
        let object = convert::to_storage(self.server, self.served, &new).await?;
        let revision =
            cache.put(self.server.store(), &key, &object, Precondition::At(stored.revision), Vec::new()).await?;
        if self.served.info.kind == "Namespace" {
            // Once its deletion is acknowledged, nothing more is created in it.
            self.server.feed.reached(revision).await;
        }
        new.metadata().insert("resourceVersion".into(), revision.to_string().into());
        Ok(Deleted::Pending(new))
    }

    fn check_preconditions(&self, old: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
        let Some(wanted) = &options.preconditions else { return Ok(()) };
        let checks =
            [("UID", &wanted.uid, old.uid()), ("ResourceVersion", &wanted.resource_version, old.resource_version())];
        for (what, wanted, found) in checks {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been deleted and then recreated"
                );
                // Upstream names the kind here, not the resource.
                let kind = GroupResource { group: &self.served.info.group, resource: &self.served.info.kind };
                return Err(ApiError::conflict(kind, old.name(), why));
            }
        }
        Ok(())
    }

    /// Sets the time by which the object must be gone; a second deletion can only bring it nearer.
    fn mark(&self, new: &mut Object, old: &Object, grace: i64) {
        let before = old.at(&["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
        if old.is_terminating() && before.is_none_or(|before| before <= grace) {
            return;
        }
        let deadline = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(grace.clamp(0, 1 << 31));
        let metadata = new.metadata();
        metadata.insert("deletionTimestamp".into(), deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into());
        // Both go through stages of their own.
        let is_staged = matches!(self.served.info.kind.as_str(), "Namespace" | "CustomResourceDefinition");
        if !is_staged {
            metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
        }
        let counts = !old.is_terminating() && self.served.info.kind != "CustomResourceDefinition";
        let counted = metadata.get("generation").and_then(Value::as_i64).filter(|_| counts);
        if let Some(generation) = counted {
            metadata.insert("generation".into(), (generation + 1).into());
        }
        if self.served.info.kind == "Namespace" {
            new.at_mut(&["status"]).insert("phase".into(), "Terminating".into());
        }
    }
}

fn is_namespace_held(served: &Served, object: &Object) -> bool {
    let finalizers = object.at(&["spec", "finalizers"]).and_then(Value::as_array);
    served.info.kind == "Namespace" && finalizers.is_some_and(|list| !list.is_empty())
}

/// The garbage collector reads the policy from finalizers.
fn propagate(object: &mut Object, policy: Option<&str>) {
    let wanted = match policy {
        Some("Foreground") => Some("foregroundDeletion"),
        Some("Orphan") => Some("orphan"),
        Some(_) => None,
        None => return,
    };
    let mut finalizers: Vec<String> = object.finalizers().into_iter().map(ToOwned::to_owned).collect();
    finalizers.retain(|f| f != "foregroundDeletion" && f != "orphan");
    finalizers.extend(wanted.map(ToOwned::to_owned));
    if finalizers.is_empty() {
        object.metadata().remove("finalizers");
    } else {
        object.metadata().insert("finalizers".into(), json!(finalizers));
    }
}
