//! What the end-to-end tests share: the real binary as its user runs it, and the real kubectl.
//!
//! The tests need root and use the machine's network, so they run one at a time (`cargo xtask test`).

mod cluster;
mod etcd;
mod image;
mod kubectl;
mod leaks;
mod ports;
mod probe;
mod processes;
mod servers;

pub use cluster::{Cluster, Options, ferry_binary, read_some};
pub use etcd::{EtcdCluster, Member, etcd_tool};
pub use image::{archive, archive_of, text};
pub use kubectl::{kubectl, run_kubectl};
pub use leaks::Leaks;
pub use ports::free_ports;
pub use probe::{Load, dns_a, hello_pids, http_get};
pub use processes::{Process, output, run};
pub use servers::{READY_LIMIT, Server, start_servers};

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Asks until the answer is there. For what only the outside world shows; everything else is awaited with `kubectl wait`.
pub fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    let mut last = None;
    while begun.elapsed() < limit {
        match ask() {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => (),
            Err(error) => last = Some(error),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("{what}: not within {limit:?}{}", last.map(|e| format!(" ({e:#})")).unwrap_or_default())
}
