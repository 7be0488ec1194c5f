//! Serves questions over UDP and TCP.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;
use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::answer::{Answer, Question, answer};
use crate::forward::{self, read_framed, write_framed};
use crate::message::{Rejected, Request, Sections, Transport, parse};
use crate::zone::Zone;

/// Questions waiting for upstream resolvers; more are answered with a failure, so that a dead upstream does not fill the memory.
const MAX_FORWARDS: usize = 1000;
const MAX_CONNECTIONS: usize = 1000;
const CONNECTION_IDLE: Duration = Duration::from_secs(10);
/// An alias to an alias is followed this often within the cluster.
const MAX_ALIASES: usize = 8;

pub(crate) struct Server {
    pub(crate) zone: Arc<RwLock<Zone>>,
    pub(crate) upstreams: Vec<SocketAddr>,
    forwards: Semaphore,
    /// Clients take the first address they are given; each gets another one.
    turn: AtomicUsize,
}

/// What can be said at once, or what has to be asked for first.
enum Step {
    Respond(Vec<u8>),
    Forward(Request),
    Alias(Request, Sections, Name),
}

/// The response of a server of this zone to a UDP packet, if it gets one. There are no upstream resolvers: names of others fail.
pub async fn respond(zone: Arc<RwLock<Zone>>, packet: &[u8]) -> Option<Vec<u8>> {
    let server = Server::new(zone, Vec::new());
    let step = server.step(packet, Transport::Udp)?;
    Some(server.complete(step, packet, Transport::Udp).await)
}

impl Server {
    pub(crate) fn new(zone: Arc<RwLock<Zone>>, upstreams: Vec<SocketAddr>) -> Arc<Self> {
        Arc::new(Self { zone, upstreams, forwards: Semaphore::new(MAX_FORWARDS), turn: AtomicUsize::new(0) })
    }

    pub(crate) async fn udp(self: Arc<Self>, socket: UdpSocket) -> io::Result<()> {
        let socket = Arc::new(socket);
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let (length, peer) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // About an earlier response, whose client is gone.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let bytes = buffer.get(..length).unwrap_or_default();
            match self.step(bytes, Transport::Udp) {
                None => (),
                Some(Step::Respond(response)) => drop(socket.send_to(&response, peer).await),
                Some(step) => {
                    let (server, socket, bytes) = (self.clone(), socket.clone(), bytes.to_vec());
                    tokio::spawn(async move {
                        let response = server.complete(step, &bytes, Transport::Udp).await;
                        drop(socket.send_to(&response, peer).await);
                    });
                }
            }
        }
    }

    pub(crate) async fn tcp(self: Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let (stream, _) = listener.accept().await?;
            let Ok(permit) = connections.clone().try_acquire_owned() else { continue };
            let server = self.clone();
            tokio::spawn(async move {
                server.connection(stream).await;
                drop(permit);
            });
        }
    }

    /// Ends when the client does, or is silent for too long.
    async fn connection(&self, mut stream: TcpStream) {
        while let Ok(Ok(bytes)) = tokio::time::timeout(CONNECTION_IDLE, read_framed(&mut stream)).await {
            let Some(step) = self.step(&bytes, Transport::Tcp) else { return };
            let response = self.complete(step, &bytes, Transport::Tcp).await;
            let written = tokio::time::timeout(CONNECTION_IDLE, write_framed(&mut stream, &response)).await;
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Answers from the zone, without waiting.
    fn step(&self, bytes: &[u8], transport: Transport) -> Option<Step> {
        let request = match parse(bytes) {
            Ok(request) => request,
            Err(Rejected::Ignore) => return None,
            Err(Rejected::With(response)) => return Some(Step::Respond(response)),
        };
        let zone = self.zone.read();
        let mut aliases = Vec::new();
        let mut answered = answer(&zone, &request.question);
        while let Answer::Alias { alias, target } = answered {
            aliases.push(*alias);
            let next = Question {
                labels: target.to_lowercase().iter().map(|label| String::from_utf8_lossy(label).into_owned()).collect(),
                name: target.clone(),
                kind: request.question.kind,
                class: request.question.class,
            };
            answered = answer(&zone, &next);
            if matches!(answered, Answer::Forward) {
                let sections = Sections { answers: aliases, ..Sections::default() };
                return Some(Step::Alias(request, sections, target));
            }
            if aliases.len() > MAX_ALIASES {
                let loops = request.response(ResponseCode::ServFail, true, Sections::default(), transport);
                return Some(Step::Respond(loops));
            }
        }
        match answered {
            Answer::Records { code, mut answers, additionals, authorities } => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                let first = turn.checked_rem(answers.len()).unwrap_or(0);
                answers.rotate_left(first);
                let sections = Sections { answers: [aliases, answers].concat(), authorities, additionals };
                let authoritative = code != ResponseCode::Refused;
                Some(Step::Respond(request.response(code, authoritative, sections, transport)))
            }
            Answer::Forward | Answer::Alias { .. } => Some(Step::Forward(request)),
        }
    }

    async fn complete(&self, step: Step, bytes: &[u8], transport: Transport) -> Vec<u8> {
        let failure =
            |request: &Request| request.response(ResponseCode::ServFail, false, Sections::default(), transport);
        let (request, alias) = match step {
            Step::Respond(response) => return response,
            Step::Forward(request) => (request, None),
            Step::Alias(request, sections, target) => (request, Some((sections, target))),
        };
        let Ok(_permit) = self.forwards.try_acquire() else { return failure(&request) };
        let outcome = match alias {
            None => forward::forward(&self.upstreams, bytes, transport).await,
            Some((mut sections, target)) => {
                let found = forward::look_up(&self.upstreams, &target, request.question.kind).await;
                found.map(|found| {
                    sections.answers.extend(found.answers);
                    request.response(found.metadata.response_code, false, sections, transport)
                })
            }
        };
        outcome.unwrap_or_else(|error| {
            tracing::debug!(name = %request.question.name, %error, "not resolved");
            failure(&request)
        })
    }
}
