//! The kubelet's own API on port 10250: what the API server proxies logs, exec, attach and port-forward to.
//!
//! Paths and query names are upstream's. Only the API server's kubelet client and `system:masters` are let in; that the
//! certificate is genuine is the TLS configuration's business.

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
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use k8s_openapi::api::core::v1::Pod;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

pub use self::follow::FolderWatch;
use crate::context::Context;
use crate::spec;

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

impl Server {
    pub(crate) async fn run(self, listener: TcpListener, drain: Drain) {
        let server = Arc::new(self);
        let connections = TaskTracker::new();
        while let Some(accepted) = drain.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    let connection = server.clone().connection(stream);
                    connections.spawn(drain.clone().run_until_cancelled_owned(connection));
                }
                // Out of files, most likely: others must close theirs first.
                Err(error) => {
                    tracing::warn!(%error, "connection could not be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
        connections.close();
        connections.wait().await;
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let acceptor = tokio_rustls::TlsAcceptor::from(self.tls.borrow().clone());
        let stream = match acceptor.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "TLS handshake failed");
                return;
            }
        };
        let (_, session) = stream.get_ref();
        let client = session.peer_certificates().and_then(|chain| chain.first()).and_then(|leaf| auth::client(leaf));
        let allowed = client.as_ref().is_some_and(auth::Client::may_use_kubelet);
        let service = service_fn(move |request: Request<Incoming>| {
            let server = self.clone();
            let client = client.clone();
            async move {
                Ok::<_, Infallible>(match client {
                    Some(_) if allowed => server.handle(request).await,
                    Some(client) => forbidden(&client.name, &request),
                    None => text(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()),
                })
            }
        });
        let builder = auto::Builder::new(TokioExecutor::new());
        if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// By namespace and name; a static pod is found under its mirror's name.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let is = |pod: &&Arc<Pod>| spec::namespace(pod) == namespace && spec::name(pod) == name;
        let own = self.static_pods.borrow().iter().find(is).cloned();
        own.or_else(|| self.pods.get(&client::Key::new(namespace, name)))
    }
}

fn forbidden(user: &str, request: &Request<Incoming>) -> Response<Body> {
    let message = format!("Forbidden (user={user}, verb=get, resource=nodes, path={})", request.uri().path());
    text(StatusCode::FORBIDDEN, message)
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
