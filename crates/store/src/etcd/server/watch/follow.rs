//! One watch: the store's batches as responses, filtered, in pieces if asked for, with notices when nothing happens.

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{Out, Server};
use crate::{
    Batch, EventKind, Revision, StoreError, Watch,
    etcd::{
        MAX_REQUEST_BYTES,
        proto::{
            etcdserverpb::{self as pb, ResponseHeader, watch_create_request::FilterType},
            served::WatchResponse,
        },
        server::header,
    },
};

/// Events that are sent together if they are there: enough to catch up quickly, not so much that a response is long in coming.
const TOGETHER_BYTES: usize = 64 << 10;

/// A revision, and whom to tell when everything up to it is sent.
pub(super) struct Mark {
    pub(super) revision: Revision,
    pub(super) reached: oneshot::Sender<()>,
}

/// The reader has gone, or has been told that this was the last.
struct Ended;

pub(super) struct Follow {
    id: i64,
    puts: bool,
    deletes: bool,
    prev_kv: bool,
    fragment: bool,
    notify: bool,
    server: Server,
    out: Out,
}

impl Follow {
    pub(super) fn new(id: i64, request: &pb::WatchCreateRequest, server: Server, out: Out) -> Follow {
        let without = |filter| request.filters().any(|other| other == filter);
        Follow {
            id,
            puts: !without(FilterType::Noput),
            deletes: !without(FilterType::Nodelete),
            prev_kv: request.prev_kv,
            fragment: request.fragment,
            notify: request.progress_notify,
            server,
            out,
        }
    }

    pub(super) async fn run(self, mut watch: Watch, mut marks: mpsc::Receiver<Mark>) {
        while self.step(&mut watch, &mut marks).await.is_ok() {}
    }

    async fn step(&self, watch: &mut Watch, marks: &mut mpsc::Receiver<Mark>) -> Result<(), Ended> {
        let quiet_until = Instant::now() + self.server.progress_interval;
        tokio::select! {
            Some(mark) = marks.recv() => {
                while watch.delivered() < mark.revision {
                    let item = watch.next().await;
                    self.deliver(watch, item).await?;
                }
                let _ = mark.reached.send(());
                Ok(())
            }
            item = watch.next() => self.deliver(watch, item).await,
            () = tokio::time::sleep_until(quiet_until), if self.notify => {
                self.send(WatchResponse { header: header(watch.delivered()), ..Default::default() }).await
            }
        }
    }

    async fn send(&self, response: WatchResponse) -> Result<(), Ended> {
        self.out.send(Ok(WatchResponse { watch_id: self.id, ..response })).await.map_err(|_| Ended)
    }

    /// Sends a batch, together with those behind it that are there already: a watcher that is late catches up in few words.
    async fn deliver(&self, watch: &mut Watch, mut item: Option<Result<Batch, StoreError>>) -> Result<(), Ended> {
        let (mut revision, mut events, mut bytes) = (0, Vec::new(), 0);
        while let Some(Ok(batch)) = &item {
            revision = batch.revision;
            let first = events.len();
            self.take(batch, &mut events);
            bytes += events.iter().skip(first).map(Bytes::len).sum::<usize>();
            item = match bytes < TOGETHER_BYTES {
                true => match watch.next().now_or_never() {
                    Some(next) => next,
                    None => return self.send_events(revision, events).await,
                },
                false => return self.send_events(revision, events).await,
            };
        }
        self.send_events(revision, events).await?;
        match item {
            Some(Err(error)) => self.end(error).await,
            _ => self.end(StoreError::Closed).await,
        }
    }

    async fn send_events(&self, revision: Revision, events: Vec<Bytes>) -> Result<(), Ended> {
        let limit = if self.fragment { MAX_REQUEST_BYTES } else { usize::MAX };
        for response in fragments(header(revision), events, limit) {
            self.send(response).await?;
        }
        Ok(())
    }

