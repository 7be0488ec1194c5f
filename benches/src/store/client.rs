//! The client both sides are asked with.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use prost::Message as _;
use store::etcd::proto::etcdserverpb::{
    PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, TxnRequest, request_op::Request,
};

use super::wire::Wire;

pub(super) const PREFIX: &str = "/registry/objects/";
/// The key behind all that begin with the prefix.
pub(super) const PREFIX_END: &str = "/registry/objects0";

/// So many puts of 2 KB in one transaction: what fits into the window a server opens at first.
pub(super) const TOGETHER: usize = 25;

pub(super) fn key(index: usize) -> String {
    format!("{PREFIX}{index:08}")
}

/// A connection of its own.
pub(super) struct Client(Wire);

impl Client {
    pub(super) async fn connect(url: &str) -> Result<Client> {
        Ok(Client(Wire::connect(url).await?))
    }

    pub(super) async fn revision(&mut self) -> Result<i64> {
        let header = self.range(RangeRequest { count_only: true, ..all() }).await?.header;
        Ok(header.context("an answer without a header")?.revision)
    }

    pub(super) async fn put(&mut self, key: String, value: Bytes) -> Result<()> {
        let put = PutRequest { key: key.into(), value, ..Default::default() };
        let answer = PutResponse::decode(self.0.call("/etcdserverpb.KV/Put", &put).await?)?;
        answer.header.filter(|header| header.revision > 0).context("an answer without a revision")?;
        Ok(())
    }

    pub(super) async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse> {
        Ok(RangeResponse::decode(self.0.call("/etcdserverpb.KV/Range", &request).await?)?)
    }

    /// Puts many keys at once, to fill a store rather than to measure it.
    pub(super) async fn fill(&mut self, keys: std::ops::Range<usize>, value: &Bytes) -> Result<()> {
        let put = |index| PutRequest { key: key(index).into(), value: value.clone(), ..Default::default() };
        let success = keys.map(|index| RequestOp { request: Some(Request::RequestPut(put(index))) }).collect();
        self.0.call("/etcdserverpb.KV/Txn", &TxnRequest { success, ..Default::default() }).await?;
        Ok(())
    }
}

pub(super) fn all() -> RangeRequest {
    RangeRequest { key: PREFIX.into(), range_end: PREFIX_END.into(), ..Default::default() }
}
