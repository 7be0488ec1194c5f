//! Requests that are passed on: logs, exec, attach and port-forward to the kubelet, proxies to pods, services and nodes.

mod admitted;
mod connect;
mod socket;
mod target;
mod translate;
mod tunnel;

use std::sync::Arc;

use ::http::{Request, Response};
use api::ApiError;

pub(crate) use self::connect::{carry, outgoing};
pub(crate) use self::target::service_endpoint;
use crate::auth;
use crate::http::Body;
use crate::pipeline::Context;
use crate::registry::Served;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

pub(crate) fn is_stream(served: &Served, info: &RequestInfo) -> bool {
    let streams = matches!(info.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy");
    streams && served.info.has_subresource(&info.subresource)
}

/// Finds where the request goes, and carries it there and the answer back.
pub(crate) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    if matches!(context.info.subresource.as_str(), "exec" | "attach" | "portforward") {
        // A WebSocket begins with a GET; running something in a pod is still not reading.
        let wanted = RequestInfo { verb: "create", ..context.info.clone() };
        auth::authorize(server, &context.user, &wanted).await?;
    }
    server.feed.current().await.map_err(crate::server::store_error)?;
    let admitted = match context.info.subresource.as_str() {
        "log" => None,
        _ => admitted::query(server, served, context).await?,
    };
    let query = admitted.as_ref().unwrap_or(&context.query);
    let target = target::of(server, context, query)?;
    let kubelet = &server.config.kubelet;
    // Kubelets and runtimes of every age speak SPDY. Two kinds of WebSocket are therefore turned into it here.
    match (context.info.subresource.as_str(), socket::protocols(request.headers())) {
        ("exec" | "attach", offered) if offered.contains(&translate::V5) => {
            translate::serve(kubelet, &target, query, request).await
        }
        ("portforward", offered) if offered.iter().any(|protocol| protocol.starts_with(tunnel::PREFIX)) => {
            tunnel::serve(kubelet, &target, request).await
        }
        _ => connect::forward(kubelet, &target, request).await,
    }
}
