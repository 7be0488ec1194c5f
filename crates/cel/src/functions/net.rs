//! IP addresses and networks.

use std::fmt;
use std::net::IpAddr;

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::opaque::Opaque;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// An address and how many of its bits are the network's. Bits beyond them may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Cidr {
    fn parse(text: &str) -> Result<Self, String> {
        let fail = |why: &str| format!("netip.ParsePrefix({text:?}): {why}");
        let (address, bits) = text.rsplit_once('/').ok_or_else(|| fail("no '/'"))?;
        let address: IpAddr = match address.parse() {
            Ok(address) => address,
            Err(_) if address.contains('%') => return Err(fail("IPv6 zones cannot be present in a prefix")),
            Err(_) => return Err(fail(&unparsable(address))),
        };
        let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
        if !digits || (bits.len() > 1 && bits.starts_with('0')) {
            return Err(fail(&format!("bad bits after slash: {bits:?}")));
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(|| fail("prefix length out of range"))?;
        if mapped(address) {
            return Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"));
        }
        Ok(Self { address, bits })
    }

    /// The bytes of the network part, as costs count them.
    pub(crate) fn size(self) -> usize {
        usize::from(self.bits).div_ceil(8)
    }

    fn masked(self) -> Self {
        Self { address: mask(self.address, self.bits), ..self }
    }

    fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && mask(address, self.bits) == mask(self.address, self.bits)
    }
}

fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)).into()),
        IpAddr::V6(v6) => {
            IpAddr::V6((u128::from(v6) & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)).into())
        }
    }
}

fn mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn unparsable(text: &str) -> String {
    let odd = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let why = if text.contains(':') || !text.contains('.') {
        "unable to parse IP"
    } else if let Some(rest) = odd.and_then(|at| text.get(at..)) {
        return format!("ParseAddr({text:?}): unexpected character (at {rest:?})");
    } else if text.split('.').count() < 4 && text.split('.').all(|part| part.parse::<u8>().is_ok()) {
        "IPv4 address too short"
    } else if text.split('.').count() > 4 {
        "IPv4 address too long"
    } else if text.split('.').any(|part| part.len() > 1 && part.starts_with('0')) {
        "IPv4 field has octet with leading zero"
    } else if text.split('.').any(|part| part.parse::<u64>().is_ok_and(|octet| octet > 255)) {
        "IPv4 field has value >255"
    } else {
        "IPv4 field must have at least one digit"
    };
    format!("ParseAddr({text:?}): {why}")
}

fn parse_ip(text: &str) -> Result<IpAddr, EvalError> {
    if let Some((address, zone)) = text.split_once('%')
        && address.parse::<std::net::Ipv6Addr>().is_ok()
        && !zone.is_empty()
    {
        return Err(EvalError::new(format!("IP address {text:?} with zone value is not allowed")));
    }
    let address = text.parse().map_err(|_| {
        let why = unparsable(text);
        EvalError::new(format!("IP Address {text:?} parse error during conversion from string: {why}"))
    })?;
    if mapped(address) {
        return Err(EvalError::new(format!("IPv4-mapped IPv6 address {text:?} is not allowed")));
    }
    Ok(address)
}

fn parse_cidr(text: &str) -> Result<Cidr, EvalError> {
    let prefix = "network address parse error during conversion from string: ";
    Cidr::parse(text).map_err(|why| {
        // What the parser says is told twice over; a mapped address only once.
        let twice = if why.starts_with("netip") { prefix } else { "" };
        EvalError::new(format!("{prefix}{twice}{why}"))
    })
}

/// Of a string, or of a network.
pub(crate) fn ip<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let address = match args.values {
        [Value::String(text)] => parse_ip(text)?,
        [Value::Opaque(opaque)] => match &**opaque {
            Opaque::Cidr(cidr) => cidr.address,
            _ => return Err(unfit(args)),
        },
        _ => return Err(unfit(args)),
    };
    Ok(Value::opaque(Opaque::Ip(address)))
}

pub(crate) fn cidr<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    Ok(Value::opaque(Opaque::Cidr(parse_cidr(text)?)))
}

/// `isIP` and `isCIDR`.
pub(crate) fn is<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    let valid = if args.function == "isIP" { parse_ip(text).is_ok() } else { parse_cidr(text).is_ok() };
    Ok(Value::Bool(valid))
}

pub(crate) fn is_canonical<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    Ok(Value::Bool(parse_ip(text)?.to_string() == **text))
}

pub(crate) fn property<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(opaque)] = args.values else { return Err(unfit(args)) };
    let Opaque::Ip(address) = &**opaque else { return Err(unfit(args)) };
    let (v4, v6) = match address {
        IpAddr::V4(v4) => (Some(v4), None),
        IpAddr::V6(v6) => (None, Some(v6)),
    };
    let link_local = v4.is_some_and(|v4| v4.is_link_local()) || v6.is_some_and(|v6| v6.is_unicast_link_local());
    Ok(Value::Bool(match args.function {
        "family" => return Ok(Value::Int(if v4.is_some() { 4 } else { 6 })),
        "isUnspecified" => address.is_unspecified(),
        "isLoopback" => address.is_loopback(),
        "isLinkLocalMulticast" => {
            v4.is_some_and(|v4| v4.octets().starts_with(&[224, 0, 0]))
                || v6.is_some_and(|v6| v6.segments().first().is_some_and(|first| first & 0xff0f == 0xff02))
        }
        "isLinkLocalUnicast" => link_local,
        _ => {
            !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || link_local)
                && v4.is_none_or(|v4| !v4.is_broadcast())
        }
    }))
}

/// `containsIP` and `containsCIDR`, of a string or of a value.
pub(crate) fn contains<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(opaque), other] = args.values else { return Err(unfit(args)) };
    let Opaque::Cidr(network) = &**opaque else { return Err(unfit(args)) };
    let inside = match (args.function, other) {
        ("containsIP", Value::String(text)) => network.contains(parse_ip(text)?),
        ("containsCIDR", Value::String(text)) => holds(*network, parse_cidr(text)?),
        (function, Value::Opaque(other)) => match (function, &**other) {
            ("containsIP", Opaque::Ip(address)) => network.contains(*address),
            ("containsCIDR", Opaque::Cidr(other)) => holds(*network, *other),
            _ => return Err(unfit(args)),
        },
        _ => return Err(unfit(args)),
    };
    Ok(Value::Bool(inside))
}

fn holds(big: Cidr, small: Cidr) -> bool {
    big.bits <= small.bits && big.contains(small.address)
}

/// `prefixLength` and `masked`.
pub(crate) fn prefix<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(opaque)] = args.values else { return Err(unfit(args)) };
    let Opaque::Cidr(network) = &**opaque else { return Err(unfit(args)) };
    Ok(match args.function {
        "prefixLength" => Value::Int(i64::from(network.bits)),
        _ => Value::opaque(Opaque::Cidr(network.masked())),
    })
}
