//! Forgets UDP flows that lead to endpoints a service no longer has.
//!
//! The rules see only the first packet of a flow. A TCP client notices that nobody answers and connects anew; a UDP client with a fixed port
//! would go on sending to an address that is gone, or to nowhere if it began before the service had endpoints.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use nft::{Conntrack, ConntrackError, Flow};

use crate::slot::ServiceKey;
use crate::table::Table;

const UDP: u8 = 17;

pub(crate) fn forget(
    conntrack: &mut Conntrack,
    table: &Table,
    changed: &HashSet<ServiceKey>,
) -> Result<(), ConntrackError> {
    if changed.is_empty() {
        return Ok(());
    }
    for flow in conntrack.flows(UDP)? {
        let key = changed_service(&flow, changed);
        if key.is_some_and(|key| !table.endpoints(&key).contains(&flow.server)) {
            conntrack.delete(&flow)?;
        }
    }
    Ok(())
}

/// A flow to a node port is told from other flows to the node by being translated.
fn changed_service(flow: &Flow, changed: &HashSet<ServiceKey>) -> Option<ServiceKey> {
    let key =
        |destination: &SocketAddrV4, address| ServiceKey { address, protocol: flow.protocol, port: destination.port() };
    let own = key(&flow.destination, *flow.destination.ip());
    let node_port = key(&flow.destination, Ipv4Addr::UNSPECIFIED);
    let translated = flow.server != flow.destination;
    changed.get(&own).or_else(|| changed.get(&node_port).filter(|_| translated)).copied()
}
