//! Ferry's kubelet: the pods of one node, run over CRI, reported to the API.
//!
//! Everything is driven by events: one worker per pod ([`pod`]) reacts to the API, the runtime, its probes and its timers. Pure
//! functions decide (what to start, what to report), thin async code acts. Restarting the kubelet restarts nothing: containers are
//! recognised by their labels.

mod app_armor;
mod budget;
pub mod certificate;
mod cgroups;
mod clock;
mod config;
mod context;
mod credentials;
mod dns;
mod env;
mod eviction;
mod expand;
mod fields;
mod images;
mod kubelet;
mod log_rotation;
mod node;
mod pod;
mod pods;
mod probes;
mod qos;
mod release;
mod resources;
mod runtime_class;
mod security;
mod server;
mod sources;
mod spec;
mod statics;
mod sysctls;
mod tail;
#[cfg(test)]
mod testing;
mod volumes;

pub use config::Config;
pub use eviction::thresholds::{ThresholdError, Thresholds};
pub use kubelet::{BuildError, Kubelet, RunError, stop_all_pods};
pub use log_rotation::LogLimits;
pub use release::release;
pub use server::FolderWatch;
pub use sysctls::{Allowlist as SysctlAllowlist, SysctlError};
