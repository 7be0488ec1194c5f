//! The kubelet's own API on port 10250: what the API server proxies logs, exec, attach and port-forward to.
//!
//! Paths and query names are upstream's. A client shows a certificate or a token, and the API server says what it may do ([`auth`]).

mod auth;
mod follow;
pub(crate) mod log_format;
mod logs;
mod relay;
mod routes;
mod stats;

use std::convert::Infallible;
use std::sync::Arc;

use client::{Drain, Informer};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::Pod;
use serving::{Handler, Peer, Port, Quota};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use self::auth::{Auth, Refusal};
pub use self::follow::FolderWatch;
use crate::context::Context;
use crate::spec;

/// More than any cluster's API servers, scrapers and probes need at a time.
const MAX_CONNECTIONS: usize = 1000;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) struct Server {
    pub(crate) context: Arc<Context>,
    pub(crate) pods: Informer<Pod>,
    /// Pods that the API knows only by their mirrors.
    pub(crate) static_pods: watch::Receiver<Vec<Arc<Pod>>>,
    /// Counts runtime events, so that a followed log notices its container's end.
    pub(crate) news: watch::Receiver<u64>,
    /// As it is at the moment of a handshake.
    pub(crate) tls: watch::Receiver<Arc<rustls::ServerConfig>>,
}

/// One client's connection.
struct Connection {
    server: Arc<Server>,
    auth: Arc<Auth>,
    holder: Option<UserInfo>,
}

impl Handler for Connection {
    type Body = Body;

    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method(), request.uri().path());
        match self.auth.check(self.holder.as_ref(), method, path, request.headers()).await {
            Ok(()) => self.server.clone().handle(request).await,
            Err(Refusal::Unauthorized) => text(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()),
            Err(Refusal::Forbidden(message)) => text(StatusCode::FORBIDDEN, message),
            Err(Refusal::Unknown(message)) => text(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

impl Server {
    pub(crate) async fn run(self, listener: TcpListener, drain: Drain) {
        let auth = Arc::new(Auth::new(self.context.client.clone(), &self.context.node_name));
        let (tls, server) = (self.tls.clone(), Arc::new(self));
        // What pods of this node open here must leave room for the API server.
        let quota = Quota::new(MAX_CONNECTIONS, MAX_CONNECTIONS / 4);
        let port = Port { listener, tls, quota, drain, tasks: TaskTracker::new() };
        serving::serve(port, move |peer: Peer<'_>| {
            let leaf = peer.session.peer_certificates().and_then(|chain| chain.first());
            Connection { server: server.clone(), auth: auth.clone(), holder: leaf.and_then(|leaf| auth::holder(leaf)) }
        })
        .await;
    }

    /// By namespace and name; a static pod is found under its mirror's name.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let is = |pod: &&Arc<Pod>| spec::namespace(pod) == namespace && spec::name(pod) == name;
        let own = self.static_pods.borrow().iter().find(is).cloned();
        own.or_else(|| self.pods.get(&client::Key::new(namespace, name)))
    }
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

pub(crate) fn text(status: StatusCode, message: String) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", message)
}

pub(crate) fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static(content_type));
    response
}
