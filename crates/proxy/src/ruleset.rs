//! The fixed part of the table: sets, base chains, and how an endpoint is drawn.

use nft::{Batch, Chain, CmpOp, Expr, Hook, HookKind, Kind, Reg, Set, Verdict};

use crate::plan::Node;
use crate::slot::{Pick, Scope, suffix};

pub(crate) const TABLE: &str = "ferry-proxy";

const SERVICE: [Kind; 3] = [Kind::Ipv4Addr, Kind::InetProto, Kind::InetService];
const ENDPOINT: [Kind; 2] = [Kind::Ipv4Addr, Kind::InetService];
/// Upstream's bit: this connection leaves under the node's address.
const MASQUERADE_MARK: u32 = 0x4000;
/// Clients bound to an endpoint at a time; the oldest are not evicted, further ones are simply not bound.
const AFFINITY_SIZE: u32 = 65_536;
const SCOPES: [Scope; 2] = [Scope::Cluster, Scope::ExternalLocal];

const TCP: u8 = 6;

const BEFORE_DSTNAT: i32 = -110;
const DSTNAT: i32 = -100;
const AFTER_DSTNAT: i32 = -90;
const SRCNAT: i32 = 100;

const REFUSE: &str = "refuse";

pub(crate) fn write(batch: &mut Batch, node: &Node) {
    sets(batch);
    // Upstream sends ICMP for TCP too, which a client hears of late when it asks often.
    batch.add_chain(&Chain::regular(REFUSE));
    batch.add_rule(
        REFUSE,
        &[Expr::Protocol(Reg(0)), Expr::Cmp { reg: Reg(0), op: CmpOp::Eq, value: vec![TCP] }, Expr::Reset],
    );
    batch.add_rule(REFUSE, &[Expr::Reject]);
    refuse(batch, node);
    translate(batch, node);
    unhandled(batch);
    masquerade(batch);
}

fn concat(parts: &[&[Kind]]) -> Vec<Kind> {
    parts.concat()
}

fn sets(batch: &mut Batch) {
    for scope in SCOPES {
        let name = |base: &str| format!("{base}{}", suffix(scope));
        batch.add_set(&Set::new(&name("services"), &SERVICE).to(&[Kind::Mark]));
        batch.add_set(&Set::new(&name("endpoints"), &concat(&[&SERVICE, &[Kind::Mark]])).to(&ENDPOINT));
        batch.add_set(&Set::new(&name("sticky"), &concat(&[&SERVICE, &ENDPOINT])));
        batch.add_set(
            &Set::new(&name("affinity"), &concat(&[&[Kind::Ipv4Addr], &SERVICE])).to(&ENDPOINT).dynamic(AFFINITY_SIZE),
        );
        for node_port in [false, true] {
            batch.add_set(&Set::new(&picks(scope, node_port), &[Kind::Mark]).to_verdict());
        }
    }
    for name in ["reject", "drop", "drop-external", "firewalled"] {
        batch.add_set(&Set::new(name, &SERVICE));
    }
    batch.add_set(&Set::new("allowed", &concat(&[&SERVICE, &[Kind::Ipv4Addr]])).intervals());
    batch.add_set(&Set::new("cluster-ips", &[Kind::Ipv4Addr]));
    batch.add_set(&Set::new("hairpin", &[Kind::Ipv4Addr, Kind::Ipv4Addr]));
}

fn picks(scope: Scope, node_port: bool) -> String {
    format!("{}{}", if node_port { "node-picks" } else { "picks" }, suffix(scope))
}

/// Address, protocol and port of the service in three registers from `at`.
fn key(at: u8, node_port: bool) -> Vec<Expr> {
    let address = match node_port {
        true => Expr::Immediate(Reg(at), vec![0; 4]),
        false => Expr::DestinationAddress(Reg(at)),
    };
    vec![address, Expr::Protocol(Reg(at + 1)), Expr::DestinationPort(Reg(at + 2))]
}

