//! SPDY/3.1, as far as Kubernetes streams need it: many byte streams, each with headers and two ends, over one connection.
//!
//! It behaves as the library that kubectl, kubelets and container runtimes use: no flow control (a stream that is not read
//! holds up the others), streams are replied to at once, and the end of the connection is the end of every stream. What
//! arrives is hostile: frames, headers after inflation, streams and what waits in them are all bounded.

mod connection;
mod dictionary;
mod frame;
mod headers;

pub use connection::{Connection, OpenError, Role, Stream, StreamReader, StreamWriter};
pub use frame::{Decoder, Encoder, Frame, FrameError, MAX_CONTROL_BYTES};
pub use headers::{Headers, MAX_HEADER_BYTES};

/// What the `Upgrade` header calls it.
pub const PROTOCOL: &str = "SPDY/3.1";
/// The header in which both sides agree on what the streams mean.
pub const STREAM_PROTOCOL_VERSION: &str = "x-stream-protocol-version";
