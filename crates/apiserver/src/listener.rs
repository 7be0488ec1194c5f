//! The secure port: requests with the address and certificate of their client, over [`serving`].

mod tls;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use serving::{Handler, Peer, Port, Quota};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use self::tls::{ShownByName, TlsSettings, tls_config};
use crate::audit::ClientAddress;
use crate::auth::x509::Holder;
use crate::http::{Body, BoxError};
use crate::server::ApiServer;

/// The connection that a request came on, where it carries many at a time.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) u64);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the TLS configuration cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Flag(String),
    #[error("the client certificate authorities cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl ApiServer {
    /// Serves until drained; then no connection is accepted and those open get a moment to finish.
    ///
    /// A connection takes `tls` as it is when the connection begins.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: watch::Receiver<Arc<ServerConfig>>) {
        // Flow control limits what connections carry.
        let (quota, drain, tasks) = (Quota::unlimited(), self.drain.clone(), self.tasks.clone());
        serving::serve(Port { listener, tls, quota, drain, tasks }, move |peer| Connection::new(self.clone(), &peer))
            .await;
    }
}

/// One client's connection.
struct Connection {
    server: Arc<ApiServer>,
    address: Option<ClientAddress>,
    shared: Option<Shared>,
    holder: Option<Holder>,
}

impl Connection {
    fn new(server: Arc<ApiServer>, peer: &Peer<'_>) -> Self {
        let chain = peer.session.peer_certificates();
        Self {
            address: peer.address.map(|address| ClientAddress(address.ip())),
            shared: peer.shared.map(Shared),
            holder: chain.map(|chain| Holder::new(chain, &server.certificates, UnixTime::now())),
            server,
        }
    }
}

impl Handler for Connection {
    type Body = Body;

    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let mut request = request.map(boxed);
        if let Some(address) = self.address {
            request.extensions_mut().insert(address);
        }
        if let Some(shared) = self.shared {
            request.extensions_mut().insert(shared);
        }
        if let Some(holder) = &self.holder {
            request.extensions_mut().insert(holder.at(UnixTime::now(), &self.server.certificates));
        }
        self.server.clone().handle(request).await
    }
}

fn boxed(body: Incoming) -> Body {
    body.map_frame(|frame| frame.map_data(Bytes::from)).map_err(BoxError::from).boxed_unsync()
}
