//! PATCH with an applied configuration: server-side apply, which also creates.

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::Value;

use super::{Writer, conform, now, respond_object, update};
use crate::auth;
use crate::field_manager::{FieldManager, Tracking};
use crate::http::{self, Body};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

/// An object that is created and deleted again and again while it is applied.
const MAX_TRIES: usize = 10;

/// Only an apply can be forced.
pub(super) fn needless_force(context: &Context) -> Option<FieldError> {
    let force = context.query.first("force");
    force.map(|_| FieldError::forbidden("force", "may not be specified for non-apply patch"))
}

/// What an apply asks for beside its configuration.
pub(super) struct Options {
    pub(super) manager: String,
    pub(super) force: bool,
    pub(super) dry_run: bool,
}

/// The manager must be named.
pub(super) fn options(context: &Context) -> Result<Options, ApiError> {
    let manager = context.query.get("fieldManager");
    let nameless = || FieldError::required("fieldManager", "is required for apply patch");
    let wrong = manager.is_none().then(nameless);
    let dry_run = context.dry_run_after("PatchOptions", wrong)?;
    let insists = context.query.get("force").is_some() && context.query.flag("force");
    Ok(Options { manager: manager.unwrap_or_default().to_owned(), force: insists, dry_run })
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
        // Nothing is an object that says nothing.
        Ok((Value::Null, _)) => Ok(Object::new()),
        Ok((other, _)) => {
            let found = api::decode::go_kind(&other);
            Err(ApiError::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value \
                 of type map[string]interface {{}}"
            )))
        }
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
    let Options { manager, force, dry_run } = options(context)?;
    let config = read_config(context, body).await?;
    let writer = Writer {
        server,
        served,
        context: Some(context),
        subresource: &info.subresource,
        dry_run,
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
    match object.name() {
        "" => Err(ApiError::bad_request("name must be provided")),
        _ => update::check_place(served, info, object),
    }
}
