//! Cluster DNS by the Kubernetes DNS specification, version 1.1.0.
//!
//! [`Zone`] holds what the cluster's names mean, [`answer`] decides what to say to a question, and the server around them speaks UDP and TCP and
//! hands every other name to the upstream resolvers.

mod answer;
mod forward;
mod health;
mod message;
mod run;
mod server;
mod zone;

pub use answer::{Answer, Question, answer};
pub use forward::{ForwardError, resolv_conf};
pub use run::{DnsConfig, DnsError, run};
pub use server::respond;
pub use zone::{Records, Zone};
