//! Addresses and ranges of addresses as text, as upstream's two parsers read them: the lenient one, which ignores leading
//! zeros, and the strict one, whose complaints clients see.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// What the lenient parser makes of an address.
pub fn lenient(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| without_zeros(text)?.parse().ok())
}

/// The address with no zeros before the numbers of its IPv4 part.
fn without_zeros(text: &str) -> Option<String> {
    let start = text.rfind(':').map_or(0, |colon| colon + 1);
    let (head, tail) = text.split_at_checked(start)?;
    let mut numbers = Vec::with_capacity(4);
    for number in tail.split('.') {
        let bare = number.trim_start_matches('0');
        numbers.push(if bare.is_empty() && !number.is_empty() { "0" } else { bare });
    }
    (numbers.len() == 4).then(|| format!("{head}{}", numbers.join(".")))
}

/// The family of an address, as services name it.
pub fn family(address: IpAddr) -> &'static str {
    if unmapped(address).is_ipv4() { "IPv4" } else { "IPv6" }
}

/// An IPv4 address that is written as an IPv6 one is the IPv4 address.
fn unmapped(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn is_mapped(address: IpAddr) -> bool {
    unmapped(address) != address
}

/// What is wrong with an address.
pub fn complaint(text: &str) -> Option<&'static str> {
    match text.parse::<IpAddr>() {
        Ok(address) if is_mapped(address) => Some("must not be an IPv4-mapped IPv6 address"),
        Ok(_) => None,
        Err(_) if lenient(text).is_some() => Some("must not have leading 0s"),
        Err(_) => Some(NO_ADDRESS),
    }
}

/// What is wrong with an address where only one way to write it is right.
pub fn strict_complaint(text: &str) -> Option<String> {
    let canonical = || lenient(text).map(|address| address.to_string()).filter(|canonical| canonical != text);
    let not_so = || canonical().map(|canonical| format!("must be in canonical form (\"{canonical}\")"));
    complaint(text).map(str::to_owned).or_else(not_so)
}

/// What is worth telling of an address that is written in an odd way.
pub fn warning(path: &str, text: &str) -> Option<String> {
    let read = lenient(text)?;
    match text.parse::<IpAddr>() {
        Ok(address) if !is_mapped(address) => (address.is_ipv6() && address.to_string() != text)
            .then(|| format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{address}\")")),
        _ => Some(format!("{path}: non-standard IP address {text:?} is invalid: use \"{}\"", unmapped(read))),
    }
}

/// An address and how many of its bits name the network: `10.9.8.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub address: IpAddr,
    pub bits: u8,
}

impl Range {
    pub fn lenient(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let (address, bits) = (lenient(address)?, bits.parse::<u32>().ok().filter(|_| digits)?);
        let bits = u8::try_from(bits).ok()?;
        (bits <= width(address)).then_some(Self { address, bits })
    }

    /// The strict parser takes no zeros before a number.
    fn strict(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let is_plain = address.parse::<IpAddr>().is_ok() && (bits == "0" || !bits.starts_with('0'));
        Self::lenient(text).filter(|_| is_plain)
    }

    /// The first address, which names the network.
    pub fn network(&self) -> IpAddr {
        self.nth(0)
    }

    /// The range with nothing set beyond its prefix.
    #[must_use]
    pub fn masked(&self) -> Self {
        Self { address: self.network(), bits: self.bits }
    }

    /// How many bits tell its addresses apart.
    pub fn host_bits(&self) -> u8 {
        width(self.address) - self.bits
    }

    /// How many addresses hosts may have: none has that of the network, nor IPv4's broadcast.
    pub fn hosts(&self) -> u128 {
        let all = u128::MAX.checked_shr(128 - u32::from(self.host_bits())).unwrap_or(0);
        if self.address.is_ipv4() { all.saturating_sub(1) } else { all }
    }

    /// The address so far behind that of the network.
    pub fn nth(&self, offset: u128) -> IpAddr {
        match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(u32::from(32 - self.bits)).unwrap_or(0);
                let offset = u32::try_from(offset).unwrap_or(u32::MAX) & !mask;
                Ipv4Addr::from((u32::from(v4) & mask) | offset).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(u32::from(128 - self.bits)).unwrap_or(0);
                Ipv6Addr::from((u128::from(v6) & mask) | (offset & !mask)).into()
            }
        }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let same_family = address.is_ipv4() == self.address.is_ipv4();
        same_family && Self { address, bits: self.bits }.network() == self.network()
    }

    /// A host may have the address.
    pub fn has_host(&self, address: IpAddr) -> bool {
        let is_broadcast = address.is_ipv4() && self.nth(u128::MAX) == address;
        self.contains(address) && address != self.network() && !is_broadcast
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// What is wrong with a range.
pub fn range_complaint(text: &str) -> Option<&'static str> {
    match Range::strict(text) {
        None if Range::lenient(text).is_some() => Some("must not have leading 0s in IP or prefix length"),
        None => Some(NO_RANGE),
        Some(range) if is_mapped(range.address) => Some("must not have an IPv4-mapped IPv6 address"),
        Some(range) if range.masked() != range => Some("must not have bits set beyond the prefix length"),
        Some(_) => None,
    }
}

