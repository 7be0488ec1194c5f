//! The services about the server itself: Maintenance, Cluster, Auth.

use futures::{StreamExt, stream::BoxStream};
use tonic::{Request, Response, Status};

use super::{MEMBER_ID, Server};
use crate::{
    Range, Revision,
    etcd::proto::etcdserverpb::{
        self as pb, alarm_request::AlarmAction, auth_server::Auth, cluster_server::Cluster,
        maintenance_server::Maintenance,
    },
};

/// The etcd release whose API this is. Clients choose features by it: the API server asks for watch progress from 3.5.13 on.
const VERSION: &str = "3.5.21";

impl Server {
    /// A checksum of all that is stored at a revision (0: now).
    async fn hash(&self, revision: Revision) -> Result<u32, Status> {
        let all = self.store.range(Range { revision, ..Range::prefix("") }).await?;
        let mut hasher = crc32fast::Hasher::new();
        for kv in &all.kvs {
            for bytes in [&kv.key, &kv.value] {
                hasher.update(&bytes.len().to_le_bytes());
                hasher.update(bytes);
            }
            for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
                hasher.update(&number.to_le_bytes());
            }
        }
        Ok(hasher.finalize())
    }
}

#[tonic::async_trait]
impl Maintenance for Server {
    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        if request.into_inner().action() == AlarmAction::Activate {
            return Err(Status::unimplemented("alarms are raised by the store alone"));
        }
        Ok(Response::new(pb::AlarmResponse { header: self.header_now().await?, alarms: Vec::new() }))
    }

    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let revision = self.store.revision().await?;
        let bytes = i64::try_from(self.store.size().await?).unwrap_or(i64::MAX);
        Ok(Response::new(pb::StatusResponse {
            header: super::header(revision),
            version: VERSION.to_owned(),
            db_size: bytes,
            leader: MEMBER_ID,
            raft_index: revision.cast_unsigned(),
            raft_term: 1,
            raft_applied_index: revision.cast_unsigned(),
            errors: Vec::new(),
            db_size_in_use: bytes,
            is_learner: false,
        }))
    }

    /// Nothing to do: the engine gives space back on its own.
    async fn defragment(&self, _: Request<pb::DefragmentRequest>) -> Result<Response<pb::DefragmentResponse>, Status> {
        Ok(Response::new(pb::DefragmentResponse { header: self.header_now().await? }))
    }

    async fn hash(&self, _: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        let hash = Server::hash(self, 0).await?;
        Ok(Response::new(pb::HashResponse { header: self.header_now().await?, hash }))
    }

    async fn hash_kv(&self, request: Request<pb::HashKvRequest>) -> Result<Response<pb::HashKvResponse>, Status> {
        let hash = Server::hash(self, request.into_inner().revision.max(0)).await?;
        let (header, compact_revision) = (self.header_now().await?, self.compacted().await?);
        Ok(Response::new(pb::HashKvResponse { header, hash, compact_revision }))
    }

    type SnapshotStream = BoxStream<'static, Result<pb::SnapshotResponse, Status>>;

    async fn snapshot(&self, _: Request<pb::SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        let snapshot = self.store.snapshot().await?;
        let header = super::header(snapshot.revision);
        let mut remaining_bytes = snapshot.bytes;
        let responses = snapshot.chunks.map(move |blob| {
            let blob = blob?;
            remaining_bytes = remaining_bytes.saturating_sub(blob.len() as u64);
            Ok(pb::SnapshotResponse { header, remaining_bytes, blob })
        });
        Ok(Response::new(Box::pin(responses.take_until(self.drain.clone().cancelled_owned()))))
    }
}

#[tonic::async_trait]
impl Cluster for Server {
    async fn member_list(&self, _: Request<pb::MemberListRequest>) -> Result<Response<pb::MemberListResponse>, Status> {
        let member = pb::Member {
            id: MEMBER_ID,
            name: "ferry".to_owned(),
            peer_urls: Vec::new(),
            client_urls: self.client_urls.to_vec(),
            is_learner: false,
        };
        Ok(Response::new(pb::MemberListResponse { header: self.header_now().await?, members: vec![member] }))
    }
}

/// Who may connect is decided by the socket's permissions and by TLS.
#[tonic::async_trait]
impl Auth for Server {
    async fn auth_enable(&self, _: Request<pb::AuthEnableRequest>) -> Result<Response<pb::AuthEnableResponse>, Status> {
        Err(Status::failed_precondition("etcdserver: root user does not exist"))
    }

    async fn auth_disable(
        &self,
        _: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        Ok(Response::new(pb::AuthDisableResponse { header: self.header_now().await? }))
    }

    async fn auth_status(&self, _: Request<pb::AuthStatusRequest>) -> Result<Response<pb::AuthStatusResponse>, Status> {
        Ok(Response::new(pb::AuthStatusResponse { header: self.header_now().await?, enabled: false, auth_revision: 1 }))
    }

    async fn authenticate(
        &self,
        _: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        Err(Status::failed_precondition("etcdserver: authentication is not enabled"))
    }
}