/// Rules that only see what is sent to the node itself, or only what is sent to a service's own address.
fn addressed(node_port: bool) -> Vec<Expr> {
    if node_port { nft::local_destination() } else { Vec::new() }
}

fn from_outside(node: &Node) -> Vec<Expr> {
    node.pod_cidr.map(|pods| nft::not_masked(Expr::SourceAddress, pods)).unwrap_or_default()
}

fn member(set: &str, key: u8) -> Expr {
    Expr::Member { set: set.into(), key: Reg(key), absent: false }
}

/// Before translation: services nobody answers for, and sources that may not come.
fn refuse(batch: &mut Batch, node: &Node) {
    for (chain, hook) in [("refuse-prerouting", Hook::Prerouting), ("refuse-output", Hook::Output)] {
        batch.add_chain(&Chain::base(chain, HookKind::Filter, hook, BEFORE_DSTNAT));
        for node_port in [false, true] {
            let mut rule = |first: Vec<Expr>, set: &str, then: Expr| {
                let parts =
                    [nft::ct_state(), first, addressed(node_port), key(0, node_port), vec![member(set, 0), then]];
                batch.add_rule(chain, &parts.concat());
            };
            rule(Vec::new(), "reject", Expr::Verdict(Verdict::Goto(REFUSE.into())));
            rule(Vec::new(), "drop", Expr::Verdict(Verdict::Drop));
            if hook == Hook::Prerouting {
                rule(from_outside(node), "drop-external", Expr::Verdict(Verdict::Drop));
            }
        }
    }
    let source = Expr::SourceAddress(Reg(3));
    let not_allowed = Expr::Member { set: "allowed".into(), key: Reg(0), absent: true };
    let drop = Expr::Verdict(Verdict::Drop);
    let rule = [nft::ct_state(), key(0, false), vec![member("firewalled", 0), source, not_allowed, drop]];
    batch.add_rule("refuse-prerouting", &rule.concat());
}

/// From a service's address to its class to a chain that draws an endpoint.
fn translate(batch: &mut Batch, node: &Node) {
    let find = |scope: Scope, node_port: bool| {
        let class = Expr::Map { map: format!("services{}", suffix(scope)), key: Reg(0), to: Reg(4) };
        let chain = Expr::VerdictMap { map: picks(scope, node_port), key: Reg(4) };
        [addressed(node_port), key(0, node_port), vec![class, chain]].concat()
    };
    for (chain, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        batch.add_chain(&Chain::base(chain, HookKind::Nat, hook, DSTNAT));
        for node_port in [false, true] {
            if hook == Hook::Prerouting {
                let rule = [from_outside(node), find(Scope::ExternalLocal, node_port)].concat();
                batch.add_rule(chain, &rule);
            }
            batch.add_rule(chain, &find(Scope::Cluster, node_port));
        }
    }
}

/// After translation: whatever is still sent to a cluster address is sent to a port no service has.
fn unhandled(batch: &mut Batch) {
    for (chain, hook) in [("unhandled-forward", Hook::Forward), ("unhandled-output", Hook::Output)] {
        batch.add_chain(&Chain::base(chain, HookKind::Filter, hook, AFTER_DSTNAT));
        let refused = Expr::Verdict(Verdict::Goto(REFUSE.into()));
        let rule = [nft::ct_state(), vec![Expr::DestinationAddress(Reg(0)), member("cluster-ips", 0), refused]];
        batch.add_rule(chain, &rule.concat());
    }
}

