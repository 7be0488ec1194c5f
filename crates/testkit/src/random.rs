//! Random choices that can be made again: the seed is printed, and `FERRY_SEED` sets it.

use std::hash::{BuildHasher as _, RandomState};

/// The long versions of tests were asked for: `cargo xtask test --long`.
pub fn long() -> bool {
    std::env::var("FERRY_LONG").as_deref() == Ok("1")
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From `FERRY_SEED`, or from anything.
    pub fn from_environment() -> Random {
        let given = std::env::var("FERRY_SEED").ok().and_then(|seed| seed.parse().ok());
        Random(given.unwrap_or_else(|| RandomState::new().hash_one(0)))
    }

    /// What `FERRY_SEED` must be for the same choices from here on.
    pub fn seed(&self) -> u64 {
        self.0
    }

    /// An independent source of choices.
    pub fn split(&mut self) -> Random {
        Random(self.next())
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
