//! Removes the objects of a definition that is deleted, then lets it go.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use serde_json::Value;

use super::conditions::{self, CLEANUP, set_condition};
use super::resources::Entry;
use crate::field_manager::Tracking;
use crate::handlers::{DeleteOptions, Writer};
use crate::registry::Served;
use crate::server::ApiServer;

/// Begins the cleanup of a definition, unless it is under way.
pub(super) fn start(server: &Arc<ApiServer>, definitions: &Arc<Served>, definition: &Object) {
    let (name, uid) = (definition.name().to_owned(), definition.uid().to_owned());
    if !server.cleaning.lock().insert(uid.clone()) {
        return;
    }
    let (server, definitions) = (server.clone(), definitions.clone());
    let drain = server.drain.clone();
    let tasks = server.tasks.clone();
    tasks.spawn(drain.run_until_cancelled_owned(async move {
        if let Err(error) = clean(&server, &definitions, &name).await {
            tracing::error!(definition = %name, message = %error.message, "objects cannot be removed");
            tokio::time::sleep(super::controller::RETRY).await;
        }
        server.cleaning.lock().remove(&uid);
        // What is still there is begun again.
        if let Some(left) = definitions.cache.as_ref().and_then(|cache| cache.get(&name)).map(|left| left.decode())
            && left.uid() == uid
            && left.finalizers().contains(&CLEANUP)
        {
            start(&server, &definitions, &left);
        }
    }));
}

async fn clean(server: &Arc<ApiServer>, definitions: &Served, name: &str) -> Result<(), ApiError> {
    let tracking = Tracking::Update("kube-apiserver");
    let writer = Writer { server, served: definitions, subresource: "status", dry_run: false, tracking, context: None };
    let in_progress = |definition: &Object| {
        let mut new = definition.clone();
        let message = "CustomResource deletion is in progress";
        set_condition(&mut new, "Terminating", "True", "InstanceDeletionInProgress", message);
        Ok(new)
    };
    let definition = match writer.update("", name, in_progress).await {
        Err(error) if error.code == 404 => return Ok(()),
        written => written?,
    };
    let (reason, message) = match server.custom.entry(name) {
        Some(entry) if conditions::is_true(&definition, "Established") => {
            empty(server, &entry).await?;
            ("InstanceDeletionCompleted", "removed all instances")
        }
        _ => ("NeverEstablished", "resource was never established"),
    };
    let done = |definition: &Object| {
        let mut new = definition.clone();
        set_condition(&mut new, "Terminating", "False", reason, message);
        Ok(new)
    };
    let others_hold_it = definition.finalizers().iter().any(|finalizer| *finalizer != CLEANUP);
    if others_hold_it {
        writer.update("", name, done).await?;
    }
    let writer = Writer { subresource: "", tracking: Tracking::None, ..writer };
    let released = |definition: &Object| {
        let mut new = definition.clone();
        if let Some(list) = new.metadata().get_mut("finalizers").and_then(Value::as_array_mut) {
            list.retain(|finalizer| finalizer != CLEANUP);
        }
        Ok(new)
    };
    match writer.update("", name, released).await {
        Err(error) if error.code == 404 => Ok(()),
        written => written.map(|_| ()),
    }
}

/// Deletes every object, and waits for those that something holds.
async fn empty(server: &Arc<ApiServer>, entry: &Entry) -> Result<(), ApiError> {
    let writer = Writer {
        server,
        served: &entry.stored,
        subresource: "",
        dry_run: false,
        tracking: Tracking::None,
        context: None,
    };
    server.feed.current().await.map_err(crate::server::store_error)?;
    let Ok((mut place, snapshot)) = entry.cache.watch_from(None) else { return Ok(()) };
    snapshot.check_prefix("")?;
    for object in snapshot.objects.values() {
        match writer.delete(object.namespace(), object.name(), &DeleteOptions::default()).await {
            Err(error) if error.code != 404 => return Err(error),
            _ => (),
        }
    }
    server.feed.current().await.map_err(crate::server::store_error)?;
    loop {
        let left = entry.cache.snapshot();
        // An object that cannot be read still exists.
        left.check_prefix("")?;
        if left.objects.is_empty() {
            return Ok(());
        }
        tokio::select! {
            changed = place.next() => {
                if changed.is_err() {
                    return Err(ApiError::unavailable("the store was read again"));
                }
            }
            // Something else is served under this name: the rest is for whoever cleans up that.
            () = entry.retired.cancelled() => return Err(ApiError::unavailable("the definition changed")),
        }
    }
}
