//! One pod's life on this node: plan, act, report, end.

pub(crate) mod admission;
pub(crate) mod backoff;
pub(crate) mod conditions;
pub(crate) mod hooks;
pub(crate) mod kill;
pub(crate) mod labels;
pub(crate) mod observed;
pub(crate) mod phase;
pub(crate) mod plan;
pub(crate) mod sandbox;
pub(crate) mod start;
pub(crate) mod status;
mod sync;
mod terminate;
pub(crate) mod worker;
pub(crate) mod writer;
