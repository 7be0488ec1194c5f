//! One stream of the Watch service, message by message.

use std::time::Duration;

use store::etcd::proto::etcdserverpb::{
    WatchCreateRequest, WatchRequest, WatchResponse, watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, transport::Channel};

pub(crate) struct Session {
    /// `None` once this side of the stream is closed.
    pub(crate) requests: Option<mpsc::Sender<WatchRequest>>,
    pub(crate) responses: mpsc::Receiver<Result<WatchResponse, Status>>,
}

impl Session {
    /// etcd answers the call itself only with the first response, so it is waited for elsewhere.
    pub(crate) fn start(channel: Channel) -> Session {
        let (requests, outgoing) = mpsc::channel(16);
        let (forward, responses) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
            let mut incoming = client.watch(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
            while let Some(response) = incoming.message().await.transpose() {
                if forward.send(response).await.is_err() {
                    return;
                }
            }
        });
        Session { requests: Some(requests), responses }
    }

    pub(crate) async fn send(&self, request: RequestUnion) {
        let requests = self.requests.as_ref().expect("an open side");
        requests.send(WatchRequest { request_union: Some(request) }).await.unwrap();
    }

    pub(crate) async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.send(RequestUnion::CreateRequest(request)).await;
        self.next().await
    }

    pub(crate) async fn next(&mut self) -> WatchResponse {
        self.message().await.unwrap()
    }

    pub(crate) async fn message(&mut self) -> Result<WatchResponse, Status> {
        let next = tokio::time::timeout(Duration::from_secs(10), self.responses.recv());
        next.await.expect("a response").expect("no end")
    }
}
