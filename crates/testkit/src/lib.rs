//! What tests of several crates share: judging histories of concurrent clients, drawing at random from a known seed.

pub mod linearizability;
mod random;

pub use random::{Random, long};
