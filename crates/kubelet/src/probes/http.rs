//! HTTP requests to containers, for probes and lifecycle hooks: plain or TLS without verification, one connection each.

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::action::{Answer, PortError, port};

const MAX_BODY: usize = 10 * 1024;
const MAX_REDIRECTS: usize = 10;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) agent: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("dial tcp {address}: {}", describe(.source))]
    Connect { address: String, source: io::Error },
    #[error("tls: {0}")]
    Tls(io::Error),
    #[error("{0}")]
    Protocol(#[from] hyper::Error),
    #[error("invalid request: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
}

/// What upstream's users read for the common errors.
pub(crate) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => error.to_string(),
    }
}

pub(crate) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

pub(crate) fn target(get: &HTTPGetAction, container: &Container, pod_ip: &str) -> Result<Target, PortError> {
    let path = get.path.clone().unwrap_or_default();
    Ok(Target {
        tls: get.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host: get.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| pod_ip.to_owned()),
        port: port(&get.port, container)?,
        path: if path.starts_with('/') { path } else { format!("/{path}") },
        headers: get.http_headers.iter().flatten().map(|header| (header.name.clone(), header.value.clone())).collect(),
        agent: "kube-probe/1.36",
    })
}

pub(crate) async fn probe(target: &Target, timeout: Duration) -> Answer {
    match tokio::time::timeout(timeout, follow(target)).await {
        Err(_) => Answer::Failure(format!("Get \"{}\": {}", url(target), HttpError::Timeout)),
        Ok(Err(error)) => Answer::Failure(format!("Get \"{}\": {error}", url(target))),
        Ok(Ok((status, body))) => match status {
            200..300 => Answer::Success,
            300..400 => Answer::Warning(format!("Probe terminated redirects, Response body: {body}")),
            _ => Answer::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
    }
}

pub(crate) fn url(target: &Target) -> String {
    let scheme = if target.tls { "https" } else { "http" };
    format!("{scheme}://{}{}", join(&target.host, target.port), target.path)
}

/// Follows redirects on the same host; one to another host is the answer.
async fn follow(target: &Target) -> Result<(u16, String), HttpError> {
    let mut at = target.clone();
    for _ in 0..MAX_REDIRECTS {
        let (status, location, body) = get(&at).await?;
        let next = location.filter(|_| (300..400).contains(&status)).and_then(|to| redirect(&at, &to));
        match next {
            Some(next) => at = next,
            None => return Ok((status, body)),
        }
    }
    Ok((310, "stopped after 10 redirects".to_owned()))
}

fn redirect(from: &Target, to: &str) -> Option<Target> {
    if to.starts_with('/') {
        return Some(Target { path: to.to_owned(), ..from.clone() });
    }
    let to: hyper::Uri = to.parse().ok()?;
    let tls = to.scheme_str() == Some("https");
    let host = to.host()?.trim_matches(['[', ']']).to_owned();
    let port = to.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let path = to.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    (host == from.host).then(|| Target { tls, host, port, path, ..from.clone() })
}

/// The status, where it points, and the beginning of the body.
pub(crate) async fn get(target: &Target) -> Result<(u16, Option<String>, String), HttpError> {
    let address = join(&target.host, target.port);
    let connect = TcpStream::connect((target.host.as_str(), target.port)).await;
    let stream = connect.map_err(|source| HttpError::Connect { address: address.clone(), source })?;
    let response = if target.tls {
        let name = ServerName::try_from(target.host.clone())
            .map_err(|error| HttpError::Tls(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let connector = tokio_rustls::TlsConnector::from(UNVERIFIED.clone());
        send(TokioIo::new(connector.connect(name, stream).await.map_err(HttpError::Tls)?), target).await?
    } else {
        send(TokioIo::new(stream), target).await?
    };
    let status = response.status().as_u16();
    let location = response.headers().get("location").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = response.into_body();
    let mut text = Vec::new();
    while text.len() < MAX_BODY {
        match body.frame().await {
            Some(frame) => text.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data)),
            None => break,
        }
    }
    text.truncate(MAX_BODY);
    Ok((status, location, String::from_utf8_lossy(&text).into_owned()))
}

async fn send<S>(stream: S, target: &Target) -> Result<hyper::Response<Incoming>, HttpError>
where
    S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(async move {
        // An error of the connection is seen by the request that needs it.
        let _ = connection.await;
    });
    let has = |name: &str| target.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
    let mut request = Request::get(target.path.as_str()).header("connection", "close");
    if has("host").is_none() {
        request = request.header("host", join(&target.host, target.port));
    }
    if has("user-agent").is_none() {
        request = request.header("user-agent", target.agent);
    }
    if has("accept").is_none() {
        request = request.header("accept", "*/*");
    }
    for (name, value) in
        target.headers.iter().filter(|(name, value)| !(name.eq_ignore_ascii_case("accept") && value.is_empty()))
    {
        request = request.header(name, value);
    }
    Ok(sender.send_request(request.body(Empty::<Bytes>::new())?).await?)
}

/// Probes speak to containers whose certificates nobody vouches for.
static UNVERIFIED: LazyLock<Arc<rustls::ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(AnyCertificate(provider.clone()));
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.unwrap_or_else(|_| rustls::ClientConfig::builder());
    Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
});

#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Serves `answers` one connection each and probes the path `/`.
    async fn check(answers: &[&str], want: Answer) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let answers: Vec<String> = answers.iter().map(|answer| answer.replace("PORT", &port.to_string())).collect();
        let server = tokio::spawn(async move {
            let mut seen = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut buffer = [0; 1024];
                let n = stream.read(&mut buffer).await.expect("a request");
                seen.push(String::from_utf8_lossy(&buffer[..n]).into_owned());
                stream.write_all(answer.as_bytes()).await.expect("written");
            }
            seen
        });
        let target = Target {
            tls: false,
            host: "127.0.0.1".into(),
            port,
            path: "/".into(),
            headers: vec![("X-A".into(), "b".into())],
            agent: "kube-probe/1.36",
        };
        assert_eq!(probe(&target, Duration::from_secs(5)).await, want);
        let seen = server.await.expect("served");
        assert!(
            seen.iter().all(|request| request.contains("x-a: b") && request.contains("user-agent: kube-probe/1.36"))
        );
    }

    #[tokio::test]
    async fn verdicts_by_status() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        check(&[ok], Answer::Success).await;
        check(
            &["HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"],
            Answer::Failure("HTTP probe failed with statuscode: 503".into()),
        )
        .await;
        check(&["HTTP/1.1 302 F\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", ok], Answer::Success).await;
        check(
            &["HTTP/1.1 302 F\r\nlocation: http://127.0.0.1:PORT/x\r\ncontent-length: 0\r\n\r\n", ok],
            Answer::Success,
        )
        .await;
        check(
            &["HTTP/1.1 302 F\r\nlocation: http://elsewhere/x\r\ncontent-length: 2\r\n\r\nhi"],
            Answer::Warning("Probe terminated redirects, Response body: hi".into()),
        )
        .await;
    }

    #[tokio::test]
    async fn a_refused_connection_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let target = Target {
            tls: false,
            host: "127.0.0.1".into(),
            port,
            path: "/h".into(),
            headers: vec![],
            agent: "kube-probe/1.36",
        };
        let want = format!("Get \"http://127.0.0.1:{port}/h\": dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(probe(&target, Duration::from_secs(5)).await, Answer::Failure(want));
    }
}
