//! PATCH with an applied configuration: server-side apply, which also creates.

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::Value;

use super::{Writer, conform, now, respond_object};
use crate::auth;
use crate::field_manager::{self, FieldManager, Tracking};
use crate::http::{self, Body};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

/// An object that is created and deleted again and again while it is applied.
const MAX_TRIES: usize = 10;

fn invalid(error: FieldError) -> ApiError {
    ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[error])
}

/// Only an apply can be forced.
pub(super) fn refuse_force(context: &Context) -> Result<(), ApiError> {
    if context.query.get("force").is_none() {
        return Ok(());
    }
    Err(invalid(FieldError::forbidden("force", "may not be specified for non-apply patch")))
}

/// The manager, which an apply must name, and whether it insists.
pub(super) fn options(context: &Context) -> Result<(String, bool), ApiError> {
    let manager = field_manager::checked(context, "PatchOptions")?;
    let missing = || invalid(FieldError::required("fieldManager", "is required for apply patch"));
    let force = context.query.get("force").is_some() && context.query.flag("force");
    Ok((manager.ok_or_else(missing)?, force))
}

pub(super) async fn read_config(context: &Context, body: Body) -> Result<Object, ApiError> {
    let bytes = http::read(body).await?;
    match http::yaml_tracked(&bytes) {
        Ok((Value::Object(config), twice)) => {
            match (twice, context.query.get("fieldValidation").unwrap_or("Warn")) {
                (Some(twice), "Strict") => {
                    let why = format!("error converting YAML to JSON: yaml: unmarshal errors:\n  {twice}");
                    return Err(ApiError::bad_request(format!("error strict decoding YAML: {why}")));
                }
                (Some(twice), "Warn") => context.warn(twice),
                _ => (),
            }
            Ok(config)
        }
        Ok(_) => Err(ApiError::bad_request("error decoding YAML: the configuration is not an object")),
        Err(error) => {
            let why = error.message.replace("error converting YAML to JSON: ", "");
            Err(ApiError::bad_request(format!("error decoding YAML: {why}")))
        }
    }
}

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let info = &context.info;
    let (manager, force) = options(context)?;
    let config = read_config(context, body).await?;
    let writer = Writer {
        server,
        served,
        context: Some(context),
        subresource: &info.subresource,
        dry_run: context.dry_run("PatchOptions")?,
        tracking: Tracking::Applied,
    };
    let fields = FieldManager { registry: &server.registry, served, subresource: &info.subresource };
    let applied = |live: Option<&Object>| {
        let object = fields.apply(live, &config, &manager, force, &now())?;
        let object = conform(served, context, object, &[])?;
        check_place(served, info, &object)?;
        Ok(object)
    };
    for _ in 0..MAX_TRIES {
        match writer.update(&info.namespace, &info.name, |live| applied(Some(live))).await {
            Err(error) if error.code == 404 && info.subresource.is_empty() => (),
            updated => return respond_object(served, StatusCode::OK, context, &accept, &updated?),
        }
        auth::authorize(server, &context.user, &RequestInfo { verb: "create", ..info.clone() }).await?;
        let object = applied(None)?;
        if !object.uid().is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                object.uid()
            );
            return Err(ApiError::conflict(served.group_resource(), &info.name, why));
        }
        match writer.create(&info.namespace, object).await {
            Err(error) if error.reason == "AlreadyExists" && !writer.dry_run => (),
            created => return respond_object(served, StatusCode::CREATED, context, &accept, &created?),
        }
    }
    Err(ApiError::conflict(served.group_resource(), &info.name, "the object changes too often"))
}

fn check_place(served: &Served, info: &RequestInfo, object: &Object) -> Result<(), ApiError> {
    let (name, namespace) = (object.name(), object.namespace());
    if served.info.namespaced && !namespace.is_empty() && namespace != info.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match name {
        "" => Err(ApiError::bad_request("name must be provided")),
        name if name != info.name => Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            info.name
        ))),
        _ => Ok(()),
    }
}
