//! Sends nftables transactions to the kernel and reads what it holds.

use nix::errno::Errno;

use crate::batch::{Batch, IPV4, SUBSYSTEM};
use crate::netlink::{self, Netlink, REQUEST_DUMP};
use crate::object::Element;
use crate::wire::{self, Writer};

/// A netlink socket, in the network namespace of the thread that opened it.
pub struct Socket {
    netlink: Netlink,
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
    let text = |refusal: &Refusal| format!("{}: {}", refusal.object, refusal.errno);
    refusals.iter().take(3).map(text).collect::<Vec<_>>().join(", ")
}

const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | 13;

impl Socket {
    pub fn open() -> Result<Self, ApplyError> {
        Ok(Self { netlink: Netlink::open().map_err(ApplyError::Open)? })
    }

    /// All of `batch` or nothing.
    pub fn apply(&mut self, batch: Batch) -> Result<(), ApplyError> {
        if batch.is_empty() {
            return Ok(());
        }
        let (bytes, labels) = batch.into_parts();
        self.netlink.send(&bytes).map_err(|errno| ApplyError::Send { bytes: bytes.len(), errno })?;
        let mut refusals = Vec::new();
        let mut acknowledged = false;
        let answers = self.netlink.answers(|message| match netlink::errno(&message) {
            None => (),
            Some(0) => acknowledged |= message.seq as usize == labels.len(),
            Some(errno) => {
                let label = (message.seq as usize).checked_sub(1).and_then(|index| labels.get(index));
                let object = label.cloned().unwrap_or_else(|| "the transaction".into());
                refusals.push(Refusal { object, errno: Errno::from_raw(errno) });
            }
        });
        answers.map_err(ApplyError::Receive)?;
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
        let mut elements = Vec::new();
        let parse = |message: wire::Received<'_>| elements.extend(parse_elements(wire::body(&message)));
        self.netlink.dump(&writer.bytes, parse).map_err(ApplyError::Receive)?;
        Ok(elements)
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
