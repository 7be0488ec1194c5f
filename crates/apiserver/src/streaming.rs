//! Requests that are passed on: logs, exec, attach and port-forward to the kubelet, proxies to pods, services and nodes.

mod admitted;
mod connect;
mod log;
mod proxy;
mod rewrite;
mod socket;
mod target;
mod translate;
mod tunnel;

use std::sync::Arc;

use ::http::{Method, Request, Response};
use api::ApiError;
use api::status::Details;

pub(crate) use self::connect::{carry, outgoing};
pub(crate) use self::target::{escape_path, service_endpoint};
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
    let action = context.info.subresource.as_str();
    let is_known = match *request.method() {
        Method::GET => true,
        Method::POST => action != "log",
        _ => action == "proxy",
    };
    if !is_known {
        let why = "the server does not allow this method on the requested resource";
        return Err(ApiError::new(405, "MethodNotAllowed", why).with(Details::default()));
    }
    if matches!(action, "exec" | "attach" | "portforward") {
        // A WebSocket begins with a GET; running something in a pod is still not reading.
        let wanted = RequestInfo { verb: "create", ..context.info.clone() };
        auth::authorize(server, &context.user, &wanted).await?;
    }
    if action == "log" {
        // A log is text whatever is accepted, but what is accepted must make sense.
        context.accept()?;
    }
    server.feed.current().await.map_err(crate::server::store_error)?;
    if action == "log" {
        return log::answer(server, context).await;
    }
    let admitted = admitted::query(server, served, context).await?;
    if action == "proxy" {
        let path = admitted.as_ref().map(|options| options.get("path").unwrap_or_default());
        return proxy::answer(server, context, path, request).await;
    }
    let query = admitted.as_ref().unwrap_or(&context.query);
    let target = target::of_action(server, context, query)?;
    if !connect::is_upgrade(request.headers()) {
        return Err(ApiError::bad_request("Upgrade request required"));
    }
    let kubelet = &server.config.kubelet;
    // Kubelets and runtimes of every age speak SPDY. Two kinds of WebSocket are therefore turned into it here.
    match (action, socket::protocols(request.headers())) {
        ("exec" | "attach", offered) if offered.contains(&translate::V5) => {
            translate::serve(kubelet, &target, query, request).await
        }
        ("portforward", offered) if offered.iter().any(|protocol| protocol.starts_with(tunnel::PREFIX)) => {
            tunnel::serve(kubelet, &target, request).await
        }
        _ => connect::upgrade(kubelet, &target, request).await,
    }
}
