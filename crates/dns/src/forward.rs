//! Asks the upstream resolvers about names that are not the cluster's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::message::Transport;

/// One try at one resolver; a lost packet must not cost the client its own timeout, which is five seconds as a rule.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("no upstream resolver is configured")]
    NoUpstream,
    #[error("upstream resolver {upstream} failed")]
    Io {
        upstream: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("upstream resolver {0} did not answer in time")]
    Timeout(SocketAddr),
    #[error("upstream resolver {0} sent something else than an answer")]
    Garbage(SocketAddr),
}

/// The resolvers of a `resolv.conf`.
pub fn resolv_conf(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, 53))
    };
    text.lines().filter_map(server).collect()
}

/// Hands a request on as it came, and gives the first answer as it comes.
pub(crate) async fn forward(
    upstreams: &[SocketAddr],
    request: &[u8],
    transport: Transport,
) -> Result<Vec<u8>, ForwardError> {
    let mut failure = ForwardError::NoUpstream;
    for upstream in upstreams {
        let asked = async {
            match transport {
                Transport::Udp => ask_udp(*upstream, request).await,
                Transport::Tcp => ask_tcp(*upstream, request).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(Ok(response)) if answers(request, &response) => return Ok(response),
            Ok(Ok(_)) => failure = ForwardError::Garbage(*upstream),
            Ok(Err(source)) => failure = ForwardError::Io { upstream: *upstream, source },
            Err(_) => failure = ForwardError::Timeout(*upstream),
        }
    }
    Err(failure)
}

/// The records of `name` by the upstream resolvers; over TCP when they do not fit a packet.
pub(crate) async fn look_up(upstreams: &[SocketAddr], name: &Name, kind: RecordType) -> Result<Message, ForwardError> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name.clone(), kind));
    let failed = upstreams.first().copied().unwrap_or_else(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53));
    let request = message.to_vec().map_err(|_| ForwardError::Garbage(failed))?;
    let parse = |bytes: Vec<u8>| Message::from_vec(&bytes).map_err(|_| ForwardError::Garbage(failed));
    let response = parse(forward(upstreams, &request, Transport::Udp).await?)?;
    if response.metadata.truncation {
        return parse(forward(upstreams, &request, Transport::Tcp).await?);
    }
    Ok(response)
}

/// The socket is connected and new, so its port is unknown to a forger; the id must still be the request's.
fn answers(request: &[u8], response: &[u8]) -> bool {
    response.len() >= 12
        && request.get(..2) == response.get(..2)
        && response.get(2).is_some_and(|flags| flags & 0x80 != 0)
}

async fn ask_udp(upstream: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = if upstream.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        "[::]:0".parse().map_err(io::Error::other)?
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(upstream).await?;
    socket.send(request).await?;
    let mut response = vec![0; usize::from(u16::MAX)];
    let length = socket.recv(&mut response).await?;
    response.truncate(length);
    Ok(response)
}

async fn ask_tcp(upstream: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream).await?;
    write_framed(&mut stream, request).await?;
    read_framed(&mut stream).await
}

/// DNS over TCP puts the length before the message.
pub(crate) async fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

pub(crate) async fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    // One write, so that the length does not travel alone.
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameserver_lines_are_the_resolvers() {
        let text = "# a comment\nsearch example.org\nnameserver 192.0.2.1\n nameserver fd00::1 # second\nnameserver\nnameserver x\n";
        let want: Vec<SocketAddr> = vec!["192.0.2.1:53".parse().unwrap(), "[fd00::1]:53".parse().unwrap()];
        assert_eq!(resolv_conf(text), want);
    }
}
