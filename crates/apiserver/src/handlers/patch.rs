//! PATCH in its formats.

use std::sync::Arc;

use ::http::{Response, StatusCode, header};
use api::patch::{PatchError, json_patch, merge_patch, strategic_merge};
use api::{ApiError, Object};
use serde_json::Value;

use super::{Writer, apply, conform, respond_object};
use crate::field_manager::{self, Tracking};
use crate::http::{self, Body};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

const UNSUPPORTED: &str = "415: Unsupported Media Type";
const UNSUPPORTED_CUSTOM: &str = "the body of the request was in an unknown format - accepted media types include: \
                                  application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

#[derive(Clone, Copy)]
enum Format {
    Json,
    Merge,
    Strategic,
}

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let info = &context.info;
    let content_type = context.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let format = match content_type.split(';').next().unwrap_or_default().trim() {
        "application/json-patch+json" => Format::Json,
        "application/merge-patch+json" => Format::Merge,
        "application/strategic-merge-patch+json" if served.custom().is_none() => Format::Strategic,
        "application/apply-patch+yaml" => return apply::answer(server, served, context, body).await,
        _ if served.custom().is_some() => return Err(ApiError::unsupported_media_type(UNSUPPORTED_CUSTOM)),
        _ => return Err(ApiError::unsupported_media_type(UNSUPPORTED)),
    };
    apply::refuse_force(context)?;
    let bytes = http::read(body).await?;
    let patch: Value = serde_json::from_slice(&bytes)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    let manager = field_manager::of_request(context, "PatchOptions")?;
    let tracking = Tracking::Update(&manager);
    let writer = Writer {
        server,
        served,
        context: Some(context),
        subresource: &info.subresource,
        dry_run: context.dry_run("PatchOptions")?,
        tracking,
    };
    let updated = writer
        .update(&info.namespace, &info.name, |current| {
            let patched = patched(served, format, current, &patch)?;
            conform(served, context, patched, &[])
        })
        .await?;
    Ok(respond_object(served, StatusCode::OK, context, &accept, &updated))
}

fn patched(served: &Served, format: Format, current: &Object, patch: &Value) -> Result<Object, ApiError> {
    let mut value = Value::Object(current.clone());
    let applied = match format {
        Format::Json => json_patch(&mut value, patch),
        Format::Merge => {
            merge_patch(&mut value, patch);
            Ok(())
        }
        Format::Strategic => strategic_merge(&mut value, patch, &served.schema),
    };
    applied.map_err(|error| match error {
        PatchError::Malformed(why) => ApiError::bad_request(why),
        PatchError::Unfit(why) | PatchError::TestFailed(why) => ApiError::new(
            422,
            "Invalid",
            format!("the server rejected our request due to an error in our request: {why}"),
        ),
    })?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(ApiError::bad_request("the patched object is not an object")),
    }
}
