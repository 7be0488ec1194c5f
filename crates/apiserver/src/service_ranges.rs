//! `--service-cluster-ip-range`: the addresses that services get, of one family or of both. What is wrong with it is said in
//! upstream's words.

use std::net::IpAddr;

use api::addresses::{Range, family};

/// What upstream takes where the flag is empty.
const USUAL: &str = "10.0.0.0/24";
/// A range must leave as many bits to its hosts: eight addresses.
const FEWEST_BITS: u8 = 3;

/// Services are of the first range's family unless they ask for another.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRanges {
    pub primary: Range,
    pub secondary: Option<Range>,
}

/// Why the ranges cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ServiceRangesError(String);

impl ServiceRanges {
    /// One range, or two of different families. The `kubernetes` service is of the first one's family, and so must its endpoints be:
    /// `public`, the address that this server is reached at.
    pub fn parse(text: &str, public: Option<IpAddr>) -> Result<Self, ServiceRangesError> {
        let mut parts = (if text.is_empty() { USUAL } else { text }).split(',');
        let mut next = || parts.next().map(|part| Range::lenient(part).map(|range| range.masked()));
        let refused = |why: &str| ServiceRangesError(why.to_owned());
        let primary = next().flatten().ok_or_else(|| refused("service-cluster-ip-range[0] is not a valid cidr"))?;
        // Upstream counts the addresses of a range that has half of them all as none.
        if primary.host_bits() < FEWEST_BITS || primary.bits < 2 {
            return Err(refused(
                "error determining service IP ranges for primary service cidr: the service cluster IP range must be at least 8 IP addresses",
            ));
        }
        let secondary = match next() {
            Some(None) => return Err(refused("service-cluster-ip-range[1] is not an ip net")),
            other => other.flatten(),
        };
        let mut wrong = Vec::new();
        if parts.next().is_some() {
            wrong.push("--service-cluster-ip-range must not contain more than two entries".to_owned());
        }
        if secondary.is_some_and(|secondary| family(secondary.address) == family(primary.address)) {
            let detail =
                "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family";
            wrong.push(detail.to_owned());
        }
        if let Some(public) = public.filter(|public| family(*public) != family(primary.address)) {
            wrong.push(format!("service IP family \"{primary}\" must match public address family \"{public}\""));
        }
        match wrong.as_slice() {
            [] => Ok(Self { primary, secondary }),
            [one] => Err(refused(one)),
            many => Err(ServiceRangesError(format!("[{}]", many.join(", ")))),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Range> {
        std::iter::once(self.primary).chain(self.secondary)
    }

    pub fn families(&self) -> impl Iterator<Item = &'static str> {
        self.iter().map(|range| family(range.address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_one_or_two_of_different_families() {
        const V4: &str = "192.0.2.1";
        const V6: &str = "2001:db8::1";
        check("10.96.0.0/16", V4, "10.96.0.0/16");
        check("", V4, "10.0.0.0/24");
        check("10.96.0.1/16,fd00:96::1/112", V4, "10.96.0.0/16 fd00:96::/112");
        check("fd00:96::/112,10.96.0.0/16", V6, "fd00:96::/112 10.96.0.0/16");
        check("x", V4, "service-cluster-ip-range[0] is not a valid cidr");
        check("10.96.0.0/16,", V4, "service-cluster-ip-range[1] is not an ip net");
        let small = "error determining service IP ranges for primary service cidr: the service cluster IP range must be at least 8 IP addresses";
        check("10.96.0.0/29", V4, "10.96.0.0/29");
        check("10.96.0.0/30", V4, small);
        check("0.0.0.0/1", V4, small);
        check("fd00::/125", V6, "fd00::/125");
        check("fd00::/126", V6, small);
        // Nobody minds how small or large the second one is.
        check("10.96.0.0/16,fd00::/48", V4, "10.96.0.0/16 fd00::/48");
        check("10.96.0.0/16,fd00::/128", V4, "10.96.0.0/16 fd00::/128");
        let same = "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family";
        check("10.96.0.0/16,10.97.0.0/16", V4, same);
        let many = "--service-cluster-ip-range must not contain more than two entries";
        check("10.96.0.0/16,fd00::/112,x", V4, many);
        check("10.96.0.0/16,10.97.0.0/16,10.98.0.0/16", V4, &format!("[{many}, {same}]"));
        check("fd00::/112", V4, "service IP family \"fd00::/112\" must match public address family \"192.0.2.1\"");
    }

    #[track_caller]
    fn check(text: &str, public: &str, want: &str) {
        let got = match ServiceRanges::parse(text, public.parse().ok()) {
            Ok(ranges) => ranges.iter().map(|range| range.to_string()).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "{text}");
    }
}