fn masquerade(batch: &mut Batch) {
    batch.add_chain(&Chain::base("postrouting", HookKind::Nat, Hook::Postrouting, SRCNAT));
    let mask = MASQUERADE_MARK.to_ne_bytes().to_vec();
    let marked = [
        // The node to itself: any source will do, and loopback has none to masquerade with.
        nft::exact(Expr::OutputName, CmpOp::Neq, "lo"),
        vec![
            Expr::Mark(Reg(0)),
            Expr::Bitwise { reg: Reg(0), mask: mask.clone(), xor: vec![0; 4] },
            Expr::Cmp { reg: Reg(0), op: CmpOp::Neq, value: vec![0; 4] },
            Expr::Mark(Reg(0)),
            Expr::Bitwise { reg: Reg(0), mask: vec![0xff; 4], xor: mask },
            Expr::SetMark(Reg(0)),
            Expr::Masquerade,
        ],
    ];
    batch.add_rule("postrouting", &marked.concat());
    // A pod that drew itself would answer itself directly, with the wrong address.
    let hairpin =
        [Expr::SourceAddress(Reg(0)), Expr::DestinationAddress(Reg(1)), member("hairpin", 0), Expr::Masquerade];
    batch.add_rule("postrouting", &hairpin);
}

/// The chain of one class, and its entry in the map that leads to it.
pub(crate) fn write_pick(batch: &mut Batch, pick: &Pick, node: &Node) {
    let chain = pick.chain();
    batch.add_chain(&Chain::regular(&chain));
    if pick.scope == Scope::Cluster {
        batch.add_rule(&chain, &mark(node));
    }
    if pick.affinity_s != 0 {
        batch.add_rule(&chain, &bound(pick));
    }
    batch.add_rule(&chain, &draw(pick));
    let element = nft::Element::new(pick.class().to_ne_bytes().into()).verdict(Verdict::Goto(chain));
    batch.add_elements(&picks(pick.scope, pick.node_port), [&element]);
}

/// Replies must come back through this node, unless the client is one of its own pods, whose replies do so anyway.
fn mark(node: &Node) -> Vec<Expr> {
    let (mask, xor) = ((!MASQUERADE_MARK).to_ne_bytes().to_vec(), MASQUERADE_MARK.to_ne_bytes().to_vec());
    let set = vec![Expr::Mark(Reg(0)), Expr::Bitwise { reg: Reg(0), mask, xor }, Expr::SetMark(Reg(0))];
    [from_outside(node), set].concat()
}

/// Registers: client, service (3), endpoint (2). A client bound to an endpoint that is still there stays with it.
fn bound(pick: &Pick) -> Vec<Expr> {
    let affinity = format!("affinity{}", suffix(pick.scope));
    let sticky = format!("sticky{}", suffix(pick.scope));
    let bound = vec![
        Expr::Map { map: affinity.clone(), key: Reg(0), to: Reg(4) },
        member(&sticky, 1),
        Expr::Update { map: affinity, key: Reg(0), value: Reg(4), timeout_ms: timeout_ms(pick) },
        Expr::Dnat { address: Reg(4), port: Reg(5) },
    ];
    [vec![Expr::SourceAddress(Reg(0))], key(1, pick.node_port), bound].concat()
}

/// Registers: client, service (3), number, endpoint (2).
fn draw(pick: &Pick) -> Vec<Expr> {
    let endpoints = format!("endpoints{}", suffix(pick.scope));
    let mut rule = key(1, pick.node_port);
    rule.push(Expr::Random { to: Reg(4), modulus: pick.endpoints });
    rule.push(Expr::Map { map: endpoints, key: Reg(1), to: Reg(5) });
    if pick.affinity_s != 0 {
        let map = format!("affinity{}", suffix(pick.scope));
        rule.push(Expr::SourceAddress(Reg(0)));
        // An update would keep the endpoint the client was bound to before.
        rule.push(Expr::Delete { map: map.clone(), key: Reg(0), value: Reg(5) });
        rule.push(Expr::Update { map, key: Reg(0), value: Reg(5), timeout_ms: timeout_ms(pick) });
    }
    rule.push(Expr::Dnat { address: Reg(5), port: Reg(6) });
    rule
}

fn timeout_ms(pick: &Pick) -> u64 {
    u64::from(pick.affinity_s) * 1000
}
