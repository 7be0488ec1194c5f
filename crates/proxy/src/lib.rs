//! Service VIPs: kube-proxy's job, done with a few global nftables maps instead of chains per service.
//!
//! A service is found by address, protocol and port; what is found is its class, the number of its endpoints (and its affinity timeout).
//! The class leads to one of a few chains that draw a number below that count, and service and number together lead to the endpoint. So the
//! cost of a packet does not depend on how many services there are, and a change to a service is a change to a few map elements.
//!
//! [`plan`] decides what a service needs, [`Table`] knows what all need and what has changed, [`Applier`] tells the kernel.

mod apply;
mod endpoints;
mod plan;
mod ruleset;
mod run;
mod slot;
mod stale;
mod table;

pub use apply::{Applier, ProxyError, cleanup};
pub use plan::{Node, plan};
pub use run::{ProxyConfig, run};
pub use slot::{Scope, ServiceKey, Slot, Value};
pub use table::{Table, Transaction};
