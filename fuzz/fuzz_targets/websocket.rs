//! WebSocket frames of a client, as the server reads them.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use tungstenite::protocol::{Role, WebSocket};

fuzz_target!(|bytes: &[u8]| {
    let mut socket = WebSocket::from_raw_socket(Cursor::new(bytes.to_vec()), Role::Server, None);
    while socket.read().is_ok() {}
});
