//! etcd's v3 gRPC API in front of any [`Store`]: one member that is its own leader.

mod authority;
mod encoding;
mod kv;
mod lease;
mod listener;
mod listing;
mod maintenance;
mod range;
mod txn;
mod watch;

use std::{io, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Status, service::Routes};

pub use self::listener::Listener;
use self::{encoding::Encodings, listing::Listings};
use super::proto::{
    etcdserverpb::{
        self as pb, auth_server::AuthServer, cluster_server::ClusterServer, lease_server::LeaseServer,
        maintenance_server::MaintenanceServer,
    },
    served::watch_server::WatchServer,
};
use crate::{Range, Revision, Store, StoreError};

/// Messages larger than this are not even read, as in etcd; those between its limit for requests and this get another answer.
const MAX_MESSAGE_BYTES: usize = 2 << 20;
/// etcd's own interval between notices to a quiet watcher that asked for them.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);
/// There is one member; its id and its cluster's need only be the same every time and not 0.
const CLUSTER_ID: u64 = 0x6665_7272_7900_0001;
const MEMBER_ID: u64 = 0x6665_7272_7900_0002;
/// Calls at once on one connection. etcd sets no limit; the library's own of 200 would leave the watches of a client that opens a
/// stream for each without a word.
const MAX_STREAMS: u32 = 100_000;
/// A peer that is gone without a word is found out, with its watches, after etcd's own time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
/// Accepted connections that wait to be served.
const BACKLOG: usize = 64;

/// Why serving ended before it was drained.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the etcd server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Answers on all `listeners` until `drain` fires; then ends watches, finishes what is being answered, and returns.
///
/// # Errors
/// The HTTP/2 server could not be run.
pub async fn serve(
    store: Arc<dyn Store>,
    listeners: Vec<Listener>,
    drain: CancellationToken,
) -> Result<(), ServeError> {
    let urls = listeners.iter().filter_map(Listener::url).collect();
    let (sender, connections) = mpsc::channel(BACKLOG);
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(listener.accept(sender.clone()));
    }
    drop(sender);
    let connections = ReceiverStream::new(connections).map(Ok::<_, io::Error>);
    tonic::transport::Server::builder()
        .max_concurrent_streams(Some(MAX_STREAMS))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .add_routes(Server::new(store, urls, drain.clone()).routes())
        .serve_with_incoming_shutdown(connections, drain.cancelled_owned())
        .await?;
    Ok(())
}

/// All services over one store.
#[derive(Clone)]
pub struct Server {
    store: Arc<dyn Store>,
    client_urls: Arc<[String]>,
    drain: CancellationToken,
    progress_interval: Duration,
    encodings: Arc<Encodings>,
}

impl Server {
    /// `client_urls` is what the member list tells clients.
    pub fn new(store: Arc<dyn Store>, client_urls: Vec<String>, drain: CancellationToken) -> Server {
        Server {
            store,
            client_urls: client_urls.into(),
            drain,
            progress_interval: PROGRESS_INTERVAL,
            encodings: Arc::default(),
        }
    }

    /// The services, for an HTTP/2 server of the caller's own.
    pub fn routes(self) -> Routes {
        Routes::new(Listings::new(self.clone()))
            .add_service(WatchServer::new(self.clone()))
            .add_service(LeaseServer::new(self.clone()))
            .add_service(MaintenanceServer::new(self.clone()))
            .add_service(ClusterServer::new(self.clone()))
            .add_service(AuthServer::new(self))
    }

    async fn header_now(&self) -> Result<Option<pb::ResponseHeader>, Status> {
        Ok(header(self.store.revision().await?))
    }

    /// The compacted revision; 0 if there was no compaction.
    async fn compacted(&self) -> Result<Revision, StoreError> {
        let first = Range { revision: 1, count_only: true, ..Range::key("\0") };
        match self.store.range(first).await {
            Ok(_) => Ok(0),
            Err(StoreError::Compacted { oldest }) => Ok(oldest),
            Err(error) => Err(error),
        }
    }
}

fn header(revision: Revision) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { cluster_id: CLUSTER_ID, member_id: MEMBER_ID, revision, raft_term: 1 })
}