    /// Adds what this watch wants of a batch.
    fn take(&self, batch: &Batch, events: &mut Vec<Bytes>) {
        let wanted = batch.events.iter().filter(|event| match event.kind {
            EventKind::Put => self.puts,
            EventKind::Delete => self.deletes,
        });
        events.extend(wanted.map(|event| self.server.encodings.of(event, self.prev_kv)));
    }

    async fn end(&self, error: StoreError) -> Result<(), Ended> {
        let last = match error {
            StoreError::SlowWatcher => match self.server.compacted().await {
                Ok(oldest) => Ok(compacted(self.id, oldest)),
                Err(error) => Err(error.into()),
            },
            StoreError::Compacted { oldest } => Ok(compacted(self.id, oldest)),
            error => Err(error.into()),
        };
        let _ = self.out.send(last).await;
        Err(Ended)
    }
}

/// The last word to a watcher whose history is gone. As in etcd it tells neither a revision nor a reason beside the oldest.
pub(super) fn compacted(id: i64, oldest: Revision) -> WatchResponse {
    WatchResponse { header: header(0), watch_id: id, canceled: true, compact_revision: oldest, ..Default::default() }
}

/// Responses none of which passes `limit` bytes unless one event alone does; none if there are no events.
fn fragments(header: Option<ResponseHeader>, events: Vec<Bytes>, limit: usize) -> Vec<WatchResponse> {
    let mut pieces: Vec<WatchResponse> = Vec::new();
    let mut bytes = 0;
    for event in events {
        let len = event.len();
        bytes += len;
        match pieces.last_mut() {
            Some(piece) if bytes <= limit => piece.events.push(event),
            last => {
                if let Some(last) = last {
                    last.fragment = true;
                }
                bytes = len;
                pieces.push(WatchResponse { header, events: vec![event], ..Default::default() });
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Arc};

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{Embedded, Op, Options, Store, Txn};

    #[tokio::test]
    async fn an_event_is_encoded_once_for_all_its_watchers() {
        const WATCHERS: i64 = 1000;
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(dir.path(), Options::default()).unwrap());
        let server = Server::new(store.clone(), Vec::new(), CancellationToken::new());
        let (out, mut responses) = mpsc::channel(16);
        let mut tasks = tokio::task::JoinSet::new();
        for id in 0..WATCHERS {
            let watch = store.watch("a".into(), Some("b".into()), 0).await.unwrap();
            let follow = Follow::new(id, &pb::WatchCreateRequest::default(), server.clone(), out.clone());
            tasks.spawn(follow.run(watch, mpsc::channel(1).1));
        }
        for puts in 1..=3 {
            store.txn(Txn { success: vec![Op::put("a", "1")], ..Txn::default() }).await.unwrap();
            let mut places = HashSet::new();
            for _ in 0..WATCHERS {
                places.insert(responses.recv().await.unwrap().unwrap().events[0].as_ptr().addr());
            }
            assert_eq!((places.len(), server.encodings.encoded()), (1, puts));
        }
    }

    #[test]
    fn fragments_hold_every_event_in_order_and_only_the_last_is_whole() {
        check(&[], 100, &[]);
        check(&[10, 10], usize::MAX, &[2]);
        check(&[40, 40, 40, 40], 100, &[2, 2]);
        check(&[400, 10, 10], 100, &[1, 2]);
        check(&[10, 400, 10], 100, &[1, 1, 1]);
    }

    #[track_caller]
    fn check(sizes: &[usize], limit: usize, want: &[usize]) {
        let events: Vec<_> = sizes.iter().map(|size| Bytes::from(vec![0; *size])).collect();
        let pieces = fragments(None, events.clone(), limit);
        assert_eq!(pieces.iter().map(|piece| piece.events.len()).collect::<Vec<_>>(), want);
        assert_eq!(pieces.iter().flat_map(|piece| piece.events.clone()).collect::<Vec<_>>(), events);
        let flags: Vec<_> = pieces.iter().map(|piece| piece.fragment).collect();
        assert_eq!(flags.iter().filter(|flag| !**flag).count(), usize::from(!pieces.is_empty()));
        assert_ne!(flags.last(), Some(&true));
    }
}
