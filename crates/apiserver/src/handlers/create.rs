//! POST to a collection.

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::ApiError;

use super::{Writer, read_object, respond_object, signing};
use crate::field_manager::{self, Tracking};
use crate::http::Body;
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let dry_run = context.dry_run("CreateOptions")?;
    let mut object = read_object(served, context, body).await?;
    signing::set_requester(served, context, &mut object);
    let manager = field_manager::of_request(context);
    let tracking = Tracking::Update(&manager);
    let writer = Writer { server, served, context: Some(context), subresource: "", dry_run, tracking };
    let created = writer.create(&context.info.namespace, object).await?;
    respond_object(served, StatusCode::CREATED, context, &accept, &created)
}
