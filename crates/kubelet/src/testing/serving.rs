//! The serving port, over real TLS: who is let in, followed logs, relayed streams.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Builder;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request as Handshake, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;

use super::{TestNode, is_ready};
use crate::server::Server;

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        (certificate, PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn roots(&self) -> rustls::RootCertStore {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }
}

struct Port {
    address: SocketAddr,
    authority: Authority,
}

impl Port {
    /// Serves what `node` runs.
    async fn open(node: &TestNode) -> Self {
        let authority = Authority::new();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(authority.roots());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .allow_unauthenticated();
        let verifier = verifier.build().unwrap();
        let (certificate, key) = authority.issue("system:node:node-1");
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let parts = node.server.as_ref().expect("a started node");
        let (_, static_pods) = watch::channel(Vec::new());
        let server = Server {
            context: parts.context.clone(),
            pods: parts.pods.clone(),
            static_pods,
            news: parts.news.clone(),
            tls: watch::channel(Arc::new(tls)).1,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server.run(listener, node.drain.clone()));
        Self { address, authority }
    }

    /// With a certificate, if a name is given.
    async fn connect(&self, name: Option<&str>) -> TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.authority.roots());
        let config = match name.map(|name| self.authority.issue(name)) {
            Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    async fn get(&self, name: &str, path: &str) -> hyper::Response<Incoming> {
        self.send(Some(name), Request::get(path)).await
    }

    async fn get_with_token(&self, token: &str, path: &str) -> hyper::Response<Incoming> {
        self.send(None, Request::get(path).header("authorization", format!("Bearer {token}"))).await
    }

    async fn send(&self, name: Option<&str>, request: Builder) -> hyper::Response<Incoming> {
        let stream = TokioIo::new(self.connect(name).await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = request.header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
        sender.send_request(request).await.unwrap()
    }
}

const API_SERVER: &str = "kube-apiserver-kubelet-client";

async fn text(response: hyper::Response<Incoming>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn node_with_pod() -> TestNode {
    let mut node = TestNode::new();
    node.start().await;
    node.create("web", json!({}));
    node.wait("web", "ready", is_ready).await;
    node
}

#[tokio::test]
async fn the_api_server_decides_who_may_use_the_kubelet() {
    let node = node_with_pod().await;
    let port = Port::open(&node).await;
    assert_eq!(text(port.send(None, Request::get("/pods")).await).await, (401, "Unauthorized".into()));
    assert_eq!(port.get_with_token("made-up", "/stats/summary").await.status(), 401);
    // What a metrics server does: allowed to read statistics, and nothing else.
    for _ in 0..2 {
        assert_ne!(port.get_with_token("scraper-token", "/stats/summary").await.status(), 403);
    }
    let forbidden = "Forbidden (user=scraper, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    assert_eq!(text(port.get_with_token("scraper-token", "/pods").await).await, (403, forbidden.into()));
    assert_eq!(port.get("reader", "/pods").await.status(), 200);
    assert_eq!(port.get("reader", "/containerLogs/default/web/c").await.status(), 403);
    let asked = [
        "token made-up",
        "token scraper-token",
        "get nodes node-1/stats",
        "get nodes node-1/pods",
        "get nodes node-1/proxy",
        "get nodes node-1/pods",
        "get nodes node-1/proxy",
    ];
    assert_eq!(node.api.reviews(), asked, "answers are remembered");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_cut_off() {
    let node = node_with_pod().await;
    let port = Port::open(&node).await;
    let mut silent = TcpStream::connect(port.address).await.unwrap();
    let mut byte = [0];
    assert_eq!(silent.read(&mut byte).await.unwrap_or(0), 0, "no handshake");
    let mut slow = port.connect(Some(API_SERVER)).await;
    slow.write_all(b"GET /pods HTTP/1.1\r\nhost: ").await.unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
}

#[tokio::test]
async fn only_the_api_server_is_served() {
    let node = node_with_pod().await;
    let port = Port::open(&node).await;
    assert_eq!(text(port.get(API_SERVER, "/healthz").await).await, (200, "ok".into()));
    assert_eq!(port.get("system:node:other", "/healthz").await.status(), 403);
    assert_eq!(port.get(API_SERVER, "/nothing").await.status(), 404);
    let (status, pods) = text(port.get(API_SERVER, "/pods").await).await;
    assert!(status == 200 && pods.contains("\"name\":\"web\""));
    let (status, message) = text(port.get(API_SERVER, "/containerLogs/default/none/c").await).await;
    assert_eq!((status, message.as_str()), (404, "pod \"none\" does not exist"));
    let (status, message) = text(port.get(API_SERVER, "/containerLogs/default/web/c?previous=true").await).await;
    assert_eq!((status, message.as_str()), (400, "previous terminated container \"c\" in pod \"web\" not found"));
}

#[tokio::test]
async fn a_followed_log_grows_survives_rotation_and_ends_with_its_container() {
    let node = node_with_pod().await;
    let port = Port::open(&node).await;
    let path = node.folder.path().join("logs/default_web_uid-web/c/0.log");
    let line = |text: &str| format!("2026-01-01T00:00:00Z stdout F {text}\n");
    std::fs::write(&path, line("one")).unwrap();
    let mut body = port.get(API_SERVER, "/containerLogs/default/web/c?follow=true").await.into_body();
    let mut next = async || {
        let frame = tokio::time::timeout(Duration::from_secs(10), body.frame()).await.expect("something in time");
        frame.map(|frame| String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
    };
    assert_eq!(next().await.as_deref(), Some("one\n"));
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(line("two").as_bytes()).unwrap();
    assert_eq!(next().await.as_deref(), Some("two\n"));
    std::fs::rename(&path, path.with_extension("log.1")).unwrap();
    std::fs::write(&path, line("three")).unwrap();
    assert_eq!(next().await.as_deref(), Some("three\n"));
    node.runtime.kill("c");
    assert_eq!(next().await, None, "the end of the container is the end of its log");
}

/// Echoes frames in the one subprotocol it knows, as a runtime's streaming server would speak.
async fn echo(protocol: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            #[allow(clippy::result_large_err)]
            let choose = |request: &Handshake, mut response: Response| -> Result<Response, ErrorResponse> {
                let offered = request.headers().get("sec-websocket-protocol").and_then(|value| value.to_str().ok());
                if !offered.is_some_and(|offered| offered.split(',').any(|one| one.trim() == protocol)) {
                    let mut refusal = ErrorResponse::new(None);
                    *refusal.status_mut() = tokio_tungstenite::tungstenite::http::StatusCode::FORBIDDEN;
                    return Err(refusal);
                }
                response.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(protocol));
                Ok(response)
            };
            let Ok(mut socket) = tokio_tungstenite::accept_hdr_async(stream, choose).await else { continue };
            while let Some(Ok(message)) = socket.next().await {
                if message.is_binary() && socket.send(message).await.is_err() {
                    break;
                }
            }
        }
    });
    url
}

/// A caller sends data and v5's close signal in the one subprotocol that the runtime speaks.
async fn exec_over(protocol: &'static str) {
    let node = node_with_pod().await;
    let port = Port::open(&node).await;
    node.runtime.stream_at(echo(protocol).await);
    let url = "wss://localhost/exec/default/web/c?command=sh&command=-c&output=1&input=1";
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(protocol));
    let stream = port.connect(Some(API_SERVER)).await;
    let (mut socket, response) = tokio_tungstenite::client_async(request, stream).await.expect("upgraded");
    assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
    for frame in [&b"\x00one"[..], b"\xff\x00", b"\x00two"] {
        socket.send(Message::Binary(Bytes::copy_from_slice(frame))).await.unwrap();
        let got = socket.next().await.unwrap().unwrap();
        assert_eq!(got.into_data(), frame, "{protocol}");
    }
    assert!(node.runtime.calls().contains(&"stream sh -c".to_owned()));
}

#[tokio::test]
async fn streams_reach_the_runtime_frame_by_frame() {
    exec_over("v5.channel.k8s.io").await;
    exec_over("v4.channel.k8s.io").await;
}
