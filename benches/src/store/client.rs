//! The client both sides are asked with.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use store::etcd::proto::etcdserverpb::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, kv_client::KvClient, request_op::Request,
};
use tonic::transport::{Channel, Endpoint};

pub(super) const PREFIX: &str = "/registry/objects/";
/// The key behind all that begin with the prefix.
pub(super) const PREFIX_END: &str = "/registry/objects0";

pub(super) fn key(index: usize) -> String {
    format!("{PREFIX}{index:08}")
}

/// What a peer may send before it is told to go on: enough that large answers do not wait for it.
const WINDOW_BYTES: u32 = 32 << 20;

/// A connection of its own.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) channel: Channel,
    kv: KvClient<Channel>,
}

impl Client {
    pub(super) async fn connect(url: &str) -> Result<Client> {
        let endpoint = Endpoint::new(url.to_owned())?.tcp_nodelay(true);
        let endpoint = endpoint.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let channel = endpoint.connect().await?;
        Ok(Client { kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX), channel })
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
