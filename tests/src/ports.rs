//! Ports for servers that are stopped and started again: none that the kernel would give to somebody's connection meanwhile.

use std::net::TcpListener;

use anyhow::{Result, bail};

/// Below what Linux takes for outgoing connections.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// `count` different ports that are free on every one of these addresses.
pub fn free_ports(addresses: &[&str], count: usize) -> Result<Vec<u16>> {
    // Tests that run at the same time start at different places.
    let start = usize::try_from(std::process::id())? * 97 % RANGE.len();
    let candidates = RANGE.skip(start).chain(RANGE.take(start));
    let mut found = Vec::new();
    for port in candidates {
        if addresses.iter().all(|address| TcpListener::bind((*address, port)).is_ok()) {
            found.push(port);
        }
        if found.len() == count {
            return Ok(found);
        }
    }
    bail!("no {count} ports are free on {addresses:?}")
}
