//! The answer to a range, encoded piece by piece as its reader takes it.
//!
//! A range may be as large as the store. Encoded whole, every list would cost its size in memory once more, and nothing of it would
//! be on its way before the last key is encoded. A protobuf message may be cut between its fields and the pieces sent one
//! after the other, so only the length must be known first.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body::{Body as HttpBody, Frame};
use prost::Message;
use tonic::{Code, Status, Streaming, body::Body, codec::Codec, metadata::GRPC_CONTENT_TYPE, server::NamedService};
use tonic_prost::ProstCodec;
use tower::Service;

use super::{MAX_MESSAGE_BYTES, Server};
use crate::etcd::proto::{
    etcdserverpb::{
        self as pb,
        kv_server::{Kv, KvServer},
    },
    mvccpb,
};

/// A piece is finished when it is at least this long: a few frames' worth.
const PIECE_BYTES: usize = 64 << 10;
const RANGE: &str = "/etcdserverpb.KV/Range";

/// The KV service, with ranges answered in pieces.
#[derive(Clone)]
pub(super) struct Listings {
    server: Server,
    others: KvServer<Server>,
}

impl Listings {
    pub(super) fn new(server: Server) -> Listings {
        Listings { others: KvServer::new(server.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES), server }
    }

    async fn list(self, request: Request<Body>) -> Result<pb::RangeResponse, Status> {
        let decoder = ProstCodec::<pb::RangeResponse, pb::RangeRequest>::default().decoder();
        let mut messages = Streaming::new_request(decoder, request.into_body(), None, Some(MAX_MESSAGE_BYTES));
        let request = messages.message().await?.ok_or_else(|| Status::internal("a call without a request"))?;
        Ok(self.server.range(tonic::Request::new(request)).await?.into_inner())
    }
}

impl NamedService for Listings {
    const NAME: &'static str = <KvServer<Server> as NamedService>::NAME;
}

impl Service<Request<Body>> for Listings {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() != RANGE {
            let answer = self.others.call(request);
            return Box::pin(async move { answer.await.map(too_large_as_etcd) });
        }
        let this = self.clone();
        Box::pin(async move {
            Ok(match this.list(request).await {
                Ok(answer) => {
                    let mut response = Response::new(Body::new(Pieces::new(answer)));
                    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
                    response
                }
                Err(status) => status.into_http(),
            })
        })
    }
}

/// Of a message that is too long to be read, our library says so in its own way; clients know that of Go's.
fn too_large_as_etcd(response: Response<Body>) -> Response<Body> {
    let refusal = Status::from_header_map(response.headers()).filter(|status| status.code() == Code::OutOfRange);
    let bytes = refusal.as_ref().and_then(|status| {
        let said = status.message().split_once("message length too large: found ")?.1;
        said.split(' ').next()
    });
    match bytes {
        Some(bytes) => {
            let text = format!("grpc: received message larger than max ({bytes} vs. {MAX_MESSAGE_BYTES})");
            Status::resource_exhausted(text).into_http()
        }
        None => response,
    }
}

/// What is still to be sent of an answer.
struct Pieces {
    /// All but the keys, with the length of the whole in front.
    head: Option<Bytes>,
    kvs: vec::IntoIter<mvccpb::KeyValue>,
    ended: bool,
}

impl Pieces {
    fn new(mut answer: pb::RangeResponse) -> Pieces {
        let len = answer.encoded_len();
        let kvs = std::mem::take(&mut answer.kvs).into_iter();
        let mut head = BytesMut::new();
        // No more than 4 GiB can be said to come; a store in memory is far from it.
        head.put_u8(0);
        head.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
        answer.encode_raw(&mut head);
        Pieces { head: Some(head.freeze()), kvs, ended: false }
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if let Some(head) = self.head.take() {
            return Some(Frame::data(head));
        }
        let mut piece = pb::RangeResponse::default();
        let mut bytes = 0;
        while bytes < PIECE_BYTES
            && let Some(kv) = self.kvs.next()
        {
            bytes += kv.key.len() + kv.value.len();
            piece.kvs.push(kv);
        }
        if !piece.kvs.is_empty() {
            return Some(Frame::data(piece.encode_to_vec().into()));
        }
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        Some(Frame::trailers(HeaderMap::from_iter([(Status::GRPC_STATUS, HeaderValue::from_static("0"))])))
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_are_the_whole_message() {
        check(&[], 1);
        check(&[10], 2);
        check(&[PIECE_BYTES / 2, PIECE_BYTES / 2, 1], 3);
        check(&[10 * PIECE_BYTES, 1, 1], 3);
        check(&[1000; 200], 5);
    }

    #[track_caller]
    fn check(sizes: &[usize], data_frames: usize) {
        let kv =
            |size: &usize| mvccpb::KeyValue { key: "k".into(), value: vec![7; *size].into(), ..Default::default() };
        let kvs: Vec<_> = sizes.iter().map(kv).collect();
        let answer = pb::RangeResponse { header: Some(Default::default()), kvs, more: true, count: 9 };
        let mut pieces = Pieces::new(answer.clone());
        let (mut sent, mut frames) = (Vec::new(), 0);
        let trailers = loop {
            match pieces.next().unwrap().into_data() {
                Ok(data) => sent.extend_from_slice(&data),
                Err(trailers) => break trailers,
            }
            frames += 1;
        };
        assert_eq!(frames, data_frames, "{sizes:?}");
        assert_eq!(trailers.into_trailers().unwrap().get(Status::GRPC_STATUS).unwrap(), "0");
        assert!(pieces.next().is_none());
        let (prefix, message) = sent.split_at(5);
        assert_eq!(prefix, [&[0], &(message.len() as u32).to_be_bytes()[..]].concat());
        assert_eq!(pb::RangeResponse::decode(message).unwrap(), answer);
    }
}
