//! Answers the kubelet's probes: alive, and ready once the cluster's names are known.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(5);
const MAX_REQUEST: usize = 8192;

/// Serves `path` with 200 while `good` holds, 503 otherwise, and 404 for anything else.
pub(crate) async fn serve(listener: TcpListener, path: &'static str, good: Arc<AtomicBool>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let good = good.clone();
        tokio::spawn(async move {
            // A client that hangs up has no use for the outcome.
            drop(tokio::time::timeout(PATIENCE, respond(stream, path, good)).await);
        });
    }
}

async fn respond(mut stream: TcpStream, path: &str, good: Arc<AtomicBool>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < MAX_REQUEST {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let line = String::from_utf8_lossy(&request);
    let asked = line.split_whitespace().nth(1).and_then(|target| target.split('?').next());
    let (status, body) = match asked {
        Some(asked) if asked != path => ("404 Not Found", "not found"),
        _ if good.load(Ordering::Acquire) => ("200 OK", "OK"),
        _ => ("503 Service Unavailable", "names are not known yet"),
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}
