//! Sends transactions to the kernel and reads what it holds.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};

use crate::batch::{Batch, IPV4, SUBSYSTEM};
use crate::object::Element;
use crate::wire::{self, Writer};

/// A netlink socket, in the network namespace of the thread that opened it.
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("cannot open a netfilter socket")]
    Open(#[source] Errno),
    #[error("cannot send a transaction of {bytes} bytes")]
    Send {
        bytes: usize,
        #[source]
        errno: Errno,
    },
    #[error("cannot read the kernel's answer")]
    Receive(#[source] Errno),
    /// Nothing of the transaction was done.
    #[error("the kernel refused {}", display(.0))]
    Refused(Vec<Refusal>),
    #[error("the kernel did not acknowledge the transaction")]
    Unacknowledged,
}

/// One object of a refused transaction, and why.
#[derive(Debug, PartialEq)]
pub struct Refusal {
    pub object: String,
    pub errno: Errno,
}

fn display(refusals: &[Refusal]) -> String {
    let texts: Vec<_> =
        refusals.iter().take(3).map(|refusal| format!("{}: {}", refusal.object, refusal.errno)).collect();
    texts.join(", ")
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NEW_ELEMENTS: u16 = SUBSYSTEM << 8 | 12;
const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | 13;
const REQUEST_DUMP: u16 = 0x1 | 0x300;

impl Socket {
    pub fn open() -> Result<Self, ApplyError> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)
            .map_err(ApplyError::Open)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(ApplyError::Open)?;
        // Acknowledgements echo what they acknowledge; a large transaction has many.
        setsockopt(&fd, sockopt::RcvBufForce, &(16 << 20)).map_err(ApplyError::Open)?;
        Ok(Self { fd, buffer: vec![0; 256 << 10] })
    }

    /// All of `batch` or nothing.
    pub fn apply(&mut self, batch: Batch) -> Result<(), ApplyError> {
        if batch.is_empty() {
            return Ok(());
        }
        let (bytes, labels) = batch.into_parts();
        let failed = |errno| ApplyError::Send { bytes: bytes.len(), errno };
        setsockopt(&self.fd, sockopt::SndBufForce, &(bytes.len() * 2).max(1 << 20)).map_err(failed)?;
        send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty()).map_err(failed)?;
        self.answers(&labels)
    }

    /// The kernel has answered by the time `send` returns, so what is not there now never comes.
    fn answers(&mut self, labels: &[String]) -> Result<(), ApplyError> {
        let mut refusals = Vec::new();
        let mut acknowledged = false;
        loop {
            let length = match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(ApplyError::Receive(errno)),
            };
            for message in wire::messages(self.buffer.get(..length).unwrap_or_default()) {
                if message.kind != NLMSG_ERROR {
                    continue;
                }
                match wire::u32_at(message.payload, 0).map(|code| code as i32) {
                    Some(0) => acknowledged |= message.seq as usize == labels.len(),
                    Some(code) => {
                        let label = (message.seq as usize).checked_sub(1).and_then(|index| labels.get(index));
                        let object = label.cloned().unwrap_or_else(|| "the transaction".into());
                        refusals.push(Refusal { object, errno: Errno::from_raw(-code) });
                    }
                    None => (),
                }
            }
        }
        match (refusals.is_empty(), acknowledged) {
            (false, _) => Err(ApplyError::Refused(refusals)),
            (true, true) => Ok(()),
            (true, false) => Err(ApplyError::Unacknowledged),
        }
    }

    /// The elements of a set as the kernel holds them, without verdicts; empty if there is no such set.
    pub fn elements(&mut self, table: &str, set: &str) -> Result<Vec<Element>, ApplyError> {
        let mut writer = Writer::default();
        writer.message(GET_ELEMENTS, REQUEST_DUMP, 1, IPV4, 0, |writer| {
            writer.string(1, table);
            writer.string(2, set);
        });
        let bytes = writer.bytes.len();
        send(self.fd.as_raw_fd(), &writer.bytes, MsgFlags::empty())
            .map_err(|errno| ApplyError::Send { bytes, errno })?;
        let mut elements = Vec::new();
        loop {
            let length = recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty()).map_err(ApplyError::Receive)?;
            for message in wire::messages(self.buffer.get(..length).unwrap_or_default()) {
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => return Ok(elements),
                    NEW_ELEMENTS => elements.extend(parse_elements(message.payload.get(4..).unwrap_or_default())),
                    _ => (),
                }
            }
        }
    }
}

fn parse_elements(attributes: &[u8]) -> Vec<Element> {
    let list = wire::find(attributes, 3).unwrap_or_default();
    let parsed = wire::attributes(list).filter_map(|(_, element)| {
        let value_of = |kind| wire::find(element, kind).and_then(|data| wire::find(data, 1)).map(<[u8]>::to_vec);
        Some(Element { key: value_of(1)?, key_end: value_of(10), value: value_of(2), verdict: None })
    });
    parsed.collect()
}
