//! The running server over UDP and TCP on loopback, with an upstream resolver of the test's own.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // clippy lets only #[test] functions do so; these share theirs.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use client::{Drain, Informers};
use dns::DnsConfig;
use hickory_proto::op::{Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_secs(5);

/// An API with one namespace, a service, an alias, and a headless service of a hundred pods.
fn api() -> kube::Client {
    let meta = |name: &str| json!({ "name": name, "namespace": "default", "uid": name, "resourceVersion": "1" });
    let services = json!([
        { "metadata": meta("web"), "spec": { "clusterIP": "10.96.0.5", "ports": [{ "name": "http", "port": 80 }] } },
        { "metadata": meta("out"), "spec": { "type": "ExternalName", "externalName": "www.example.org" } },
        { "metadata": meta("loop"), "spec": { "type": "ExternalName", "externalName": "loop.default.svc.cluster.local" } },
        { "metadata": meta("near"), "spec": { "type": "ExternalName", "externalName": "web.default.svc.cluster.local" } },
        { "metadata": meta("many"), "spec": { "clusterIP": "None", "ports": [{ "name": "x", "port": 80 }] } },
    ]);
    let endpoints: Vec<_> = (0..100).map(|n| json!({ "addresses": [format!("10.244.0.{n}")] })).collect();
    let mut slice = json!({ "metadata": meta("many-1"), "addressType": "IPv4", "ports": [{ "name": "x", "port": 80 }], "endpoints": endpoints });
    slice["metadata"]["labels"] = json!({ "kubernetes.io/service-name": "many" });
    let namespaces = json!([{ "metadata": { "name": "default", "uid": "n", "resourceVersion": "1" } }]);
    let handler = move |request: http::Request<client::Body>| {
        let items = match request.uri().path().rsplit('/').next().unwrap() {
            "services" => services.clone(),
            "endpointslices" => json!([slice]),
            _ => namespaces.clone(),
        };
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        async move {
            if watch {
                std::future::pending::<()>().await;
            }
            let list: Value = json!({ "metadata": { "resourceVersion": "1" }, "items": items });
            http::Response::new(Full::<bytes::Bytes>::from(list.to_string()))
        }
    };
    client::in_process(handler, api::UserInfo::default())
}

/// Answers every question with 192.0.2.80, over UDP truncated if the name begins with "big", and over TCP whole.
async fn upstream() -> SocketAddr {
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = udp.local_addr().unwrap();
    let tcp = TcpListener::bind(address).await.unwrap();
    let respond = |bytes: &[u8], over_udp: bool| {
        let mut message = Message::from_vec(bytes).unwrap();
        message.metadata.message_type = MessageType::Response;
        let name = message.queries[0].name().clone();
        message.metadata.truncation = over_udp && name.to_string().starts_with("big");
        if !message.metadata.truncation {
            message.add_answer(Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, 80))));
        }
        message.to_vec().unwrap()
    };
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, peer)) = udp.recv_from(&mut buffer).await {
            udp.send_to(&respond(&buffer[..length], true), peer).await.unwrap();
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
            stream.read_exact(&mut bytes).await.unwrap();
            let response = respond(&bytes, false);
            stream.write_u16(response.len() as u16).await.unwrap();
            stream.write_all(&response).await.unwrap();
        }
    });
    address
}

struct Running {
    address: SocketAddr,
    readiness: SocketAddr,
    drain: Drain,
    server: tokio::task::JoinHandle<Result<(), dns::DnsError>>,
}

