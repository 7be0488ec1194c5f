//! One watch: what the store tells, filtered and encoded.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::StreamExt;

use crate::{
    Batch, EventKind, Revision, StoreError, Watch,
    etcd::{
        proto::{
            etcdserverpb::{self as pb, ResponseHeader, watch_create_request::FilterType},
            served::WatchResponse,
        },
        server::encoding::Encodings,
    },
};

/// Events that are sent together if they are there: enough to catch up quickly, not so much that a response is long in coming.
const TOGETHER_BYTES: usize = 64 << 10;

/// What is there of a watch.
pub(super) struct News {
    pub(super) revision: Revision,
    pub(super) events: Vec<Bytes>,
    /// Too long a response may be cut.
    pub(super) fragment: bool,
    /// There may be more at once.
    pub(super) more: bool,
    /// Nothing comes after this.
    pub(super) ended: Option<StoreError>,
}

pub(super) struct Follow {
    puts: bool,
    deletes: bool,
    prev_kv: bool,
    fragment: bool,
    pub(super) notify: bool,
    watch: Watch,
    encodings: Arc<Encodings>,
}

impl Follow {
    pub(super) fn new(request: &pb::WatchCreateRequest, watch: Watch, encodings: Arc<Encodings>) -> Follow {
        let without = |filter| request.filters().any(|other| other == filter);
        Follow {
            puts: !without(FilterType::Noput),
            deletes: !without(FilterType::Nodelete),
            prev_kv: request.prev_kv,
            fragment: request.fragment,
            notify: request.progress_notify,
            watch,
            encodings,
        }
    }

    pub(super) fn delivered(&self) -> Revision {
        self.watch.delivered()
    }

    /// Takes a batch, together with those behind it that are there already: a watcher that is late catches up in few words.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<News> {
        let mut news = News { revision: 0, events: Vec::new(), fragment: self.fragment, more: true, ended: None };
        let mut bytes = 0;
        while bytes < TOGETHER_BYTES {
            match self.watch.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(batch))) => {
                    news.revision = batch.revision;
                    bytes += self.take(&batch, &mut news.events);
                }
                Poll::Ready(Some(Err(error))) => {
                    news.ended = Some(error);
                    break;
                }
                Poll::Ready(None) => {
                    news.ended = Some(StoreError::Closed);
                    break;
                }
                Poll::Pending if news.events.is_empty() => return Poll::Pending,
                Poll::Pending => {
                    news.more = false;
                    break;
                }
            }
        }
        Poll::Ready(news)
    }

    /// Adds what this watch wants of a batch, and tells how many bytes that is.
    fn take(&self, batch: &Batch, events: &mut Vec<Bytes>) -> usize {
        let first = events.len();
        let wanted = batch.events.iter().filter(|event| match event.kind {
            EventKind::Put => self.puts,
            EventKind::Delete => self.deletes,
        });
        events.extend(wanted.map(|event| self.encodings.of(event, self.prev_kv)));
        events.iter().skip(first).map(Bytes::len).sum()
    }
}

/// Responses none of which passes `limit` bytes unless one event alone does; none if there are no events.
pub(super) fn fragments(
    watch_id: i64,
    header: Option<ResponseHeader>,
    events: Vec<Bytes>,
    limit: usize,
) -> Vec<WatchResponse> {
    let response = |events| WatchResponse { header, watch_id, events, ..Default::default() };
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
                pieces.push(response(vec![event]));
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{Embedded, Op, Options, Store, Txn, etcd::server::watch::watches::Watches};

    #[tokio::test]
    async fn an_event_is_encoded_once_for_all_its_watchers() {
        const WATCHERS: i64 = 1000;
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path(), Options::default()).unwrap();
        let encodings = Arc::<Encodings>::default();
        let mut watches = Watches::default();
        for id in 0..WATCHERS {
            let watch = store.watch("a".into(), Some("b".into()), 0).await.unwrap();
            watches.add(id, Follow::new(&pb::WatchCreateRequest::default(), watch, encodings.clone()));
        }
        for puts in 1..=3 {
            store.txn(Txn { success: vec![Op::put("a", "1")], ..Txn::default() }).await.unwrap();
            let (mut ids, mut places) = (HashSet::new(), HashSet::new());
            for _ in 0..WATCHERS {
                let (id, news) = watches.next().await;
                ids.insert(id);
                places.insert(news.events[0].as_ptr().addr());
            }
            assert_eq!((ids.len(), places.len(), encodings.encoded()), (1000, 1, puts));
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
        let pieces = fragments(1, None, events.clone(), limit);
        assert_eq!(pieces.iter().map(|piece| piece.events.len()).collect::<Vec<_>>(), want);
        assert_eq!(pieces.iter().flat_map(|piece| piece.events.clone()).collect::<Vec<_>>(), events);
        let flags: Vec<_> = pieces.iter().map(|piece| piece.fragment).collect();
        assert_eq!(flags.iter().filter(|flag| !**flag).count(), usize::from(!pieces.is_empty()));
        assert_ne!(flags.last(), Some(&true));
    }
}
