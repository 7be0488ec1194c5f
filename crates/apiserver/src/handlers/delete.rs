//! DELETE of one object or of a collection: preconditions, grace, propagation, finalizers.

mod options;

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::{ApiError, GroupResource, Object, ObjectExt as _};
use serde_json::{Value, json};

pub(crate) use self::options::DeleteOptions;
use super::list::{Selection, page, page_meta};
use super::write::MAX_RETRIES;
use super::{Writer, encode, respond_object};
use crate::admission::{self, Operation};
use crate::convert;
use crate::field_manager::Tracking;
use crate::http::{Body, respond};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::{ApiServer, ServerError};
use crate::storage::Precondition;
use crate::strategy;

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
    let options = options::read(context, body).await?;
    let writer = writer(server, served, context, &options);
    match writer.delete(&info.namespace, &info.name, &options).await? {
        Deleted::Pending(object) => {
            let status = if options.orphan_dependents == Some(false) { StatusCode::ACCEPTED } else { StatusCode::OK };
            respond_object(served, status, context, &accept, &object)
        }
        Deleted::Gone(object) if strategy::returns_deleted(&served.info.group, &served.info.plural) => {
            respond_object(served, StatusCode::OK, context, &accept, &object)
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
    super::options::check(&context.query, false)?;
    let selection = Selection::of(served, context)?;
    let options = options::read(context, body).await?;
    let writer = writer(server, served, context, &options);
    // What a list with these parameters would show is deleted: a page, where it is to be one.
    let limit = usize::try_from(context.query.number("limit").unwrap_or(0)).unwrap_or(0);
    let page = page(server, served, context, &selection, if selection.is_converted() { 0 } else { limit }).await?;
    let mut shown = Vec::new();
    for stored in &page.items {
        if !selection.selects(server, served, stored).await? {
            continue;
        }
        match writer.delete(stored.namespace(), stored.name(), &options).await {
            Err(error) if error.code != 404 => return Err(error),
            _ => shown.push(convert::from_storage(server, served, stored).await?),
        }
    }
    let list = encode::list(served, context, &accept, &shown, page_meta(served, &page))?;
    Ok(respond(StatusCode::OK, &accept, &list))
}

fn writer<'a>(
    server: &'a Arc<ApiServer>,
    served: &'a Served,
    context: &'a Context,
    options: &DeleteOptions,
) -> Writer<'a> {
    let dry_run = options.is_dry_run();
    Writer { server, served, context: Some(context), subresource: "", dry_run, tracking: Tracking::None }
}

impl Writer<'_> {
    pub(crate) async fn delete(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        for _ in 0..MAX_RETRIES {
            match self.delete_once(namespace, name, options).await {
                Ok(deleted) => return Ok(deleted),
                Err(ServerError::Unmet(revision) | ServerError::Claimed(revision)) => {
                    self.server.feed.reached(revision).await;
                }
                Err(ServerError::Api(error)) => return Err(error),
            }
        }
        Err(ApiError::conflict(self.served.group_resource(), name, "the object changes too often"))
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
        if self.served.info.kind != "CustomResourceDefinition" {
            propagate(&mut new, options, self.served.strategy().orphans_by_default());
        }
        let grace = self.served.strategy().grace_period(&old, options.grace_period_seconds).unwrap_or(0);
        self.mark(&mut new, &old, grace);
        let pending = !new.finalizers().is_empty() || grace > 0 || is_namespace_held(self.served, &new);
        let key = self.served.key(namespace, name);
        let cache = self.cache()?;
        if !pending {
            if !self.dry_run {
                let freed = admission::quota::charge(self.server, &attributes, Some(&old), None).await?;
                cache.delete(self.server.store(), &key, stored.revision, freed).await?;
            }
            // What can go gracefully is shown as it went.
            let graceful = self.served.strategy().grace_period(&old, Some(0)).is_some();
            return Ok(Deleted::Gone(if graceful { new } else { old }));
        }
        if self.dry_run {
            return Ok(Deleted::Pending(new));
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

    pub(super) fn check_preconditions(&self, old: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
        let Some(wanted) = &options.preconditions else { return Ok(()) };
        let checks = [
            ("UID", &wanted.uid, old.uid(), "deleted and then recreated"),
            ("ResourceVersion", &wanted.resource_version, old.resource_version(), "modified"),
        ];
        for (what, wanted, found, happened) in checks {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been {happened}"
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

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The garbage collector reads the policy from finalizers. What is asked for counts before what the object says, and that
/// before what its kind has always done.
fn propagate(object: &mut Object, options: &DeleteOptions, orphans_by_default: bool) {
    let before: Vec<String> = object.finalizers().into_iter().map(ToOwned::to_owned).collect();
    let asked = match (options.orphan_dependents, options.propagation_policy.as_deref()) {
        (Some(orphan), _) => Some(orphan.then_some(ORPHAN)),
        (None, Some("Orphan")) => Some(Some(ORPHAN)),
        (None, Some("Foreground")) => Some(Some(FOREGROUND)),
        (None, Some("Background")) => Some(None),
        (None, _) => None,
    };
    let is_policy = |finalizer: &&str| matches!(*finalizer, FOREGROUND | ORPHAN);
    let said = || before.iter().map(String::as_str).find(is_policy);
    let wanted = asked.unwrap_or_else(|| said().or_else(|| orphans_by_default.then_some(ORPHAN)));
    let mut said = before.iter().map(String::as_str).filter(is_policy);
    if said.next() == wanted && said.all(|other| Some(other) == wanted) {
        return;
    }
    let mut after = before.clone();
    after.retain(|finalizer| !is_policy(&finalizer.as_str()));
    after.extend(wanted.map(ToOwned::to_owned));
    if after.is_empty() {
        object.metadata().remove("finalizers");
    } else {
        object.metadata().insert("finalizers".into(), json!(after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_say_what_becomes_of_dependents() {
        check(json!({}), &[], false, &[]);
        check(json!({}), &[], true, &["orphan"]);
        check(json!({}), &["foregroundDeletion", "a/b"], true, &["foregroundDeletion", "a/b"]);
        check(json!({"orphanDependents": false}), &["a/b"], true, &["a/b"]);
        check(json!({"propagationPolicy": "Background"}), &["orphan"], true, &[]);
        check(json!({"propagationPolicy": "Foreground"}), &["orphan", "a/b"], true, &["a/b", "foregroundDeletion"]);
        check(
            json!({"propagationPolicy": "Foreground"}),
            &["foregroundDeletion", "a/b"],
            false,
            &["foregroundDeletion", "a/b"],
        );
        check(json!({"propagationPolicy": "Orphan"}), &["foregroundDeletion", "orphan"], false, &["orphan"]);
    }

    #[track_caller]
    fn check(options: Value, before: &[&str], orphans_by_default: bool, want: &[&str]) {
        let mut object = Object::new();
        object.metadata().insert("finalizers".into(), json!(before));
        propagate(&mut object, &serde_json::from_value(options.clone()).unwrap(), orphans_by_default);
        assert_eq!(object.finalizers(), want, "{options} {before:?}");
    }
}
