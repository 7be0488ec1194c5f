//! Messages between the runtime and a pod's shim, as the other side receives them.
#![no_main]

use std::os::fd::OwnedFd;

use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

fuzz_target!(|bytes: &[u8]| {
    let ends: [OwnedFd; 2] = [sent(bytes), sent(bytes)];
    let [shims, runtimes] = &ends;
    runtime::fuzzing::receive(shims, runtimes);
});

/// The end of a socket at which the message has arrived.
fn sent(bytes: &[u8]) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (from, to) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair of sockets");
    send(&from, bytes, SendFlags::NOSIGNAL).expect("sent");
    to
}
