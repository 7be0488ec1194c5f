//! Port-forward sessions: for each port a data and an error channel, connected to 127.0.0.1 inside the pod's network.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use cri::v1::PortForwardRequest;
use futures::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio_tungstenite::tungstenite::Message;

use super::channels::{Outbox, Socket, StreamError, pump_out};
use crate::Runtime;
use crate::sandbox::host_network;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Two channels per port, and one byte to name them.
const MAX_PORTS: usize = 127;

pub(super) async fn serve(
    runtime: &Runtime,
    socket: Socket,
    request: PortForwardRequest,
    query: &str,
) -> Result<(), StreamError> {
    let sandbox =
        runtime.sandbox(&request.pod_sandbox_id).ok_or_else(|| StreamError::Refused("no such sandbox".to_owned()))?;
    let netns = (!host_network(&sandbox.record().config.0)).then(|| sandbox.netns());
    let ports = ports(&request, query);
    if ports.is_empty() || ports.len() > MAX_PORTS {
        return Err(StreamError::Refused("no ports, or too many".to_owned()));
    }
    let (sink, mut incoming) = socket.split();
    let (outbox, writer) = Outbox::new(sink);
    let mut halves: Vec<Option<OwnedWriteHalf>> = Vec::new();
    for (port, channel) in ports.iter().zip((0u8..).step_by(2)) {
        // Both channels open with the port they serve.
        outbox.send(channel, &port.to_le_bytes()).await;
        outbox.send(channel + 1, &port.to_le_bytes()).await;
        match dial(netns.clone(), *port).await {
            Ok(stream) => {
                let (reader, half) = stream.into_split();
                tokio::spawn(pump_out(Box::new(reader), channel, outbox.clone()));
                halves.push(Some(half));
            }
            Err(error) => {
                outbox.send(channel + 1, format!("cannot connect to port {port} in the pod: {error}").as_bytes()).await;
                halves.push(None);
            }
        }
    }
    while let Some(Ok(message)) = incoming.next().await {
        let payload: Bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Ping(payload) => {
                outbox.pong(payload).await;
                continue;
            }
            Message::Close(_) => break,
            _ => continue,
        };
        let Some((channel, data)) = payload.split_first() else { continue };
        if let Some(slot) = halves.get_mut(usize::from(channel / 2))
            && let Some(half) = slot
            && half.write_all(data).await.is_err()
        {
            *slot = None;
        }
    }
    drop((halves, outbox));
    writer.abort();
    Ok(())
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
