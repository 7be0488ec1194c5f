//! The expressions rules are made of.

use crate::object::Verdict;
use crate::prefix::Ipv4Prefix;
use crate::wire::Writer;

/// One of sixteen four-byte registers; wider values continue in the following ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(pub u8);

impl Reg {
    /// The registers of four bytes follow the four old ones of sixteen.
    fn number(self) -> u32 {
        8 + u32::from(self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    Eq = 0,
    Neq = 1,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// Load from the packet.
    SourceAddress(Reg),
    DestinationAddress(Reg),
    /// Of TCP, UDP and SCTP; other packets end the rule.
    DestinationPort(Reg),
    Protocol(Reg),
    Mark(Reg),
    SetMark(Reg),
    InputName(Reg),
    OutputName(Reg),
    ConntrackState(Reg),
    ConntrackStatus(Reg),
    /// The type of the route to the destination: local, broadcast, …
    DestinationType(Reg),
    Immediate(Reg, Vec<u8>),
    /// `value & mask ^ xor`, in place.
    Bitwise {
        reg: Reg,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Goes on only if it holds.
    Cmp {
        reg: Reg,
        op: CmpOp,
        value: Vec<u8>,
    },
    /// A number below the modulus, at random.
    Random {
        to: Reg,
        modulus: u32,
    },
    /// Goes on only if the key is in the set (or is not, when `absent`).
    Member {
        set: String,
        key: Reg,
        absent: bool,
    },
    /// Goes on only if the key is in the map, with its value in `to`.
    Map {
        map: String,
        key: Reg,
        to: Reg,
    },
    VerdictMap {
        map: String,
        key: Reg,
    },
    /// Puts or refreshes an element from registers.
    Update {
        map: String,
        key: Reg,
        value: Reg,
        timeout_ms: u64,
    },
    Verdict(Verdict),
    Dnat {
        address: Reg,
        port: Reg,
    },
    Masquerade,
    /// Takes out an element. The kernel wants to know of a value though it needs none.
    Delete {
        map: String,
        key: Reg,
        value: Reg,
    },
    /// ICMP port unreachable. The kernel sends few of them per second to a client.
    Reject,
    /// TCP's own refusal; other packets pass.
    Reset,
}

/// The output hook's name register takes sixteen bytes, compared with its terminator.
fn name(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

/// `load` gives exactly the interface name `text`.
pub fn exact(load: fn(Reg) -> Expr, op: CmpOp, text: &str) -> Vec<Expr> {
    vec![load(Reg(0)), Expr::Cmp { reg: Reg(0), op, value: name(text) }]
}

/// `load` gives an address inside `prefix`.
pub fn masked(load: fn(Reg) -> Expr, prefix: Ipv4Prefix) -> Vec<Expr> {
    compare(load, prefix, CmpOp::Eq)
}

pub fn not_masked(load: fn(Reg) -> Expr, prefix: Ipv4Prefix) -> Vec<Expr> {
    compare(load, prefix, CmpOp::Neq)
}

fn compare(load: fn(Reg) -> Expr, prefix: Ipv4Prefix, op: CmpOp) -> Vec<Expr> {
    let mask = Expr::Bitwise { reg: Reg(0), mask: prefix.mask().octets().into(), xor: vec![0; 4] };
    vec![load(Reg(0)), mask, Expr::Cmp { reg: Reg(0), op, value: prefix.address().octets().into() }]
}

/// The first packet of a connection, as far as conntrack knows.
pub fn ct_state() -> Vec<Expr> {
    const NEW: u32 = 8;
    let mask = Expr::Bitwise { reg: Reg(0), mask: NEW.to_ne_bytes().into(), xor: vec![0; 4] };
    vec![Expr::ConntrackState(Reg(0)), mask, Expr::Cmp { reg: Reg(0), op: CmpOp::Neq, value: vec![0; 4] }]
}

/// The destination is an address of this machine.
pub fn local_destination() -> Vec<Expr> {
    const RTN_LOCAL: u32 = 2;
    let local = Expr::Cmp { reg: Reg(0), op: CmpOp::Eq, value: RTN_LOCAL.to_ne_bytes().into() };
    vec![Expr::DestinationType(Reg(0)), local]
}

impl Expr {
    fn name(&self) -> &'static str {
        match self {
            Self::SourceAddress(_) | Self::DestinationAddress(_) | Self::DestinationPort(_) => "payload",
            Self::Protocol(_) | Self::Mark(_) | Self::SetMark(_) | Self::InputName(_) | Self::OutputName(_) => "meta",
            Self::ConntrackState(_) | Self::ConntrackStatus(_) => "ct",
            Self::DestinationType(_) => "fib",
            Self::Immediate(..) | Self::Verdict(_) => "immediate",
            Self::Bitwise { .. } => "bitwise",
            Self::Cmp { .. } => "cmp",
            Self::Random { .. } => "numgen",
            Self::Member { .. } | Self::Map { .. } | Self::VerdictMap { .. } => "lookup",
            Self::Update { .. } | Self::Delete { .. } => "dynset",
            Self::Dnat { .. } => "nat",
            Self::Masquerade => "masq",
            Self::Reject | Self::Reset => "reject",
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.nested(1, |writer| {
            writer.string(1, self.name());
            writer.nested(2, |writer| self.write_data(writer));
        });
    }

    fn write_data(&self, writer: &mut Writer) {
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        match self {
            Self::SourceAddress(to) => payload(writer, *to, NETWORK, 12, 4),
            Self::DestinationAddress(to) => payload(writer, *to, NETWORK, 16, 4),
            Self::DestinationPort(to) => payload(writer, *to, TRANSPORT, 2, 2),
            Self::Mark(to) => load(writer, *to, 3),
            Self::InputName(to) => load(writer, *to, 6),
            Self::OutputName(to) => load(writer, *to, 7),
            Self::Protocol(to) => load(writer, *to, 16),
            Self::SetMark(from) => {
                writer.u32(2, 3);
                writer.u32(3, from.number());
            }
            Self::ConntrackState(to) => load(writer, *to, 0),
            Self::ConntrackStatus(to) => load(writer, *to, 2),
            Self::DestinationType(to) => {
                const ADDRTYPE: u32 = 3;
                const DADDR: u32 = 1 << 1;
                writer.u32(1, to.number());
                writer.u32(2, ADDRTYPE);
                writer.u32(3, DADDR);
            }
            Self::Immediate(to, value) => {
                writer.u32(1, to.number());
                writer.nested(2, |writer| writer.attr(1, value));
            }
            Self::Verdict(verdict) => {
                writer.u32(1, 0);
                writer.nested(2, |writer| verdict.write(writer));
            }
            Self::Bitwise { reg, mask, xor } => {
                writer.u32(1, reg.number());
                writer.u32(2, reg.number());
                writer.u32(3, mask.len() as u32);
                writer.nested(4, |writer| writer.attr(1, mask));
                writer.nested(5, |writer| writer.attr(1, xor));
            }
            Self::Cmp { reg, op, value } => {
                writer.u32(1, reg.number());
                writer.u32(2, *op as u32);
                writer.nested(3, |writer| writer.attr(1, value));
            }
            Self::Random { to, modulus } => {
                const RANDOM: u32 = 1;
                writer.u32(1, to.number());
                writer.u32(2, *modulus);
                writer.u32(3, RANDOM);
            }
            Self::Member { set, key, absent } => lookup(writer, set, *key, None, *absent),
            Self::Map { map, key, to } => lookup(writer, map, *key, Some(to.number()), false),
            Self::VerdictMap { map, key } => lookup(writer, map, *key, Some(0), false),
            Self::Update { map, key, value, timeout_ms } => {
                const UPDATE: u32 = 1;
                writer.string(1, map);
                writer.u32(3, UPDATE);
                writer.u32(4, key.number());
                writer.u32(5, value.number());
                writer.u64(6, *timeout_ms);
            }
            Self::Delete { map, key, value } => {
                const DELETE: u32 = 2;
                writer.string(1, map);
                writer.u32(3, DELETE);
                writer.u32(4, key.number());
                writer.u32(5, value.number());
            }
            Self::Dnat { address, port } => {
                const DNAT: u32 = 1;
                writer.u32(1, DNAT);
                writer.u32(2, nix::libc::AF_INET as u32);
                writer.u32(3, address.number());
                writer.u32(5, port.number());
            }
            Self::Masquerade => {
                // Ports are taken at random, so that two clients do not race for the same one.
                const PROTO_RANDOM_FULLY: u32 = 1 << 4;
                writer.u32(1, PROTO_RANDOM_FULLY);
            }
            Self::Reject => {
                const ICMP_UNREACH: u32 = 0;
                const PORT_UNREACHABLE: u8 = 3;
                writer.u32(1, ICMP_UNREACH);
                writer.attr(2, &[PORT_UNREACHABLE]);
            }
            Self::Reset => {
                const TCP_RST: u32 = 1;
                writer.u32(1, TCP_RST);
            }
        }
    }
}

fn payload(writer: &mut Writer, to: Reg, base: u32, offset: u32, length: u32) {
    writer.u32(1, to.number());
    writer.u32(2, base);
    writer.u32(3, offset);
    writer.u32(4, length);
}

/// `meta` and `ct` share the layout of a load.
fn load(writer: &mut Writer, to: Reg, key: u32) {
    writer.u32(1, to.number());
    writer.u32(2, key);
}

fn lookup(writer: &mut Writer, set: &str, key: Reg, to: Option<u32>, absent: bool) {
    writer.string(1, set);
    writer.u32(2, key.number());
    if let Some(to) = to {
        writer.u32(3, to);
    }
    if absent {
        writer.u32(5, 1);
    }
}
