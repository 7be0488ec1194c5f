//! The Lease service.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Server, header};
use crate::{
    StoreError,
    etcd::{
        proto::etcdserverpb::{self as pb, lease_server::Lease},
        status,
    },
};

/// Answers that wait for a slow reader before no more of its requests are read.
const OUTBOUND: usize = 16;

impl Server {
    async fn keep_alive(&self, id: i64) -> Result<pb::LeaseKeepAliveResponse, Status> {
        let ttl = match self.store.lease_keep_alive(id).await {
            Ok(lease) => lease.ttl_seconds,
            // etcd says that a lease is gone by a time of 0.
            Err(StoreError::LeaseNotFound(_)) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(pb::LeaseKeepAliveResponse { header: self.header_now().await?, id, ttl })
    }
}

#[tonic::async_trait]
impl Lease for Server {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let request = request.into_inner();
        let lease = self.store.lease_grant(request.ttl, request.id).await?;
        let header = self.header_now().await?;
        Ok(Response::new(pb::LeaseGrantResponse { header, id: lease.id, ttl: lease.ttl_seconds, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let revision = self.store.lease_revoke(request.into_inner().id).await?;
        Ok(Response::new(pb::LeaseRevokeResponse { header: header(revision) }))
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<pb::LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (out, responses) = mpsc::channel(OUTBOUND);
        let mut requests = request.into_inner();
        let server = self.clone();
        tokio::spawn(async move {
            loop {
                let request = tokio::select! {
                    request = requests.message() => request,
                    () = server.drain.cancelled() => Err(status::stopped()),
                };
                let answer = match request {
                    Ok(Some(request)) => server.keep_alive(request.id).await,
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                let failed = answer.is_err();
                if out.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let request = request.into_inner();
        let header = self.header_now().await?;
        let answer = match self.store.lease_time_to_live(request.id).await {
            Ok(lease) => pb::LeaseTimeToLiveResponse {
                header,
                id: lease.id,
                ttl: lease.remaining_seconds,
                granted_ttl: lease.granted_ttl_seconds,
                keys: if request.keys { lease.keys } else { Vec::new() },
            },
            Err(StoreError::LeaseNotFound(id)) => {
                pb::LeaseTimeToLiveResponse { header, id, ttl: -1, ..Default::default() }
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Response::new(answer))
    }

    async fn lease_leases(
        &self,
        _: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let leases = self.store.leases().await?.into_iter().map(|id| pb::LeaseStatus { id }).collect();
        Ok(Response::new(pb::LeaseLeasesResponse { header: self.header_now().await?, leases }))
    }
}
