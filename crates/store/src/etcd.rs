//! etcd's v3 API, both ends: [`serve`] answers it in front of any store, [`Client`] is a store that asks it.

mod client;
mod convert;
pub mod proto;
mod server;
mod status;

pub use client::{Client, ConnectError, EtcdConfig};
pub use server::{Listener, ServeError, Server, serve};

/// The largest request etcd takes by default.
const MAX_REQUEST_BYTES: usize = 3 << 19;