/// What is worth telling of a range that is written in an odd way.
pub fn range_warnings(path: &str, text: &str) -> Vec<String> {
    let Some(range) = Range::lenient(text) else { return Vec::new() };
    let mut warnings = Vec::new();
    // Upstream's lenient parser keeps mapped addresses as IPv4 ones, and ranges with as many bits less.
    let plain = match (is_mapped(range.address), range.bits.checked_sub(96)) {
        (true, Some(bits)) => Range { address: unmapped(range.address), bits },
        _ => range,
    };
    if plain.masked() != plain {
        let (masked, address, all) = (plain.masked(), plain.address, width(plain.address));
        warnings.push(format!(
            "{path}: CIDR value {text:?} is ambiguous in this context (should be \"{masked}\" or \"{address}/{all}\"?)"
        ));
    }
    match Range::strict(text) {
        Some(range) if !is_mapped(range.address) => {
            if warnings.is_empty() && range.address.is_ipv6() && range.to_string() != text {
                warnings.push(format!(
                    "{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{range}\")"
                ));
            }
        }
        _ => warnings.push(format!("{path}: non-standard CIDR value {text:?} is invalid: use \"{}\"", plain.masked())),
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_odd_is_told() {
        for (text, wanted) in [
            ("10.0.0.1", None),
            ("fd00::1", None),
            ("010.0.0.01", Some("must not have leading 0s")),
            ("::ffff:1.2.3.4", Some("must not be an IPv4-mapped IPv6 address")),
            ("1.2.3", Some(NO_ADDRESS)),
            ("", Some(NO_ADDRESS)),
            ("fe80::1%eth0", Some(NO_ADDRESS)),
        ] {
            assert_eq!(complaint(text), wanted, "{text}");
        }
        for (text, wanted) in [
            ("10.0.0.0/8", None),
            ("fd00::/64", None),
            ("10.0.0.1/8", Some("must not have bits set beyond the prefix length")),
            ("10.0.0.0/08", Some("must not have leading 0s in IP or prefix length")),
            ("::ffff:1.2.3.0/120", Some("must not have an IPv4-mapped IPv6 address")),
            ("10.0.0.0/33", Some(NO_RANGE)),
            ("10.0.0.0", Some(NO_RANGE)),
        ] {
            assert_eq!(range_complaint(text), wanted, "{text}");
        }
    }

    #[test]
    fn ranges_know_their_hosts() {
        for (text, hosts, first, last) in [
            ("10.0.0.0/28", 14, "10.0.0.1", "10.0.0.15"),
            ("10.0.0.4/31", 0, "10.0.0.5", "10.0.0.5"),
            ("10.0.0.4/32", 0, "10.0.0.4", "10.0.0.4"),
            ("fd00::/120", 255, "fd00::1", "fd00::ff"),
        ] {
            let range = Range::lenient(text).unwrap();
            assert_eq!(
                (range.hosts(), range.nth(1).to_string(), range.nth(u128::MAX).to_string()),
                (hosts, first.to_owned(), last.to_owned()),
                "{text}"
            );
        }
        let range = Range::lenient("10.0.0.0/28").unwrap();
        for (address, wanted) in
            [("10.0.0.0", false), ("10.0.0.1", true), ("10.0.0.15", false), ("10.0.1.1", false), ("::1", false)]
        {
            assert_eq!(range.has_host(address.parse().unwrap()), wanted, "{address}");
        }
    }

    #[test]
    fn odd_ways_are_warned_of() {
        assert_eq!(warning("a", "10.0.0.1"), None);
        assert_eq!(
            warning("a", "FD00::1").unwrap(),
            "a: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")"
        );
        assert_eq!(
            warning("a", "::ffff:1.2.3.4").unwrap(),
            "a: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\""
        );
        assert_eq!(
            range_warnings("a", "10.0.0.1/8"),
            [
                "a: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)"
            ]
        );
        assert_eq!(
            range_warnings("a", "10.0.0.0/08"),
            ["a: non-standard CIDR value \"10.0.0.0/08\" is invalid: use \"10.0.0.0/8\""]
        );
    }
}
