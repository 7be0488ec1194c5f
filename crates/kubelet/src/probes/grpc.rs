//! gRPC health checks: `grpc.health.v1.Health/Check`, whose two one-field messages are written and read by hand.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::action::Answer;
use super::http::{describe, join};

const SERVING: u64 = 1;

pub(crate) async fn probe(host: &str, port: u16, service: &str, timeout: Duration) -> Answer {
    let address = join(host, port);
    match tokio::time::timeout(timeout, check(host, port, service)).await {
        Err(_) => {
            Answer::Failure(format!("timeout: failed to connect service \"{address}\" within {}s", timeout.as_secs()))
        }
        Ok(Err(error)) => Answer::Failure(format!("error: {error}")),
        Ok(Ok(SERVING)) => Answer::Success,
        Ok(Ok(status)) => {
            let name = match status {
                0 => "UNKNOWN",
                2 => "NOT_SERVING",
                3 => "SERVICE_UNKNOWN",
                _ => "?",
            };
            Answer::Failure(format!("service unhealthy (responded with \"{name}\")"))
        }
    }
}

async fn check(host: &str, port: u16, service: &str) -> Result<u64, String> {
    let address = join(host, port);
    let connect = TcpStream::connect((host, port)).await;
    let stream = connect.map_err(|error| format!("failed to connect service \"{address}\": {}", describe(&error)))?;
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        // An error of the connection is seen by the request that needs it.
        let _ = connection.await;
    });
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(Full::new(Bytes::from(encode(service))))
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let early = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
    let trailer = body.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned();
    let code = trailer.or(early).and_then(|value| value.to_str().ok().map(str::to_owned)).unwrap_or_default();
    match code.as_str() {
        "0" | "" => Ok(decode(&body.to_bytes())),
        "12" => Err("this server does not implement the grpc health protocol (grpc.health.v1.Health)".to_owned()),
        code => Err(format!("health rpc failed with status code {code}")),
    }
}

/// A length-prefixed message with the service's name as field 1.
fn encode(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
            length >>= 7;
        }
        message.push(u8::try_from(length).unwrap_or(0));
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}

/// Field 1 of the reply; left out means zero, UNKNOWN.
fn decode(framed: &[u8]) -> u64 {
    match framed.get(5..) {
        Some([0x08, status, ..]) => u64::from(*status),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        assert_eq!(encode(""), [0, 0, 0, 0, 0]);
        assert_eq!(encode("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(decode(&[0, 0, 0, 0, 2, 8, 1]), SERVING);
        assert_eq!(decode(&[0, 0, 0, 0, 0]), 0);
    }
}
