//! The Watch service: one session per stream, which is itself the stream of its answers.
//!
//! A session is asked for its next answer when its reader has room for it. Until then it holds no events: the places of its
//! watches in the store's history fall behind until the store ends them.

mod follow;
mod watches;

use std::{collections::VecDeque, pin::Pin, time::Duration};

use futures::{FutureExt, stream, stream::BoxStream};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Request, Response, Status, Streaming};

use self::{
    follow::{Follow, News},
    watches::Watches,
};
use super::{Server, header};
use crate::{
    Keys, Revision, StoreError,
    etcd::{
        MAX_REQUEST_BYTES,
        convert::end_from_proto,
        proto::{
            etcdserverpb::{self as pb, watch_request::RequestUnion},
            served::{WatchResponse, watch_server::Watch},
        },
        status,
    },
};

/// A progress request is left unanswered, as etcd does, if the watches cannot catch up by then; the client asks again.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// Events in a row before requests are looked at.
const IN_A_ROW: usize = 64;
/// The watch id of what concerns no watch, or all.
const NO_WATCH: i64 = -1;

#[tonic::async_trait]
impl Watch for Server {
    type WatchStream = BoxStream<'static, Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let session = Some(Box::new(Session::new(self.clone(), request.into_inner())));
        let answers = stream::unfold(session, |session| async {
            let mut session = session?;
            match session.next().await {
                Ok(answer) => Some((Ok(answer), Some(session))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

struct Session {
    server: Server,
    /// `None` once the client has closed its side. As in etcd its watches go on, and can no longer be changed.
    requests: Option<Streaming<pb::WatchRequest>>,
    watches: Watches,
    next_id: i64,
    /// What is said before anything else happens.
    answers: VecDeque<WatchResponse>,
    /// How many of them were events, since a request was last looked for.
    in_a_row: usize,
    /// The revision the client wants all watches to have reached, and until when that is waited for.
    progress: Option<(Revision, Instant)>,
    /// When watches that asked for it and had nothing to say tell how far they are.
    notices: Interval,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Session {
    fn new(server: Server, requests: Streaming<pb::WatchRequest>) -> Session {
        let mut notices = interval_at(Instant::now() + server.progress_interval, server.progress_interval);
        notices.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Session {
            drained: Box::pin(server.drain.clone().cancelled_owned()),
            watches: Watches::default(),
            next_id: 0,
            answers: VecDeque::new(),
            in_a_row: 0,
            progress: None,
            notices,
            server,
            requests: Some(requests),
        }
    }

    /// The next answer. A client that wants no more resets the stream, and the session is dropped.
    async fn next(&mut self) -> Result<WatchResponse, Status> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Ok(answer);
            }
            if self.in_a_row < IN_A_ROW
                && let Some((id, news)) = self.watches.next().now_or_never()
            {
                self.in_a_row += 1;
                self.tell(id, news).await?;
                continue;
            }
            self.in_a_row = 0;
            if let Some((revision, _)) = self.progress
                && self.watches.have_reached(revision)
            {
                self.progress = None;
                self.answer(WatchResponse { header: header(revision), watch_id: NO_WATCH, ..Default::default() });
                continue;
            }
            let too_late = self.progress.map(|(_, until)| until);
            tokio::select! {
                biased;
                request = received(&mut self.requests) => match request? {
                    Some(request) => self.request(request).await?,
                    None => self.requests = None,
                },
                (id, news) = self.watches.next() => self.tell(id, news).await?,
                () = &mut self.drained => return Err(status::stopped()),
                () = sleep_until(too_late.unwrap_or_else(Instant::now)), if too_late.is_some() => self.progress = None,
                _ = self.notices.tick(), if self.watches.notified => {
                    self.answers.extend(self.watches.notices());
                }
            }
        }
    }

    fn answer(&mut self, response: WatchResponse) {
        self.answers.push_back(response);
    }

    async fn request(&mut self, request: pb::WatchRequest) -> Result<(), Status> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await?,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await?,
            Some(RequestUnion::ProgressRequest(_)) => {
                let revision = self.server.store.revision().await?;
                self.progress = Some((revision, Instant::now() + PROGRESS_TIMEOUT));
            }
            None => {}
        }
        Ok(())
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
        self.answer(WatchResponse { watch_id: NO_WATCH, canceled: true, cancel_reason, ..created });
        Ok(())
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
        let watch = self.server.store.watch(keys.start, keys.end, from).await;
        self.answer(WatchResponse { watch_id: id, ..created });
        match watch {
            Ok(watch) => self.watches.add(id, Follow::new(&request, watch, self.server.encodings.clone())),
            Err(StoreError::Compacted { oldest }) => self.answer(compacted(id, oldest)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The id asked for, or the next free one for 0; `None` if it is taken.
    fn id(&mut self, asked: i64) -> Option<i64> {
        if asked != 0 {
            return (!self.watches.has(asked)).then_some(asked);
        }
        while self.watches.has(self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Some(self.next_id - 1)
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Status> {
        if self.watches.remove(id) {
            let header = header(self.server.store.revision().await?);
            self.answer(WatchResponse { header, watch_id: id, canceled: true, ..Default::default() });
        }
        Ok(())
    }

    async fn tell(&mut self, id: i64, news: News) -> Result<(), Status> {
        let limit = if news.fragment { MAX_REQUEST_BYTES } else { usize::MAX };
        let pieces = follow::fragments(id, header(news.revision), news.events, limit);
        self.answers.extend(pieces);
        match news.ended {
            None => Ok(()),
            Some(StoreError::SlowWatcher) => {
                let oldest = self.server.compacted().await?;
                self.answer(compacted(id, oldest));
                Ok(())
            }
            Some(StoreError::Compacted { oldest }) => {
                self.answer(compacted(id, oldest));
                Ok(())
            }
            Some(error) => Err(error.into()),
        }
    }
}

/// The client's next request; never, once there are no more.
async fn received(requests: &mut Option<Streaming<pb::WatchRequest>>) -> Result<Option<pb::WatchRequest>, Status> {
    match requests {
        Some(requests) => requests.message().await,
        None => std::future::pending().await,
    }
}

/// The last word to a watcher whose history is gone. As in etcd it tells neither a revision nor a reason beside the oldest.
fn compacted(id: i64, oldest: Revision) -> WatchResponse {
    WatchResponse { header: header(0), watch_id: id, canceled: true, compact_revision: oldest, ..Default::default() }
}

/// In a watch an empty key is the first one.
fn keys(request: &pb::WatchCreateRequest) -> Keys {
    let start = if request.key.is_empty() { bytes::Bytes::from_static(b"\0") } else { request.key.clone() };
    Keys::new(start, end_from_proto(&request.range_end))
}
