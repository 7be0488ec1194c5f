//! The kernel's connection tracking: which flows are translated to where, and how to make it forget one.
//!
//! A UDP flow stays translated as long as packets come, whatever the rules say by now.

use std::net::{Ipv4Addr, SocketAddrV4};

use nix::errno::Errno;

use crate::batch::IPV4;
use crate::netlink::{self, Netlink, REQUEST_DUMP};
use crate::wire::{self, Writer};

const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;
/// NLM_F_REQUEST and NLM_F_ACK.
const REQUEST_ACK: u16 = 0x1 | 0x4;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;

/// A tracked flow: what the client sent, and who answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub protocol: u8,
    pub client: SocketAddrV4,
    pub destination: SocketAddrV4,
    /// Where the packets really go; `destination` if they are not translated.
    pub server: SocketAddrV4,
}

pub struct Conntrack {
    netlink: Netlink,
}

#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error("cannot open a netfilter socket")]
    Open(#[source] Errno),
    #[error("cannot list tracked flows")]
    List(#[source] Errno),
    #[error("cannot delete the flow from {client}")]
    Delete {
        client: SocketAddrV4,
        #[source]
        errno: Errno,
    },
}

impl Conntrack {
    pub fn open() -> Result<Self, ConntrackError> {
        Ok(Self { netlink: Netlink::open().map_err(ConntrackError::Open)? })
    }

    /// All IPv4 flows of a protocol.
    pub fn flows(&mut self, protocol: u8) -> Result<Vec<Flow>, ConntrackError> {
        let mut writer = Writer::default();
        writer.message(GET, REQUEST_DUMP, 1, IPV4, 0, |_| ());
        let mut flows = Vec::new();
        let parse = |message: wire::Received<'_>| {
            flows.extend(parse_flow(wire::body(&message)).filter(|flow| flow.protocol == protocol));
        };
        self.netlink.dump(&writer.bytes, parse).map_err(ConntrackError::List)?;
        Ok(flows)
    }

    /// Nothing happens if it is gone already.
    pub fn delete(&mut self, flow: &Flow) -> Result<(), ConntrackError> {
        let failed = |errno| ConntrackError::Delete { client: flow.client, errno };
        let mut writer = Writer::default();
        writer.message(DELETE, REQUEST_ACK, 1, IPV4, 0, |writer| {
            writer.nested(TUPLE_ORIG, |writer| {
                writer.nested(TUPLE_IP, |writer| {
                    writer.attr(1, &flow.client.ip().octets());
                    writer.attr(2, &flow.destination.ip().octets());
                });
                writer.nested(TUPLE_PROTO, |writer| {
                    writer.attr(1, &[flow.protocol]);
                    writer.attr(2, &flow.client.port().to_be_bytes());
                    writer.attr(3, &flow.destination.port().to_be_bytes());
                });
            });
        });
        self.netlink.send(&writer.bytes).map_err(failed)?;
        let mut outcome = Ok(());
        let answers = self.netlink.answers(|message| match netlink::errno(&message) {
            None | Some(0) => (),
            Some(errno) if errno == Errno::ENOENT as i32 => (),
            Some(errno) => outcome = Err(failed(Errno::from_raw(errno))),
        });
        answers.map_err(failed)?;
        outcome
    }
}

fn parse_flow(attributes: &[u8]) -> Option<Flow> {
    let (protocol, client, destination) = parse_tuple(wire::find(attributes, TUPLE_ORIG)?)?;
    let (_, server, _) = parse_tuple(wire::find(attributes, TUPLE_REPLY)?)?;
    Some(Flow { protocol, client, destination, server })
}

/// Protocol, source, destination. Flows without ports are none of ours.
fn parse_tuple(tuple: &[u8]) -> Option<(u8, SocketAddrV4, SocketAddrV4)> {
    let (ip, proto) = (wire::find(tuple, TUPLE_IP)?, wire::find(tuple, TUPLE_PROTO)?);
    let address = |kind| Some(Ipv4Addr::from(<[u8; 4]>::try_from(wire::find(ip, kind)?).ok()?));
    let port = |kind| Some(u16::from_be_bytes(wire::find(proto, kind)?.try_into().ok()?));
    let protocol = *wire::find(proto, 1)?.first()?;
    Some((protocol, SocketAddrV4::new(address(1)?, port(2)?), SocketAddrV4::new(address(2)?, port(3)?)))
}
