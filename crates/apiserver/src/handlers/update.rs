//! PUT.

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::{ApiError, Object, ObjectExt as _};

use super::{Writer, read_object, respond_object};
use crate::auth;
use crate::field_manager::{self, Tracking};
use crate::http::Body;
use crate::pipeline::Context;
use crate::registry::Served;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

/// Of an object that says it lies elsewhere.
pub(super) const OTHER_NAMESPACE: &str =
    "the namespace of the provided object does not match the namespace sent on the request";

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let info = &context.info;
    let dry_run = context.dry_run("UpdateOptions")?;
    let object = read_object(served, context, body).await?;
    check_place(served, info, &object)?;
    let manager = field_manager::of_request(context);
    let tracking = Tracking::Update(&manager);
    let subresource = info.subresource.as_str();
    let writer = Writer { server, served, context: Some(context), subresource, dry_run, tracking };
    match writer.update(&info.namespace, &info.name, |_| Ok(object.clone())).await {
        Err(error) if error.code == 404 && info.subresource.is_empty() && served.strategy().creates_on_update() => {
            let wanted = RequestInfo { verb: "create", ..info.clone() };
            auth::authorize(server, &context.user, &wanted).await?;
            let created = writer.create(&info.namespace, object).await?;
            respond_object(served, StatusCode::CREATED, context, &accept, &created)
        }
        updated => respond_object(served, StatusCode::OK, context, &accept, &updated?),
    }
}

/// What is written is called as its path says, and lies there.
pub(super) fn check_place(served: &Served, info: &RequestInfo, object: &Object) -> Result<(), ApiError> {
    let (own, name, namespace) = (object.name(), &info.name, object.namespace());
    if served.info.namespaced && !namespace.is_empty() && namespace != info.namespace {
        return Err(ApiError::bad_request(OTHER_NAMESPACE));
    }
    if own.is_empty() {
        let why = format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
        return Err(ApiError::bad_request(why));
    }
    if own != name {
        let why = format!("the name of the object ({own}) does not match the name on the URL ({name})");
        return Err(ApiError::bad_request(why));
    }
    Ok(())
}
