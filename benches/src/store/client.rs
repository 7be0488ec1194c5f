//! The client both sides are asked with.

use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use store::etcd::proto::etcdserverpb::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, kv_client::KvClient, request_op::Request,
    watch_client::WatchClient,
};
use tokio::net::TcpStream;
use tonic::{body::Body, codegen::Service};

pub(super) const PREFIX: &str = "/registry/objects/";
/// The key behind all that begin with the prefix.
pub(super) const PREFIX_END: &str = "/registry/objects0";

pub(super) fn key(index: usize) -> String {
    format!("{PREFIX}{index:08}")
}

/// What a peer may send before it is told to go on: enough that large answers do not wait for it.
const WINDOW_BYTES: u32 = 32 << 20;

/// An HTTP/2 connection without more: what the library adds for clients that reconnect and balance would be measured on both sides.
#[derive(Clone)]
pub(super) struct Connection(SendRequest<Body>);

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A connection of its own.
#[derive(Clone)]
pub(super) struct Client {
    kv: KvClient<Connection>,
    pub(super) watch: WatchClient<Connection>,
}

impl Client {
    pub(super) async fn connect(url: &str) -> Result<Client> {
        let address = url.strip_prefix("http://").context("the url is http://HOST:PORT")?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        // It ends with its last client, or with an error that the calls see.
        tokio::spawn(connection);
        let (connection, origin) = (Connection(sender), url.parse::<http::Uri>()?);
        let kv = KvClient::with_origin(connection.clone(), origin.clone()).max_decoding_message_size(usize::MAX);
        Ok(Client { kv, watch: WatchClient::with_origin(connection, origin) })
    }

    pub(super) async fn revision(&mut self) -> Result<i64> {
        let header = self.range(RangeRequest { count_only: true, ..all() }).await?.header;
        Ok(header.context("an answer without a header")?.revision)
    }

    pub(super) async fn put(&mut self, key: String, value: Bytes) -> Result<()> {
        self.kv.put(PutRequest { key: key.into(), value, ..Default::default() }).await?;
        Ok(())
    }

    pub(super) async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse> {
        Ok(self.kv.range(request).await?.into_inner())
    }

    /// Puts many keys at once, to fill a store rather than to measure it.
    pub(super) async fn fill(&mut self, keys: std::ops::Range<usize>, value: &Bytes) -> Result<()> {
        let put = |index| PutRequest { key: key(index).into(), value: value.clone(), ..Default::default() };
        let success = keys.map(|index| RequestOp { request: Some(Request::RequestPut(put(index))) }).collect();
        self.kv.txn(TxnRequest { success, ..Default::default() }).await?;
        Ok(())
    }
}

pub(super) fn all() -> RangeRequest {
    RangeRequest { key: PREFIX.into(), range_end: PREFIX_END.into(), ..Default::default() }
}
