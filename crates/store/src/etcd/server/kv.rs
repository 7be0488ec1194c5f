//! The KV service.

use tonic::{Request, Response, Status};

use super::{Server, range, txn};
use crate::{
    Op, OpResult, Revision, Txn,
    etcd::proto::etcdserverpb::{self as pb, kv_server::Kv},
};

impl Server {
    /// A transaction of one operation.
    async fn single(&self, op: Op) -> Result<(OpResult, Revision), Status> {
        let result = self.store.txn(Txn { success: vec![op], ..Txn::default() }).await?;
        let revision = result.revision;
        let first = result.results.into_iter().next();
        first.map(|first| (first, revision)).ok_or_else(|| Status::internal("the store gave no result"))
    }
}

#[tonic::async_trait]
impl Kv for Server {
    async fn range(&self, request: Request<pb::RangeRequest>) -> Result<Response<pb::RangeResponse>, Status> {
        let request = request.into_inner();
        let found = self.store.range(range::question(&request)).await?;
        Ok(Response::new(range::answer(&request, found)))
    }

    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        let request = request.into_inner();
        txn::check_size(&request)?;
        let (result, revision) = self.single(txn::put(&request)?).await?;
        Ok(Response::new(txn::put_answer(&request, result, revision)))
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let request = request.into_inner();
        txn::check_size(&request)?;
        let (result, revision) = self.single(txn::delete(&request)).await?;
        Ok(Response::new(txn::delete_answer(&request, result, revision)))
    }

    async fn txn(&self, request: Request<pb::TxnRequest>) -> Result<Response<pb::TxnResponse>, Status> {
        let request = request.into_inner();
        txn::check_size(&request)?;
        let result = self.store.txn(txn::txn(&request)?).await?;
        Ok(Response::new(txn::txn_answer(&request, result)))
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        self.store.compact(request.into_inner().revision).await?;
        Ok(Response::new(pb::CompactionResponse { header: self.header_now().await? }))
    }
}
