//! Judges what concurrent clients saw of a key: is there an order of their operations, each at one moment between its
//! call and its answer, in which all answers are right?
//!
//! Wing and Gong's search with Lowe's memory of configurations already tried. A key is a register that is absent, or has a value and the
//! revision of its last change; writes are conditional on that revision. An operation without a known outcome may have
//! happened at any time after its call, or never.

mod register;
mod revisions;
mod search;

pub use self::{
    register::{Action, Expected, Outcome, Version},
    revisions::{Sighting, check_revisions},
    search::{Violation, check},
};

/// What a client did with one key, and when, on one clock for all clients.
#[derive(Clone, Debug)]
pub struct Operation {
    pub client: usize,
    pub called: u64,
    /// `None`: the outcome is not known.
    pub answered: Option<u64>,
    pub action: Action,
}
