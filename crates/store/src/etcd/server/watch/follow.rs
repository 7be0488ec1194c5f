//! One watch: the store's batches as responses, filtered, in pieces if asked for, with notices when nothing happens.

use futures::StreamExt;
use prost::Message;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{Out, Server};
use crate::{
    Batch, EventKind, Revision, StoreError, Watch,
    etcd::{
        MAX_REQUEST_BYTES,
        convert::event_to_proto,
        proto::etcdserverpb::{self as pb, watch_create_request::FilterType},
        server::header,
        status,
    },
};

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
                    self.deliver(watch.next().await).await?;
                }
                let _ = mark.reached.send(());
                Ok(())
            }
            item = watch.next() => self.deliver(item).await,
            () = tokio::time::sleep_until(quiet_until), if self.notify => {
                self.send(pb::WatchResponse { header: header(watch.delivered()), ..Default::default() }).await
            }
        }
    }

    async fn send(&self, response: pb::WatchResponse) -> Result<(), Ended> {
        self.out.send(Ok(pb::WatchResponse { watch_id: self.id, ..response })).await.map_err(|_| Ended)
    }

    async fn deliver(&self, item: Option<Result<Batch, StoreError>>) -> Result<(), Ended> {
        match item {
            Some(Ok(batch)) => {
                let limit = if self.fragment { MAX_REQUEST_BYTES } else { usize::MAX };
                for response in fragments(self.response(&batch), limit) {
                    self.send(response).await?;
                }
                Ok(())
            }
            Some(Err(error)) => self.end(error).await,
            None => self.end(StoreError::Closed).await,
        }
    }

    fn response(&self, batch: &Batch) -> pb::WatchResponse {
        let wanted = batch.events.iter().filter(|event| match event.kind {
            EventKind::Put => self.puts,
            EventKind::Delete => self.deletes,
        });
        let events = wanted.map(|event| event_to_proto(event, self.prev_kv)).collect();
        pb::WatchResponse { header: header(batch.revision), events, ..Default::default() }
    }

    async fn end(&self, error: StoreError) -> Result<(), Ended> {
        let last = match error {
            StoreError::SlowWatcher => match self.server.compacted().await {
                Ok(oldest) => Ok(compacted(self.id, oldest, oldest)),
                Err(error) => Err(error.into()),
            },
            StoreError::Compacted { oldest } => Ok(compacted(self.id, oldest, oldest)),
            error => Err(error.into()),
        };
        let _ = self.out.send(last).await;
        Err(Ended)
    }
}

/// The last word to a watcher whose history is gone.
pub(super) fn compacted(id: i64, revision: Revision, oldest: Revision) -> pb::WatchResponse {
    pb::WatchResponse {
        header: header(revision),
        watch_id: id,
        canceled: true,
        compact_revision: oldest,
        cancel_reason: status::COMPACTED.to_owned(),
        ..Default::default()
    }
}

/// Cuts a response so that no piece passes `limit` bytes unless one event alone does; nothing if it has no events.
fn fragments(response: pb::WatchResponse, limit: usize) -> Vec<pb::WatchResponse> {
    let pb::WatchResponse { header, events, .. } = response;
    let mut pieces: Vec<pb::WatchResponse> = Vec::new();
    let mut bytes = 0;
    for event in events {
        let len = event.encoded_len();
        bytes += len;
        match pieces.last_mut() {
            Some(piece) if bytes <= limit => piece.events.push(event),
            last => {
                if let Some(last) = last {
                    last.fragment = true;
                }
                bytes = len;
                pieces.push(pb::WatchResponse { header, events: vec![event], ..Default::default() });
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::proto::mvccpb;

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
        let event = |size: &usize| {
            let kv = mvccpb::KeyValue { value: vec![0; *size].into(), ..Default::default() };
            mvccpb::Event { kv: Some(kv), ..Default::default() }
        };
        let events: Vec<_> = sizes.iter().map(event).collect();
        let response = pb::WatchResponse { events: events.clone(), ..Default::default() };
        let pieces = fragments(response, limit);
        assert_eq!(pieces.iter().map(|piece| piece.events.len()).collect::<Vec<_>>(), want);
        assert_eq!(pieces.iter().flat_map(|piece| piece.events.clone()).collect::<Vec<_>>(), events);
        let flags: Vec<_> = pieces.iter().map(|piece| piece.fragment).collect();
        assert_eq!(flags.iter().filter(|flag| !**flag).count(), usize::from(!pieces.is_empty()));
        assert_ne!(flags.last(), Some(&true));
    }
}