/// Loopback ports nobody listens on, taken and given back.
fn free_port() -> SocketAddr {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

async fn start() -> Running {
    let upstream = upstream().await;
    start_with(vec![upstream]).await
}

async fn start_with(upstreams: Vec<SocketAddr>) -> Running {
    let drain = Drain::new();
    let mut config = DnsConfig::new(free_port(), "cluster.local");
    config.upstreams = upstreams;
    (config.health, config.readiness) = (Some(free_port()), Some(free_port()));
    let (address, readiness) = (config.listen, config.readiness.unwrap());
    let (ready, is_ready) = oneshot::channel();
    let informers = Informers::new(api(), drain.clone());
    let server = tokio::spawn(dns::run(config, informers, move || ready.send(()).unwrap(), drain.clone()));
    tokio::time::timeout(PATIENCE, is_ready).await.unwrap().unwrap();
    Running { address, readiness, drain, server }
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

async fn over_udp(server: SocketAddr, message: &Message) -> Message {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(&message.to_vec().unwrap(), server).await.unwrap();
    let mut buffer = [0; 4096];
    let length = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await.unwrap().unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

async fn over_tcp(server: SocketAddr, message: &Message) -> Message {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let bytes = message.to_vec().unwrap();
    stream.write_u16(bytes.len() as u16).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut bytes).await.unwrap();
    Message::from_vec(&bytes).unwrap()
}

fn data(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

#[tokio::test]
async fn cluster_names_are_answered_over_both_transports() {
    let running = start().await;
    let web = question("web.default.svc.cluster.local.", RecordType::A);
    for response in [over_udp(running.address, &web).await, over_tcp(running.address, &web).await] {
        assert_eq!(response.metadata.id, web.metadata.id);
        assert!(
            response.metadata.authoritative
                && response.metadata.recursion_available
                && response.metadata.recursion_desired
        );
        assert_eq!(data(&response), ["10.96.0.5"]);
    }
    let absent = over_udp(running.address, &question("no.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(absent.metadata.response_code, ResponseCode::NXDomain);
    let many = question("many.default.svc.cluster.local.", RecordType::A);
    assert!(over_udp(running.address, &many).await.metadata.truncation);
    let first = over_tcp(running.address, &many).await;
    assert_eq!(first.answers.len(), 100);
    assert_ne!(over_tcp(running.address, &many).await.answers[0], first.answers[0], "clients are spread");
    running.drain.cancel();
    running.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn other_names_are_asked_upstream_and_aliases_followed() {
    let running = start().await;
    let world = question("www.example.org.", RecordType::A);
    for response in [over_udp(running.address, &world).await, over_tcp(running.address, &world).await] {
        assert_eq!((response.metadata.id, data(&response)), (world.metadata.id, vec!["192.0.2.80".to_owned()]));
    }
    let alias = over_udp(running.address, &question("out.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(data(&alias), ["www.example.org.", "192.0.2.80"]);
    let near = over_udp(running.address, &question("near.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(data(&near), ["web.default.svc.cluster.local.", "10.96.0.5"]);
    let endless = over_udp(running.address, &question("loop.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(endless.metadata.response_code, ResponseCode::ServFail);
    let big = question("big.example.org.", RecordType::A);
    assert!(over_udp(running.address, &big).await.metadata.truncation, "the client decides to ask again");
    assert_eq!(data(&over_tcp(running.address, &big).await), ["192.0.2.80"]);
    running.drain.cancel();
    running.server.await.unwrap().unwrap();
}

/// As in a pod whose resolver is the cluster DNS itself.
#[tokio::test]
async fn the_cluster_is_never_its_own_upstream() {
    let running = start_with(vec![SocketAddr::from(([10, 96, 0, 5], 53))]).await;
    let response = over_udp(running.address, &question("www.example.org.", RecordType::A)).await;
    assert_eq!(response.metadata.response_code, ResponseCode::ServFail);
    running.drain.cancel();
    running.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn probes_are_answered() {
    let running = start().await;
    let get = async |path: &str| {
        let mut stream = TcpStream::connect(running.readiness).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response.lines().next().unwrap().to_owned()
    };
    assert_eq!(get("/ready").await, "HTTP/1.1 200 OK");
    assert_eq!(get("/other").await, "HTTP/1.1 404 Not Found");
    running.drain.cancel();
    running.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_an_error_at_once() {
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let drain = Drain::new();
    let config = DnsConfig::new(taken.local_addr().unwrap(), "cluster.local");
    let outcome = dns::run(config, Informers::new(api(), drain.clone()), || (), drain).await;
    assert!(outcome.unwrap_err().to_string().starts_with("cannot listen on 127.0.0.1:"));
}
