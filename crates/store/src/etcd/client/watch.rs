//! A watch on an etcd cluster, taken up again at the next endpoint where the last one broke off.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures::stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, metadata::MetadataValue, transport::Channel};

use super::{
    endpoints::{ANSWER_TIMEOUT, Endpoints, FIRST_PAUSE, LONGEST_PAUSE, Retry, causes, is_failure},
    failure, pb, revision,
};
use crate::{
    Batch, Event, Keys, Revision, StoreError, Watch,
    etcd::{
        convert::{end_to_proto, event_from_proto},
        proto::etcdserverpb::{watch_client::WatchClient, watch_request::RequestUnion},
    },
};

/// Starts a watch; when this returns, etcd has it.
pub(super) async fn start(endpoints: Arc<Endpoints>, keys: Keys, from: Revision) -> Result<Watch, StoreError> {
    let turn = endpoints.channel().map_or(0, |(turn, ..)| turn);
    let (stream, created) = endpoints
        .call(Retry::Always, |channel| open(channel, &keys, from))
        .await
        .map_err(|status| failure::plain(&status))?;
    if created.canceled {
        return Err(ended(&created));
    }
    let next = if from > 0 { from } else { revision(created.header.as_ref()) + 1 };
    // If the endpoint was passed over meanwhile the stream is opened once more than needed.
    let follow = Follow { endpoints, turn, keys, next, stream: Some(stream), ready: VecDeque::new(), ended: false };
    Ok(Watch::new(stream::unfold(follow, |mut follow| async move {
        let item = follow.next().await?;
        follow.ended = item.is_err();
        Some((item, follow))
    })))
}

/// The oldest revision held. A watch from the first one is the only question whose answer tells it.
pub(super) async fn oldest(endpoints: &Endpoints) -> Result<Revision, StoreError> {
    let keys = Keys::new(Bytes::from_static(b"\0"), None);
    let told = endpoints.call(Retry::Always, |channel| async {
        let (mut stream, mut response) = open(channel, &keys, 1).await?;
        while response.compact_revision == 0 {
            response = stream.message().await?;
        }
        Ok(response.compact_revision)
    });
    told.await.map_err(|status| failure::plain(&status))
}

fn ended(response: &pb::WatchResponse) -> StoreError {
    match response.compact_revision {
        0 => StoreError::Refused(format!("the watch was cancelled: {}", response.cancel_reason)),
        oldest => StoreError::Compacted { oldest },
    }
}

/// A stream with one watch on it.
struct Open {
    /// The client's side stays open as long as the watch.
    _requests: mpsc::Sender<pb::WatchRequest>,
    responses: Streaming<pb::WatchResponse>,
}

impl Open {
    async fn message(&mut self) -> Result<pb::WatchResponse, Status> {
        self.responses.message().await?.ok_or_else(|| Status::unavailable("the watch stream ended"))
    }
}

async fn open(channel: Channel, keys: &Keys, from: Revision) -> Result<(Open, pb::WatchResponse), Status> {
    let create = pb::WatchCreateRequest {
        key: keys.start.clone(),
        range_end: end_to_proto(keys.end.clone()),
        start_revision: from,
        progress_notify: true,
        prev_kv: true,
        ..Default::default()
    };
    let (requests, outgoing) = mpsc::channel(1);
    let _ = requests.try_send(pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
    let mut request = Request::new(ReceiverStream::new(outgoing));
    // A member that has lost its leader ends the watch, instead of going quiet.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let responses = client.watch(request).await?.into_inner();
    let mut open = Open { _requests: requests, responses };
    let created = open.message().await?;
    Ok((open, created))
}

struct Follow {
    endpoints: Arc<Endpoints>,
    /// The one the stream is of.
    turn: usize,
    keys: Keys,
    /// Nothing before this revision is asked for again.
    next: Revision,
    stream: Option<Open>,
    ready: VecDeque<Batch>,
    ended: bool,
}

impl Follow {
    async fn next(&mut self) -> Option<Result<Batch, StoreError>> {
        if self.ended {
            return None;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            let status = match self.receive().await {
                Ok(Some(error)) => return Some(Err(error)),
                Ok(None) => continue,
                Err(status) => status,
            };
            self.stream = None;
            if !is_failure(&status) {
                return Some(Err(failure::plain(&status)));
            }
            tracing::debug!(error = causes(&status), "etcd watch broke off; taking it up again");
            self.endpoints.pass(self.turn);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Takes the next response, from a new stream if there is none; an error ends the watch, a status the stream.
    async fn receive(&mut self) -> Result<Option<StoreError>, Status> {
        let response = match &mut self.stream {
            Some(open) => tokio::select! {
                message = open.message() => message?,
                // Its connection may look alive for long after a request was not answered.
                () = self.endpoints.passed(self.turn) => return Err(Status::unavailable("the endpoint is passed over")),
            },
            None => {
                let (turn, _, channel) = self.endpoints.channel().ok_or_else(|| Status::unavailable("no endpoint"))?;
                self.turn = turn;
                let opened = tokio::time::timeout(ANSWER_TIMEOUT, open(channel, &self.keys, self.next)).await;
                let (stream, created) = opened.map_err(|_| Status::deadline_exceeded("no answer in time"))??;
                self.stream = Some(stream);
                created
            }
        };
        if response.canceled {
            return Ok(Some(match ended(&response) {
                // It was accepted once, so it is the reader who fell behind.
                StoreError::Compacted { .. } => StoreError::SlowWatcher,
                error => error,
            }));
        }
        if !response.created {
            self.take(response);
        }
        Ok(None)
    }

    /// One response may hold several revisions; one without events tells how far etcd is.
    fn take(&mut self, response: pb::WatchResponse) {
        let told = revision(response.header.as_ref());
        let events: Vec<Event> = response.events.into_iter().map(event_from_proto).collect();
        if events.is_empty() && told >= self.next {
            self.push(told, Arc::default());
        }
        for same in events.chunk_by(|a, b| a.kv.mod_revision == b.kv.mod_revision) {
            self.push(same.first().map_or(told, |event| event.kv.mod_revision), same.into());
        }
    }

    fn push(&mut self, revision: Revision, events: Arc<[Event]>) {
        self.next = revision + 1;
        self.ready.push_back(Batch { revision, events });
    }
}
