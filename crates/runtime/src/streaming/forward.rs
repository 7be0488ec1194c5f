//! Port-forward sessions: connections to 127.0.0.1 inside the pod's network, each with a channel for its errors.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use cri::v1::PortForwardRequest;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use super::channels::{Client, StreamError, pump_out};
use crate::Runtime;
use crate::sandbox::host_network;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Two channels per port, and one byte to name them.
const MAX_PORTS: usize = 127;
const READ_BYTES: usize = 32 << 10;

/// Each port of the request has a data and an error channel for one connection.
pub(super) async fn serve_channels(
    runtime: &Runtime,
    client: Client,
    request: PortForwardRequest,
    query: &str,
) -> Result<(), StreamError> {
    let place = Place::of(runtime, &request)?;
    let ports = ports(&request, query);
    if ports.is_empty() || ports.len() > MAX_PORTS {
        return Err(StreamError::Refused("no ports, or too many".to_owned()));
    }
    let Client { mut incoming, outbox, writer } = client;
    let mut halves: Vec<Option<OwnedWriteHalf>> = Vec::new();
    for (port, channel) in ports.iter().zip((0u8..).step_by(2)) {
        // Both channels open with the port they serve.
        outbox.send(channel, &port.to_le_bytes()).await;
        outbox.send(channel + 1, &port.to_le_bytes()).await;
        match place.dial(*port).await {
            Ok(stream) => {
                let (reader, half) = stream.into_split();
                tokio::spawn(pump_out(Box::new(reader), channel, outbox.clone()));
                halves.push(Some(half));
            }
            Err(message) => {
                outbox.send(channel + 1, message.as_bytes()).await;
                halves.push(None);
            }
        }
    }
    while let Some((channel, data)) = incoming.next().await {
        if let Some(slot) = halves.get_mut(usize::from(channel / 2))
            && let Some(half) = slot
        {
            let is_over = match data {
                Some(data) => half.write_all(&data).await.is_err(),
                None => true,
            };
            if is_over {
                *slot = None;
            }
        }
    }
    drop((halves, outbox));
    writer.abort();
    Ok(())
}

/// Each connection has a data and an error stream, which name the port and, by a number, each other.
pub(super) async fn serve_streams(
    runtime: &Runtime,
    mut connection: spdy::Connection,
    request: &PortForwardRequest,
) -> Result<(), StreamError> {
    let place = Place::of(runtime, request)?;
    // A pair that never gets whole waits here for the end of the connection; the connection bounds its streams.
    let mut halves: HashMap<String, spdy::Stream> = HashMap::new();
    while let Some(stream) = connection.accept().await {
        // One that names no port or purpose is dropped, and so reset.
        let Some((port, is_data, id)) = purpose(&stream) else { continue };
        let other = match halves.remove(&id) {
            Some(other) if purpose(&other).is_some_and(|(_, other, _)| other != is_data) => other,
            _ => {
                halves.insert(id, stream);
                continue;
            }
        };
        let (data, error) = if is_data { (stream, other) } else { (other, stream) };
        tokio::spawn(forward(place.clone(), port, data, error.writer));
    }
    Ok(())
}

fn purpose(stream: &spdy::Stream) -> Option<(u16, bool, String)> {
    let port = stream.headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    let is_data = match stream.headers.get("streamtype")? {
        "data" => true,
        "error" => false,
        _ => return None,
    };
    // A client without request numbers opens the error stream and then the data stream.
    let id = stream.headers.get("requestid").filter(|id| !id.is_empty()).map(str::to_owned);
    let id = id.unwrap_or_else(|| stream.id.saturating_sub(if is_data { 2 } else { 0 }).to_string());
    Some((port, is_data, id))
}

async fn forward(place: Place, port: u16, data: spdy::Stream, error: spdy::StreamWriter) {
    let spdy::Stream { mut reader, writer, .. } = data;
    let stream = match place.dial(port).await {
        Ok(stream) => stream,
        Err(message) => {
            error.send(message.into()).await;
            error.finish().await;
            writer.reset().await;
            return;
        }
    };
    let (mut from_pod, mut to_pod) = stream.into_split();
    let input = async {
        while let Some(piece) = reader.next().await {
            if to_pod.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to_pod.shutdown().await;
    };
    let output = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(READ_BYTES);
            match from_pod.read_buf(&mut buffer).await {
                Ok(1..) if writer.send(buffer.split().freeze()).await => (),
                _ => return,
            }
        }
    };
    // When the pod has sent its last, what the client still sends has no reader who could answer.
    let whole = async {
        tokio::pin!(output);
        tokio::select! {
            () = &mut output => (),
            () = input => output.await,
        }
    };
    tokio::select! {
        () = whole => (),
        () = writer.ended() => (),
    }
    writer.finish().await;
    error.finish().await;
}

/// Where the ports are.
#[derive(Clone)]
struct Place {
    sandbox: String,
    netns: Option<PathBuf>,
}

impl Place {
    fn of(runtime: &Runtime, request: &PortForwardRequest) -> Result<Self, StreamError> {
        let sandbox = runtime.sandbox(&request.pod_sandbox_id);
        let sandbox = sandbox.ok_or_else(|| StreamError::Refused("no such sandbox".to_owned()))?;
        let netns = (!host_network(&sandbox.record().config.0)).then(|| sandbox.netns());
        Ok(Self { sandbox: request.pod_sandbox_id.clone(), netns })
    }

    /// A failure is said as upstream's runtimes say it: people search for these words.
    async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        dial(self.netns.clone(), port).await.map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
                io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
                _ => error.to_string(),
            };
            let netns = self.netns.as_deref().unwrap_or(Path::new("host")).display();
            format!(
                "error forwarding port {port} to pod {}, uid : failed to execute portforward in network namespace \
                 \"{netns}\": failed to connect to localhost:{port} inside namespace \"{}\": dial tcp4 \
                 127.0.0.1:{port}: connect: {why}",
                self.sandbox, self.sandbox
            )
        })
    }
}

/// From the request, or else from the URL (`port=80&port=81`, `ports=80,81`).
fn ports(request: &PortForwardRequest, query: &str) -> Vec<u16> {
    let asked: Vec<u16> = request.port.iter().filter_map(|port| u16::try_from(*port).ok()).collect();
    if !asked.is_empty() {
        return asked;
    }
    let values =
        query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(key, _)| matches!(*key, "port" | "ports"));
    values.flat_map(|(_, value)| value.split(',')).filter_map(|port| port.parse().ok()).collect()
}

/// Connects inside a network namespace. A thread enters it, connects, and ends; the socket stays where it was made.
async fn dial(netns: Option<PathBuf>, port: u16) -> io::Result<TcpStream> {
    let (connected, connection) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("port-forward".to_owned()).spawn(move || {
        let work = || -> io::Result<std::net::TcpStream> {
            if let Some(path) = netns {
                nix::sched::setns(File::open(path)?, nix::sched::CloneFlags::CLONE_NEWNET)?;
            }
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for host in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
                match std::net::TcpStream::connect_timeout(&SocketAddr::new(host, port), CONNECT_PATIENCE) {
                    Ok(stream) => return Ok(stream),
                    Err(error) if host.is_ipv4() => last = error,
                    Err(_) => (),
                }
            }
            Err(last)
        };
        let _ = connected.send(work());
    })?;
    let stream = connection.await.map_err(io::Error::other)??;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}
