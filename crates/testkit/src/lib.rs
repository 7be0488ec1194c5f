//! What tests of several crates share: judging histories of concurrent clients, drawing at random from a known seed.

mod etcd;
pub mod linearizability;
mod random;

pub use etcd::etcd_survives_kills;
pub use random::{Random, long};
