//! The tokens a node may ask for: those of its own pods, for the audiences they name.

use std::sync::Arc;

use api::{ApiError, GroupResource, Object, ObjectExt as _};
use serde_json::Value;

use super::super::{Attributes, Operation};
use super::node_of;
use crate::auth::{Access, decide};
use crate::server::ApiServer;

pub(super) async fn check(
    server: &Arc<ApiServer>,
    node: &str,
    attributes: &Attributes<'_>,
    request: &Object,
) -> Result<(), ApiError> {
    if attributes.operation != Operation::Create || attributes.subresource != "token" {
        return Ok(());
    }
    let bound = |field: &str| request.text(&["spec", "boundObjectRef", field]);
    let name = bound("name");
    if (bound("apiVersion"), bound("kind")) != ("v1", "Pod") || name.is_empty() {
        return Err(attributes.forbidden("node requested token not bound to a pod"));
    }
    let uid = bound("uid");
    if uid.is_empty() {
        return Err(attributes.forbidden("node requested token with a pod binding without a uid"));
    }
    let pod = server.cached("", "pods", &format!("{}/{name}", attributes.namespace));
    let pod = pod.ok_or_else(|| ApiError::not_found(GroupResource { group: "", resource: "pod" }, name))?;
    if uid != pod.uid() {
        return Err(attributes.forbidden(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        )));
    }
    if node_of(&pod) != node {
        return Err(attributes.forbidden("node requested token bound to a pod scheduled on a different node"));
    }
    audience(server, attributes, request, &pod).await
}

async fn audience(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    request: &Object,
    pod: &Object,
) -> Result<(), ApiError> {
    let asked = request.at(&["spec", "audiences"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let audience = match asked {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err(attributes.forbidden("node may only request 0 or 1 audiences")),
    };
    if is_named(server, pod, audience) {
        return Ok(());
    }
    let Some(user) = attributes.user() else { return Ok(()) };
    let access = Access {
        is_resource: true,
        verb: "request-serviceaccounts-token-audience",
        version: "v1",
        namespace: attributes.namespace,
        resource: audience,
        name: attributes.name,
        ..Access::default()
    };
    if decide(server, user, &access).await.is_allowed() {
        return Ok(());
    }
    Err(attributes.forbidden(format!(
        "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        user.name
    )))
}

/// A volume of the pod asks for the audience, itself or through the driver that mounts it.
fn is_named(server: &ApiServer, pod: &Object, audience: &str) -> bool {
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    volumes.filter_map(Value::as_object).any(|volume| {
        let sources = volume.at(&["projected", "sources"]).and_then(Value::as_array).into_iter().flatten();
        let mut tokens = sources.filter_map(|source| source.get("serviceAccountToken")?.as_object());
        tokens.any(|token| token.text(&["audience"]) == audience)
            || driver(server, pod, volume).is_some_and(|driver| driver_names(server, &driver, audience))
    })
}

fn driver(server: &ApiServer, pod: &Object, volume: &Object) -> Option<String> {
    let inline = volume.text(&["csi", "driver"]);
    if !inline.is_empty() {
        return Some(inline.to_owned());
    }
    let claim = match volume.text(&["persistentVolumeClaim", "claimName"]) {
        "" => volume.get("ephemeral").map(|_| format!("{}-{}", pod.name(), volume.text(&["name"])))?,
        name => name.to_owned(),
    };
    let claim = server.cached("", "persistentvolumeclaims", &format!("{}/{claim}", pod.namespace()))?;
    let volume = server.cached("", "persistentvolumes", claim.text(&["spec", "volumeName"]))?;
    Some(volume.text(&["spec", "csi", "driver"]).to_owned())
}

fn driver_names(server: &ApiServer, driver: &str, audience: &str) -> bool {
    let Some(driver) = server.cached("storage.k8s.io", "csidrivers", driver) else { return false };
    let requests = driver.at(&["spec", "tokenRequests"]).and_then(Value::as_array).into_iter().flatten();
    requests.filter_map(Value::as_object).any(|request| request.text(&["audience"]) == audience)
}
