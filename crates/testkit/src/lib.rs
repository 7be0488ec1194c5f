//! What tests of several crates share: a checker of linearizability, seeded random choices, a small disk to fill.

mod etcd;
pub mod linearizability;
mod random;
mod small_disk;

pub use etcd::etcd_survives_kills;
pub use random::{Random, long};
pub use small_disk::SmallDisk;
