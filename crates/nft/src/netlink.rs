//! A netfilter netlink socket: sends requests, reads answers.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};

use crate::wire::{self, Received};

pub(crate) const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
pub(crate) const REQUEST_DUMP: u16 = 0x1 | 0x300;

/// Belongs to the network namespace of the thread that opened it.
pub(crate) struct Netlink {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Netlink {
    pub(crate) fn open() -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // A large transaction has many answers.
        setsockopt(&fd, sockopt::RcvBufForce, &(16 << 20))?;
        Ok(Self { fd, buffer: vec![0; 256 << 10] })
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        setsockopt(&self.fd, sockopt::SndBufForce, &(bytes.len() * 2).max(1 << 20))?;
        send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()).map(drop)
    }

    /// The kernel has answered by the time `send` returns, so what is not there now never comes.
    pub(crate) fn answers(&mut self, mut each: impl FnMut(Received<'_>)) -> Result<(), Errno> {
        loop {
            match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => wire::messages(self.buffer.get(..length).unwrap_or_default()).for_each(&mut each),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Everything the kernel has to say to a dump request. An error ends it: what was asked for is not there.
    pub(crate) fn dump(&mut self, request: &[u8], mut each: impl FnMut(Received<'_>)) -> Result<(), Errno> {
        self.send(request)?;
        loop {
            let length = recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
            for message in wire::messages(self.buffer.get(..length).unwrap_or_default()) {
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => return Ok(()),
                    _ => each(message),
                }
            }
        }
    }
}

/// The errno of an error message; 0 is an acknowledgement.
pub(crate) fn errno(message: &Received<'_>) -> Option<i32> {
    if message.kind != NLMSG_ERROR {
        return None;
    }
    wire::u32_at(message.payload, 0).map(|code| -(code as i32))
}
