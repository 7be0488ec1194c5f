//! The engine of several machines: a [`Store`] that asks an etcd cluster.

mod connect;
mod endpoints;
mod failure;
mod txn;
mod watch;

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, stream};
use tonic::Status;

pub use self::connect::ConnectError;
use self::endpoints::{Endpoints, Retry};
use super::{
    convert::{end_to_proto, kv_from_proto},
    proto::etcdserverpb::{
        self as pb, kv_client::KvClient, lease_client::LeaseClient, maintenance_client::MaintenanceClient,
    },
};
use crate::{
    Keys, Lease, LeaseStatus, Range, RangeResult, Revision, Snapshot, Store, StoreError, Txn, TxnResult, Watch,
};

/// How an etcd cluster is reached; the names are those of the API server's `--etcd-*` flags.
#[derive(Clone, Debug, Default)]
pub struct EtcdConfig {
    /// `http://host:port`, `https://host:port`, `unix:///path`.
    pub endpoints: Vec<String>,
    /// PEM files. `https` needs `ca`; `cert` and `key` go together.
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// A store in an etcd cluster. Requests go to one endpoint until it fails, then to the next.
#[derive(Clone)]
pub struct Client {
    endpoints: Arc<Endpoints>,
}

impl Client {
    /// # Errors
    /// The configuration cannot be used, or no endpoint answers.
    pub async fn connect(config: EtcdConfig) -> Result<Client, ConnectError> {
        let client = Client { endpoints: Arc::new(connect::endpoints(&config)?) };
        match client.revision().await {
            Ok(_) => Ok(client),
            Err(error) => Err(ConnectError::NoAnswer { endpoints: config.endpoints.join(", "), error }),
        }
    }
}

/// Asks a unary method of a service: `ask!(self, Retry::Always, KvClient, range(request))`.
macro_rules! ask {
    ($client:expr, $retry:expr, $service:ident, $method:ident($request:expr)) => {{
        let request = $request;
        $client
            .endpoints
            .call($retry, |channel| {
                let request = request.clone();
                async move {
                    let mut service = $service::new(channel).max_decoding_message_size(usize::MAX);
                    service.$method(request).await.map(tonic::Response::into_inner)
                }
            })
            .await
    }};
}

fn revision(header: Option<&pb::ResponseHeader>) -> Revision {
    header.map_or(0, |header| header.revision)
}

#[async_trait::async_trait]
impl Store for Client {
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let asked = range.revision;
        match ask!(self, Retry::Always, KvClient, range(txn::range_to_proto(range))) {
            Ok(response) => Ok(txn::range_from_proto(response)),
            Err(status) => Err(self.failure(&status, failure::Asked::revision(asked)).await),
        }
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError> {
        let asked = failure::Asked::of(&txn);
        let request = txn::txn_to_proto(txn);
        match ask!(self, Retry::IfNotSent, KvClient, txn(request)) {
            Ok(response) => Ok(txn::txn_from_proto(response)),
            Err(status) => Err(self.failure(&status, asked).await),
        }
    }

    async fn watch(&self, start: Bytes, end: Option<Bytes>, from: Revision) -> Result<Watch, StoreError> {
        if from > 0 {
            // etcd would say so only some time after it has accepted the watch.
            let first = Range { revision: from, count_only: true, ..Range::key(start.clone()) };
            match self.range(first).await {
                Ok(_) | Err(StoreError::FutureRevision { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        watch::start(self.endpoints.clone(), Keys::new(start, end), from).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let request = pb::CompactionRequest { revision, physical: false };
        match ask!(self, Retry::IfNotSent, KvClient, compact(request)) {
            Ok(_) => Ok(()),
            Err(status) => Err(self.failure(&status, failure::Asked::revision(revision)).await),
        }
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let request = pb::RangeRequest { key: Bytes::from_static(b"\0"), count_only: true, ..Default::default() };
        let response = ask!(self, Retry::Always, KvClient, range(request)).map_err(|status| failure::plain(&status))?;
        Ok(revision(response.header.as_ref()))
    }

    async fn size(&self) -> Result<u64, StoreError> {
        let response = ask!(self, Retry::Always, MaintenanceClient, status(pb::StatusRequest {}))
            .map_err(|status| failure::plain(&status))?;
        Ok(response.db_size_in_use.try_into().unwrap_or(0))
    }

    async fn lease_grant(&self, ttl_seconds: i64, id: i64) -> Result<Lease, StoreError> {
        let request = pb::LeaseGrantRequest { ttl: ttl_seconds, id };
        match ask!(self, Retry::IfNotSent, LeaseClient, lease_grant(request)) {
            Ok(lease) => Ok(Lease { id: lease.id, ttl_seconds: lease.ttl }),
            Err(status) => Err(failure::of_lease(&status, id, ttl_seconds)),
        }
    }

    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError> {
        match ask!(self, Retry::IfNotSent, LeaseClient, lease_revoke(pb::LeaseRevokeRequest { id })) {
            Ok(response) => Ok(revision(response.header.as_ref())),
            Err(status) => Err(failure::of_lease(&status, id, 0)),
        }
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        let answer = self.endpoints.call(Retry::Always, |channel| async move {
            // The stream of requests must stay open until the answer is here.
            let requests =
                futures::StreamExt::chain(stream::iter([pb::LeaseKeepAliveRequest { id }]), stream::pending());
            let mut answers = LeaseClient::new(channel).lease_keep_alive(requests).await?.into_inner();
            answers.message().await?.ok_or_else(|| tonic::Status::unavailable("the keep-alive stream ended"))
        });
        match answer.await {
            Ok(lease) if lease.ttl > 0 => Ok(Lease { id, ttl_seconds: lease.ttl }),
            Ok(_) => Err(StoreError::LeaseNotFound(id)),
            Err(status) => Err(failure::of_lease(&status, id, 0)),
        }
    }

    async fn lease_time_to_live(&self, id: i64) -> Result<LeaseStatus, StoreError> {
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let lease = ask!(self, Retry::Always, LeaseClient, lease_time_to_live(request))
            .map_err(|status| failure::of_lease(&status, id, 0))?;
        if lease.ttl < 0 {
            return Err(StoreError::LeaseNotFound(id));
        }
        let mut keys = lease.keys;
        keys.sort();
        Ok(LeaseStatus { id, granted_ttl_seconds: lease.granted_ttl, remaining_seconds: lease.ttl, keys })
    }

    async fn leases(&self) -> Result<Vec<i64>, StoreError> {
        let response = ask!(self, Retry::Always, LeaseClient, lease_leases(pb::LeaseLeasesRequest {}))
            .map_err(|status| failure::plain(&status))?;
        let mut ids: Vec<i64> = response.leases.iter().map(|lease| lease.id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let asked = self.endpoints.call(Retry::Always, |channel| async move {
            let mut service = MaintenanceClient::new(channel).max_decoding_message_size(usize::MAX);
            let mut responses = service.snapshot(pb::SnapshotRequest {}).await?.into_inner();
            let first = responses.message().await?.ok_or_else(|| Status::unavailable("the snapshot is empty"))?;
            Ok((first, responses))
        });
        let (first, responses) = asked.await.map_err(|status| failure::plain(&status))?;
        let (revision, bytes) = (revision(first.header.as_ref()), first.blob.len() as u64 + first.remaining_bytes);
        let rest = responses.map(|response| match response {
            Ok(response) => Ok(response.blob),
            Err(status) => Err(failure::plain(&status)),
        });
        Ok(Snapshot { revision, bytes, chunks: Box::pin(stream::iter([Ok(first.blob)]).chain(rest)) })
    }
}
