//! Clients that send nonsense, ask for too much or do not read: they are told so, and nobody else notices. What has an answer in
//! words is in the API scenarios.

use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use store::etcd::proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_request::RequestUnion,
};
use tonic::{
    Code, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::{Channel, Endpoint},
};

use crate::{
    child::Server,
    etcd::{Etcd, Served, connect, tool},
    session::Session,
};

/// Messages that are whatever bytes they are.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

async fn ask(channel: &Channel, path: &'static str, message: &'static [u8]) -> Result<Bytes, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let request = tonic::Request::new(Bytes::from_static(message));
    Ok(grpc.unary(request, http::uri::PathAndQuery::from_static(path), Raw).await?.into_inner())
}

/// A length that is not there, a number without an end, a field of the wrong kind.
async fn check_malformed(channel: Channel) {
    for message in [&b"\x0a\x7fshort"[..], b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0d\x01\x02\x03\x04"]
    {
        for path in ["/etcdserverpb.KV/Range", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn"] {
            let status = ask(&channel, path, message).await.unwrap_err();
            assert_eq!(status.code(), Code::Internal, "{path} {message:?}: {}", status.message());
        }
    }
    let status = ask(&channel, "/etcdserverpb.KV/Nonsense", b"").await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    put(&mut KvClient::new(channel), "a", 1).await;
}

#[tokio::test]
async fn a_malformed_message_is_refused_as_real_etcd_does() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path());
    check_malformed(served.channel().await).await;
    served.stop().await;
    let Some(binary) = tool("etcd") else { return };
    let etcd = Etcd::cluster(&binary, &dir.path().join("etcd"), 1).remove(0);
    connect(vec![etcd.endpoint.clone()]).await;
    check_malformed(Endpoint::new(etcd.endpoint.clone()).unwrap().connect().await.unwrap()).await;
}

async fn put(client: &mut KvClient<Channel>, key: &'static str, bytes: usize) {
    let value = vec![b'v'; bytes].into();
    client.put(PutRequest { key: key.into(), value, ..Default::default() }).await.unwrap();
}

fn watch(key: &'static str) -> WatchRequest {
    let request = WatchCreateRequest { key: key.into(), prev_kv: true, ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(request)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_watches_of_one_client_cost_little_and_harm_nobody() {
    const WATCHES: usize = 10_000;
    let server = Server::start().await;
    let mut other = KvClient::new(server.channel().await);
    put(&mut other, "b", 1).await;
    let before = server.resident_bytes();
    let Session { requests, mut responses } = Session::start(server.channel().await);
    let asking = tokio::spawn(async move {
        for _ in 0..WATCHES {
            requests.as_ref().unwrap().send(watch("a")).await.unwrap();
        }
        requests
    });
    for _ in 0..WATCHES {
        assert!(responses.recv().await.unwrap().unwrap().created);
    }
    let _open = asking.await.unwrap();
    let each = (server.resident_bytes() - before) / WATCHES as u64;
    assert!(each < 8 << 10, "{each} bytes a watch");
    // What none of them watches wakes none of them.
    let begun = Instant::now();
    for _ in 0..20 {
        put(&mut other, "b", 1).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    put(&mut other, "a", 1).await;
    for _ in 0..WATCHES {
        assert_eq!(responses.recv().await.unwrap().unwrap().events.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_open_a_stream_for_every_watch() {
    const STREAMS: usize = 2000;
    let server = Server::start().await;
    let (channel, before) = (server.channel().await, server.resident_bytes());
    let mut sessions: Vec<_> = (0..STREAMS).map(|_| Session::start(channel.clone())).collect();
    for session in &mut sessions {
        session.requests.as_ref().unwrap().send(watch("a")).await.unwrap();
        assert!(session.next().await.created);
    }
    let each = (server.resident_bytes() - before) / STREAMS as u64;
    assert!(each < 32 << 10, "{each} bytes a stream");
    put(&mut KvClient::new(channel), "a", 1).await;
    for session in &mut sessions {
        assert_eq!(session.next().await.events.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_hold_no_memory_and_hear_that_they_are_too_late() {
    const STREAMS: usize = 10;
    const PUTS: usize = 600;
    const VALUE_BYTES: usize = 256 << 10;
    let server = Server::start().await;
    let mut writer = KvClient::new(server.channel().await);
    let mut slow = Vec::new();
    for _ in 0..STREAMS {
        let mut session = Session::start(server.channel().await);
        session.requests.as_ref().unwrap().send(watch("a")).await.unwrap();
        assert!(session.next().await.created);
        slow.push(session);
    }
    let mut quick = Session::start(server.channel().await);
    quick.requests.as_ref().unwrap().send(watch("a")).await.unwrap();
    assert!(quick.next().await.created);
    let before = server.resident_bytes();
    let (mut largest, mut seen) = (0, 0);
    for _ in 0..PUTS {
        put(&mut writer, "a", VALUE_BYTES).await;
        // Several may come together.
        seen += quick.next().await.events.len();
        largest = largest.max(server.resident_bytes());
    }
    assert_eq!(seen, PUTS);
    let grown = (largest - before) >> 20;
    // Ten times what was written would be 1.5 GiB.
    assert!(grown < 160, "{grown} MiB more");
    for session in &mut slow {
        let mut last = 1;
        let end = loop {
            let response = session.next().await;
            if response.canceled {
                break response;
            }
            for event in response.events {
                let revision = event.kv.unwrap().mod_revision;
                assert_eq!(revision, last + 1, "without a gap until the end");
                last = revision;
            }
        };
        assert!(end.compact_revision > last, "{} after {last}", end.compact_revision);
    }
}

/// A list that nobody reads is not encoded ahead of its reader.
#[tokio::test(flavor = "multi_thread")]
async fn lists_that_are_not_read_cost_no_copy_of_the_store() {
    const LISTS: usize = 20;
    let server = Server::start().await;
    let mut writer = KvClient::new(server.channel().await);
    for key in ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"] {
        put(&mut writer, key, 1 << 20).await;
    }
    let before = server.resident_bytes();
    let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let mut unread = Vec::new();
    for _ in 0..LISTS {
        let mut grpc = tonic::client::Grpc::new(server.channel().await);
        grpc.ready().await.unwrap();
        let request = tonic::Request::new(prost::Message::encode_to_vec(&all).into());
        let path = http::uri::PathAndQuery::from_static("/etcdserverpb.KV/Range");
        unread.push(grpc.server_streaming(request, path, Raw).await.unwrap());
    }
    put(&mut writer, "other", 1).await;
    let grown = (server.resident_bytes().saturating_sub(before)) >> 20;
    assert!(grown < 100, "{grown} MiB for {LISTS} lists of 10 MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_store_neither_writes_nor_wakes() {
    const WATCHED: Duration = Duration::from_secs(4);
    let server = Server::start().await;
    let mut client = KvClient::new(server.channel().await);
    let mut session = Session::start(server.channel().await);
    session.requests.as_ref().unwrap().send(watch("a")).await.unwrap();
    assert!(session.next().await.created);
    for _ in 0..50 {
        put(&mut client, "a", 1000).await;
    }
    // What is under way comes to rest.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (written, sleeps) = (server.written_bytes(), server.sleeps());
    tokio::time::sleep(WATCHED).await;
    assert_eq!(server.written_bytes() - written, 0);
    let woken = server.sleeps() - sleeps;
    assert!(woken <= WATCHED.as_secs(), "woken {woken} times in {WATCHED:?}");
}
