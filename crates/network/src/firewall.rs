//! The pod network's nftables: pods reach the world under the node's address, host ports reach pods.

use std::net::Ipv4Addr;

use nft::{Batch, Chain, CmpOp, Element, Expr, Hook, HookKind, Ipv4Prefix, Kind, Reg, Set, Socket, Verdict};

use crate::NetworkError;
use crate::ipam::Lease;

const TABLE: &str = "ferry-network";
const RAW: i32 = -300;
/// Just after the services, which are at -100.
const DSTNAT: i32 = -95;
const SRCNAT: i32 = 100;

/// The networks the rules speak of.
pub(crate) struct Networks<'a> {
    pub(crate) bridge: &'a str,
    pub(crate) pods: Ipv4Prefix,
    /// Where pods are seen under their own address: all nodes' pods.
    pub(crate) cluster: Ipv4Prefix,
}

/// Makes the table what `leases` ask for, in one transaction.
pub(crate) fn sync(networks: &Networks<'_>, leases: &[Lease]) -> Result<(), NetworkError> {
    Ok(Socket::open()?.apply(table(networks, leases))?)
}

pub(crate) fn remove() -> Result<(), NetworkError> {
    let mut batch = Batch::new(TABLE);
    batch.add_table();
    batch.delete_table();
    Ok(Socket::open()?.apply(batch)?)
}

fn table(networks: &Networks<'_>, leases: &[Lease]) -> Batch {
    let mut batch = Batch::new(TABLE);
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    batch.add_set(
        &Set::new("host-ports", &[Kind::Ipv4Addr, Kind::InetProto, Kind::InetService])
            .to(&[Kind::Ipv4Addr, Kind::InetService]),
    );
    batch.add_set(&Set::new("hairpin", &[Kind::Ipv4Addr, Kind::Ipv4Addr]));
    martians(&mut batch, networks.bridge);
    for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        batch.add_chain(&Chain::base(name, HookKind::Nat, hook, DSTNAT));
        // A port of one address of the node, then of any.
        batch.add_rule(name, &host_port(vec![Expr::DestinationAddress(Reg(0))]));
        batch.add_rule(name, &host_port(vec![Expr::Immediate(Reg(0), vec![0; 4])]));
    }
    masquerade(&mut batch, networks);
    batch.add_elements("host-ports", &host_ports(leases));
    batch.add_elements("hairpin", &hairpins(leases));
    batch
}

/// Routing of 127.0.0.0/8 is enabled on the bridge for the node's own use; what comes from a pod that way is an attack.
fn martians(batch: &mut Batch, bridge: &str) {
    batch.add_chain(&Chain::base("martians", HookKind::Filter, Hook::Prerouting, RAW));
    let mut rule = nft::exact(Expr::InputName, CmpOp::Eq, bridge);
    rule.extend(nft::masked(Expr::DestinationAddress, loopback()));
    rule.push(Expr::Verdict(Verdict::Drop));
    batch.add_rule("martians", &rule);
}

fn host_port(address: Vec<Expr>) -> Vec<Expr> {
    let mut rule = nft::local_destination();
    rule.extend(address);
    rule.extend([
        Expr::Protocol(Reg(1)),
        Expr::DestinationPort(Reg(2)),
        Expr::Map { map: "host-ports".into(), key: Reg(0), to: Reg(4) },
        Expr::Dnat { address: Reg(4), port: Reg(5) },
    ]);
    rule
}

fn masquerade(batch: &mut Batch, networks: &Networks<'_>) {
    batch.add_chain(&Chain::base("postrouting", HookKind::Nat, Hook::Postrouting, SRCNAT));
    let mut leaving = nft::masked(Expr::SourceAddress, networks.pods);
    leaving.extend(nft::not_masked(Expr::DestinationAddress, networks.cluster));
    leaving.extend(nft::exact(Expr::OutputName, CmpOp::Neq, networks.bridge));
    let mut from_loopback = nft::masked(Expr::SourceAddress, loopback());
    from_loopback.extend(nft::exact(Expr::OutputName, CmpOp::Eq, networks.bridge));
    // A pod that reaches itself by a host port would answer itself directly, with the wrong address.
    let hairpin = Expr::Member { set: "hairpin".into(), key: Reg(0), absent: false };
    let hairpin = vec![Expr::SourceAddress(Reg(0)), Expr::DestinationAddress(Reg(1)), hairpin];
    for mut rule in [leaving, from_loopback, hairpin] {
        rule.push(Expr::Masquerade);
        batch.add_rule("postrouting", &rule);
    }
}

fn loopback() -> Ipv4Prefix {
    Ipv4Prefix::new(Ipv4Addr::LOCALHOST, 8)
}

/// Two pods that want the same port: the first, by address, gets it.
fn host_ports(leases: &[Lease]) -> Vec<Element> {
    let mut elements: Vec<Element> = Vec::new();
    for lease in leases {
        for port in &lease.ports {
            let mut key = port.host_ip.unwrap_or(Ipv4Addr::UNSPECIFIED).octets().to_vec();
            key.extend([port.protocol as u8, 0, 0, 0]);
            key.extend(port_bytes(port.host_port));
            let mut value = lease.address.octets().to_vec();
            value.extend(port_bytes(port.container_port));
            if elements.iter().all(|known| known.key != key) {
                elements.push(Element::new(key).value(value));
            }
        }
    }
    elements
}

fn hairpins(leases: &[Lease]) -> Vec<Element> {
    let with_ports = leases.iter().filter(|lease| !lease.ports.is_empty());
    with_ports.map(|lease| Element::new([lease.address.octets(), lease.address.octets()].concat())).collect()
}

fn port_bytes(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}
