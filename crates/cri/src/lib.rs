//! The container runtime interface: its messages, and one trait for everything that answers them.
//!
//! [`Cri`] is implemented by [`Remote`] (gRPC over a unix socket: containerd, CRI-O) and by the built-in
//! runtime (a direct call); [`serve`] puts any `Cri` behind a gRPC server. The list of methods exists once, in `calls`.

mod calls;
mod remote;
mod server;

pub use calls::{Cri, Events};
pub use remote::{ConnectError, Remote};
pub use server::{serve, serve_unix};

/// An annotation of a container's configuration: the size of its log, in bytes, from which the kubelet rotates it.
///
/// A runtime that knows it can bound the log's growth until the kubelet has come to rotate it; others ignore it.
pub const LOG_MAX_SIZE: &str = "ferry.local/log-max-size";

/// The generated messages, package `runtime.v1`.
#[allow(clippy::all, unreachable_pub, missing_docs)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");

    /// A password in a log is a leak, so credentials only say whether they are there.
    impl std::fmt::Debug for AuthConfig {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("AuthConfig").field("server_address", &self.server_address).finish_non_exhaustive()
        }
    }
}
