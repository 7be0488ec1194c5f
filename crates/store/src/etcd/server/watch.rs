//! The Watch service: one session per stream, one task per watch.
//!
//! A watch holds no events while its reader is slow: it waits for room in the session's short queue, and its place in the
//! store's history falls behind until the store ends it. Only the session itself and the progress it answers wait with it.

mod follow;

use std::{collections::HashMap, time::Duration};

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

use self::follow::{Follow, Mark};
use super::{Server, header};
use crate::{
    Keys, Revision, StoreError,
    etcd::{
        convert::end_from_proto,
        proto::{
            etcdserverpb::{self as pb, watch_request::RequestUnion},
            served::{WatchResponse, watch_server::Watch},
        },
        status,
    },
};

/// Responses that wait for a slow reader, of all watches of a stream together. Their events are shared, and all but the
/// largest revisions come in 64 KiB at most.
const OUTBOUND: usize = 64;
/// A progress request is left unanswered, as etcd does, if the watches cannot catch up by then; the client asks again.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// The watch id of what concerns no watch, or all.
const NO_WATCH: i64 = -1;

type Out = mpsc::Sender<Result<WatchResponse, Status>>;

#[tonic::async_trait]
impl Watch for Server {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (out, responses) = mpsc::channel(OUTBOUND);
        let (drain, last_word) = (self.drain.clone(), out.clone());
        let session = Session { server: self.clone(), out, watches: HashMap::new(), next_id: 0 };
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = session.run(request.into_inner()) => ended,
                () = drain.cancelled() => Err(status::stopped()),
                () = last_word.closed() => return,
            };
            if let Err(status) = ended {
                let _ = last_word.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

struct Session {
    server: Server,
    out: Out,
    watches: HashMap<i64, Running>,
    next_id: i64,
}

struct Running {
    task: AbortOnDropHandle<()>,
    marks: mpsc::Sender<Mark>,
}

impl Session {
    async fn run(mut self, mut requests: Streaming<pb::WatchRequest>) -> Result<(), Status> {
        while let Some(request) = requests.message().await? {
            match request.request_union {
                Some(RequestUnion::CreateRequest(request)) => self.create(request).await?,
                Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await?,
                Some(RequestUnion::ProgressRequest(_)) => self.progress().await?,
                None => {}
            }
        }
        Ok(())
    }

    async fn send(&self, response: WatchResponse) -> Result<(), Status> {
        self.out.send(Ok(response)).await.map_err(|_| Status::cancelled("the client has gone"))
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), Status> {
        let revision = self.server.store.revision().await?;
        let created = WatchResponse { header: header(revision), created: true, ..Default::default() };
        let keys = keys(&request);
        let refusal = match (self.id(request.watch_id), keys.bounds()) {
            (Some(id), Some(_)) => return self.start(id, keys, request, created).await,
            (None, _) => "mvcc: duplicate watch ID provided on the WatchStream",
            (_, None) => "mvcc: watcher range is empty",
        };
        let cancel_reason = refusal.to_owned();
        self.send(WatchResponse { watch_id: NO_WATCH, canceled: true, cancel_reason, ..created }).await
    }

    async fn start(
        &mut self,
        id: i64,
        keys: Keys,
        request: pb::WatchCreateRequest,
        created: WatchResponse,
    ) -> Result<(), Status> {
        let revision = created.header.as_ref().map_or(0, |header| header.revision);
        let from = if request.start_revision > 0 { request.start_revision } else { revision + 1 };
        let created = WatchResponse { watch_id: id, ..created };
        let watch = match self.server.store.watch(keys.start, keys.end, from).await {
            Ok(watch) => watch,
            Err(StoreError::Compacted { oldest }) => {
                self.send(created).await?;
                return self.send(follow::compacted(id, oldest)).await;
            }
            Err(error) => return Err(error.into()),
        };
        self.send(created).await?;
        let (marks, marked) = mpsc::channel(1);
        let follow = Follow::new(id, &request, self.server.clone(), self.out.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(follow.run(watch, marked)));
        self.watches.insert(id, Running { task, marks });
        Ok(())
    }

    /// The id asked for, or the next free one for 0; `None` if it is taken.
    fn id(&mut self, asked: i64) -> Option<i64> {
        if asked != 0 {
            let taken = self.watches.get(&asked).is_some_and(|running| !running.task.is_finished());
            return (!taken).then_some(asked);
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Some(self.next_id - 1)
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Status> {
        let Some(running) = self.watches.remove(&id) else { return Ok(()) };
        if running.task.is_finished() {
            return Ok(());
        }
        running.task.abort();
        // Nothing of this watch may come after the word that it is cancelled.
        let _ = running.task.await;
        let header = header(self.server.store.revision().await?);
        self.send(WatchResponse { header, watch_id: id, canceled: true, ..Default::default() }).await
    }

    /// Tells the client a revision up to which every watch of the stream has sent everything.
    async fn progress(&mut self) -> Result<(), Status> {
        let revision = self.server.store.revision().await?;
        self.watches.retain(|_, running| !running.task.is_finished());
        let reached = join_all(self.watches.values().map(|running| reached(&running.marks, revision)));
        if tokio::time::timeout(PROGRESS_TIMEOUT, reached).await.is_err() {
            return Ok(());
        }
        self.send(WatchResponse { header: header(revision), watch_id: NO_WATCH, ..Default::default() }).await
    }
}

/// Waits until a watch has sent everything up to `revision`, or has ended.
async fn reached(marks: &mpsc::Sender<Mark>, revision: Revision) {
    let (reached, wait) = oneshot::channel();
    if marks.send(Mark { revision, reached }).await.is_ok() {
        let _ = wait.await;
    }
}

/// In a watch an empty key is the first one.
fn keys(request: &pb::WatchCreateRequest) -> Keys {
    let start = if request.key.is_empty() { bytes::Bytes::from_static(b"\0") } else { request.key.clone() };
    Keys::new(start, end_from_proto(&request.range_end))
}
