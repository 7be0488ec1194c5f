//! An IPv4 network in CIDR notation.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// `address/length`, with the host bits cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ipv4Prefix {
    address: Ipv4Addr,
    length: u8,
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0:?} is not an IPv4 network in CIDR notation")]
pub struct PrefixError(String);

impl Ipv4Prefix {
    /// A length over 32 is taken as 32.
    pub fn new(address: Ipv4Addr, length: u8) -> Self {
        let length = length.min(32);
        Self { address: Ipv4Addr::from_bits(address.to_bits() & mask(length)), length }
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub fn length(&self) -> u8 {
        self.length
    }

    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(mask(self.length))
    }

    pub fn last(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !mask(self.length))
    }

    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(self.length) == self.address.to_bits()
    }

    /// The `n`th address of the network, if it has that many.
    pub fn nth(&self, n: u32) -> Option<Ipv4Addr> {
        let address = Ipv4Addr::from_bits(self.address.to_bits().checked_add(n)?);
        self.contains(address).then_some(address)
    }
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

impl fmt::Display for Ipv4Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Ipv4Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let length = length.parse().ok().filter(|length| *length <= 32)?;
            Some(Self::new(address.parse().ok()?, length))
        };
        parse().ok_or_else(|| PrefixError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Option<(&str, &str, &str)>) {
        let got = text.parse::<Ipv4Prefix>().ok();
        let got = got.map(|prefix| (prefix.to_string(), prefix.mask().to_string(), prefix.last().to_string()));
        assert_eq!(got, want.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())), "{text}");
    }

    #[test]
    fn parses_what_kubernetes_calls_a_cidr() {
        check("10.244.1.7/24", Some(("10.244.1.0/24", "255.255.255.0", "10.244.1.255")));
        check("0.0.0.0/0", Some(("0.0.0.0/0", "0.0.0.0", "255.255.255.255")));
        check("10.0.0.1/32", Some(("10.0.0.1/32", "255.255.255.255", "10.0.0.1")));
        check("10.0.0.1", None);
        check("10.0.0.1/33", None);
        check("fd00::/64", None);
    }

    #[test]
    fn addresses_are_counted_from_the_network() {
        let prefix: Ipv4Prefix = "10.244.0.0/30".parse().unwrap();
        assert_eq!(prefix.nth(1), Some(Ipv4Addr::new(10, 244, 0, 1)));
        assert_eq!(prefix.nth(4), None);
    }
}
