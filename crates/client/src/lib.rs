//! How components reach the API: transport for an identity, informers, work queue, reconcile loop, events, leader election.
//!
//! Everything here is driven by events: nothing wakes up while nothing changes, except lease renewal.

mod correlator;
mod follow;
mod informer;
mod key;
mod leader;
mod reconciler;
mod recorder;
mod store;
mod transport;
mod work_queue;

#[cfg(test)]
mod fake_api;

pub use follow::{Event, Follower, Target, follow};
pub use informer::{Informer, Informers, Object};
pub use key::Key;
pub use leader::{Leadership, lead};
pub use reconciler::{Next, ReconcileError, Reconciler, run_reconciler};
pub use recorder::{Recorder, reference};
pub use store::Change;
pub use transport::{Body, in_process};
pub use work_queue::WorkQueue;

/// Fires when the process (or the component) is to stop; work in flight is finished, nothing new is begun.
pub type Drain = tokio_util::sync::CancellationToken;
