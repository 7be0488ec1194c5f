//! Bytes that made other HTTP servers run out of memory or take one request for two, sent to this one over TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use rustls::pki_types::PrivateKeyDer;
use serving::{HTTP2, Handler, Peer, Port, Quota};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// As many streams as a connection may have.
const MAX_STREAMS: usize = 250;
/// Longer than the server takes for anything here.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a client that reads nothing tries to write.
const STALLED: Duration = Duration::from_secs(2);

/// What the handlers of a server do at a moment, and did at most.
#[derive(Default)]
struct Running {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A handler that runs for as long as this exists.
struct Counted(Arc<Running>);

impl Counted {
    fn begin(running: &Arc<Running>) -> Self {
        let now = running.now.fetch_add(1, Ordering::SeqCst) + 1;
        running.most.fetch_max(now, Ordering::SeqCst);
        Self(running.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers with the length of the body; `/wait` is never answered, and its body never read.
struct Echo(Arc<Running>);

impl Handler for Echo {
    type Body = Full<Bytes>;

    async fn handle(&self, request: Request<Incoming>) -> Response<Self::Body> {
        let _running = Counted::begin(&self.0);
        if request.uri().path() == "/wait" {
            std::future::pending::<()>().await;
        }
        let mut response = Response::new(Full::default());
        match request.into_body().collect().await {
            Ok(body) => *response.body_mut() = body.to_bytes().len().to_string().into(),
            Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
        }
        response
    }
}

struct Server {
    address: SocketAddr,
    running: Arc<Running>,
    roots: rustls::RootCertStore,
    drain: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.drain.cancel();
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Server {
    async fn start() -> Self {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a key");
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private)
            .expect("a configuration");
        tls.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
        let mut roots = rustls::RootCertStore::empty();
        roots.add(key.cert.der().clone()).expect("an authority");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (running, drain) = (Arc::new(Running::default()), CancellationToken::new());
        let (_, tls) = tokio::sync::watch::channel(Arc::new(tls));
        let port = Port { listener, tls, quota: Quota::unlimited(), drain: drain.clone(), tasks: Default::default() };
        let own = running.clone();
        tokio::spawn(serving::serve(port, move |_: Peer<'_>| Echo(own.clone())));
        Self { address, running, roots, drain }
    }

    async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let mut tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        let name = "localhost".try_into().expect("a name");
        tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await.expect("a handshake")
    }

    /// The status of the first response to these bytes, 0 if the connection ends without one, and all that came.
    async fn send(&self, bytes: &[u8]) -> (u16, String) {
        let mut stream = self.connect(b"http/1.1").await;
        // The server may be done before it has read everything.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        // Until it ends, or nothing more comes on a connection that stays open.
        while let Ok(Ok(read @ 1..)) = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut buffer)).await
        {
            answer.extend_from_slice(buffer.get(..read).unwrap_or_default());
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        (status, answer)
    }
}

/// CVE-2019-16276, CVE-2022-1705, CVE-2023-39326, CVE-2025-22871: where a request ends is read in one way by a proxy and in another
/// by the server behind it.
#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_requests_are_refused() {
    let server = Server::start().await;
    let (code, answer) = server.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").await;
    assert_eq!(code, 200, "{answer}");
    let chunked = |body: &str| format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    let (code, answer) = server.send(chunked("3;a=b\r\nabc\r\n0\r\n\r\n").as_bytes()).await;
    assert_eq!(code, 200, "{answer}");
    for refused in [
        "GET / HTTP/1.1\r\nhost : x\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd".to_owned(),
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\nabc".to_owned(),
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0x3\r\n\r\nabc".to_owned(),
        chunked("3\nabc\r\n0\r\n\r\n"),
        chunked("3;a\nabc\r\n0\r\n\r\n"),
        chunked("3\r\nabc0\r\n\r\n"),
        chunked("0x3\r\nabc\r\n0\r\n\r\n"),
        chunked("ffffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
        chunked(&format!("3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(1 << 20))),
    ] {
        let shown: String = refused.chars().take(120).collect();
        let (code, answer) = server.send(refused.as_bytes()).await;
        assert!(matches!(code, 0 | 400), "{shown:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), usize::from(code != 0), "{shown:?}: {answer}");
    }
}

/// CVE-2021-31525, CVE-2021-44716, CVE-2022-41717, CVE-2022-41723: headers of any size and number are kept, or take the processor's time.
#[tokio::test(flavor = "multi_thread")]
async fn headers_are_bounded() {
    let server = Server::start().await;
    let with = |headers: String| format!("GET / HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    assert_eq!(server.send(with("a: b\r\n".to_owned()).as_bytes()).await.0, 200);
    let many = (0..2000).map(|n| format!("x-{n}: y\r\n")).collect();
    for headers in [many, format!("x: {}\r\n", "y".repeat(4 << 20)), format!("{}: y\r\n", "x".repeat(4 << 20))] {
        let (code, answer) = server.send(with(headers).as_bytes()).await;
        assert!(matches!(code, 0 | 400 | 431), "{answer}");
    }
    // One small header in the table of the compression, referred to very often.
    let mut block = HEAD.to_vec();
    block.extend([&[0x40, 1, b'x', 100], [b'y'; 100].as_slice()].concat());
    block.extend([0xbe; 8000]);
    let mut stream = http2(&server).await;
    stream.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block)).await.expect("sent");
    let status = until(&mut stream, |frame| frame.stream == 1 && frame.kind == HEADERS).await;
    // 8 is :status 200 in the static table.
    assert!(status.is_none_or(|frame| frame.payload.first() != Some(&0x88)), "it was answered with success");
    assert_eq!(server.running.most.load(Ordering::SeqCst), 1, "the large requests reached the handler");
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET https://x/` in the compression's static table.
const HEAD: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'x'];
/// `POST https://x/wait`.
const WAIT: &[u8] = &[0x83, 0x87, 0x44, 5, b'/', b'w', b'a', b'i', b't', 0x41, 1, b'x'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a length").to_be_bytes();
    let head = [length.get(1..).unwrap_or_default(), &[kind, flags], &stream.to_be_bytes(), payload];
    head.concat()
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A connection on which both sides have said hello.
async fn http2(server: &Server) -> TlsStream<TcpStream> {
    let mut stream = server.connect(HTTP2).await;
    let hello = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(SETTINGS, 0, 0, &[])].concat();
    stream.write_all(&hello).await.expect("sent");
    until(&mut stream, |frame| frame.kind == SETTINGS && frame.flags & ACK == ACK).await.expect("settings");
    stream
}

/// Reads until a frame fits; none if the connection ends first.
async fn until(stream: &mut TlsStream<TcpStream>, fits: impl Fn(&Frame) -> bool) -> Option<Frame> {
    let found = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, id @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            stream.read_exact(&mut payload).await.ok()?;
            let frame = Frame { kind, flags, stream: u32::from_be_bytes(id), payload };
            if fits(&frame) {
                return Some(frame);
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("an answer, or the end of the connection")
}

/// Writes the same bytes again and again without reading. Returns how much the server took before it stopped reading or hung up.
async fn flood(stream: &mut TlsStream<TcpStream>, bytes: &[u8], most: usize) -> usize {
    let block = bytes.repeat((64 << 10) / bytes.len() + 1);
    let mut taken = 0;
    while taken < most {
        match tokio::time::timeout(STALLED, stream.write_all(&block)).await {
            Ok(Ok(())) => taken += block.len(),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    taken
}

/// CVE-2019-9512, CVE-2019-9515, CVE-2019-9518, CVE-2023-45288, CVE-2026-27141: frames that cost the sender little and the server much.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_http2_frames_end_the_connection_or_wait() {
    let server = Server::start().await;
    // Each is answered, and the client reads no answer: the server must not keep them.
    for frames in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let mut stream = http2(&server).await;
        let taken = flood(&mut stream, &frames, 256 << 20).await;
        assert!(taken < 256 << 20, "the server took everything");
    }
    // Headers that never end.
    let mut stream = http2(&server).await;
    stream.write_all(&frame(HEADERS, END_STREAM, 1, HEAD)).await.expect("sent");
    let field = [&[0x00, 1, b'x', 100], [b'y'; 100].as_slice()].concat();
    let taken = flood(&mut stream, &frame(CONTINUATION, 0, 1, &field.repeat(100)), 64 << 20).await;
    assert!(taken < 64 << 20, "the server took headers without end");
    // Data without content on a request that is not read, and frames of types that do not exist: both mean nothing.
    let mut stream = http2(&server).await;
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, WAIT)).await.expect("sent");
    for nothing in
        [frame(DATA, 0, 1, &[]), frame(0x0a, 0, 0, &[1; 4]), frame(0x0f, 0xff, 1, &[]), frame(0xf0, 0, 0, &[])]
    {
        // The server may find that it is enough.
        let _ = stream.write_all(&nothing.repeat(10_000)).await;
    }
    let _ = stream.write_all(&frame(PING, 0, 0, b"are you?")).await;
    let answer = until(&mut stream, |frame| frame.kind == PING || frame.kind == GO_AWAY).await;
    assert!(answer.is_none_or(|frame| frame.kind == GO_AWAY || frame.payload == b"are you?"));
    assert_eq!(
        server.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.0,
        200,
        "others are served"
    );
}

/// CVE-2019-9514, CVE-2023-39325, CVE-2023-44487: requests that are withdrawn at once go on running beside those that follow.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_run_no_more_requests_than_streams() {
    let server = Server::start().await;
    let stream = http2(&server).await;
    let mut frames = Vec::new();
    for id in (1..).step_by(2).take(50_000) {
        frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, id, WAIT));
        frames.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
    }
    let (mut reader, mut writer) = tokio::io::split(stream);
    let drained = tokio::spawn(async move { drop(tokio::io::copy(&mut reader, &mut tokio::io::sink()).await) });
    // It may hang up in the middle.
    let _ = tokio::time::timeout(PATIENCE, writer.write_all(&frames)).await.expect("written or refused");
    let most = server.running.most.load(Ordering::SeqCst);
    assert!(most <= MAX_STREAMS, "{most} requests ran at once");
    drop(writer);
    drained.abort();
    assert_eq!(
        server.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.0,
        200,
        "others are served"
    );
    let ended = async {
        while server.running.now.load(Ordering::SeqCst) != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("withdrawn requests end");
}
