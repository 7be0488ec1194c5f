//! Cluster addresses, out of the ranges that ServiceCIDRs name.

use std::net::IpAddr;
use std::sync::Arc;

use api::addresses::{Range, family, lenient};
use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use rand::Rng as _;
use serde_json::{Value, json};

use super::families::{still_prefers_two, texts};
use crate::server::ApiServer;
use crate::storage::Cache;
use crate::strategy::service::{is_addressed, listed};

/// What is told of an address that cannot be had.
const MISMATCHED: &str = "the provided network does not match the current range";
const ALLOCATED: &str = "provided IP is already allocated";
const NOT_READY: &str = "allocator not ready";
/// Upstream hands nothing out of larger ranges, though it takes them.
const MOST_BITS: u8 = 64;

/// The addresses there are, and which are taken.
pub(super) struct Addresses<'a> {
    ranges: Vec<Range>,
    taken: Option<&'a Arc<Cache>>,
    dry_run: bool,
}

impl<'a> Addresses<'a> {
    pub(super) fn new(server: &'a ApiServer, dry_run: bool) -> Self {
        let cache =
            |plural| server.registry.stored("networking.k8s.io", plural).and_then(|served| served.cache.as_ref());
        let ranges = cache("servicecidrs").map(ready).unwrap_or_default();
        Self { ranges, taken: cache("ipaddresses"), dry_run }
    }

    /// Gives the service what its families ask for and it does not have yet.
    pub(super) fn give(&self, service: &mut Object, old: Option<&Object>) -> Result<(), ApiError> {
        let is_headless = |object: &Object| listed(object, "clusterIPs").first().is_some_and(|first| first == "None");
        let kept = match old {
            _ if !is_addressed(service) => return Ok(()),
            Some(old) if still_prefers_two(service, old) => return Ok(()),
            Some(old) if is_addressed(old) => {
                // A second address may come; the first one stays.
                if is_headless(old) || (listed(old, "ipFamilies").len(), listed(service, "ipFamilies").len()) != (1, 2)
                {
                    return Ok(());
                }
                1
            }
            _ if is_headless(service) => return Ok(()),
            _ => 0,
        };
        let (mut asked, families) = (texts(service, "clusterIPs"), texts(service, "ipFamilies"));
        asked.resize(families.len().max(asked.len()), String::new());
        let mut all = asked.clone();
        for (place, family) in all.iter_mut().zip(&families).skip(kept) {
            *place = self.one(service, &asked, family, place)?;
        }
        let spec = service.at_mut(&["spec"]);
        if let Some(first) = all.first() {
            spec.insert("clusterIP".into(), first.clone().into());
        }
        spec.insert("clusterIPs".into(), json!(all));
        Ok(())
    }

    fn one(&self, service: &Object, all: &[String], family: &str, asked: &str) -> Result<String, ApiError> {
        let refused = |why: String| {
            let error = FieldError::invalid("spec.clusterIPs", json!(all), why);
            ApiError::invalid("", "Service", service.name(), &[error])
        };
        if asked.is_empty() {
            let free = self.any(family).ok_or_else(|| match self.dry_run {
                true => refused(format!("failed to allocate IP: {NOT_READY}")),
                false => {
                    let name = service.name();
                    ApiError::internal(format!("failed to allocate a serviceIP for Service {name:?}: range is full"))
                }
            })?;
            return Ok(free.to_string());
        }
        let address =
            lenient(asked).ok_or_else(|| ApiError::internal(format!("failed to parse service IP {asked:?}")))?;
        match self.refusal(address) {
            None => Ok(asked.to_owned()),
            Some(why) => Err(refused(format!("failed to allocate IP {asked}: {why}"))),
        }
    }

    /// Why an address cannot be had. What is only tried is not compared with what is taken, upstream says.
    fn refusal(&self, address: IpAddr) -> Option<String> {
        if self.dry_run {
            let Some(range) = self.ranges.iter().find(|range| range.address.is_ipv4() == address.is_ipv4()) else {
                return Some(NOT_READY.to_owned());
            };
            return (!range.has_host(address)).then(|| {
                format!("the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}")
            });
        }
        let is_ours = self.ranges.iter().any(|range| range.has_host(address));
        let why = if is_ours { ALLOCATED } else { MISMATCHED };
        (!is_ours || !self.is_free(address)).then(|| why.to_owned())
    }

    fn is_free(&self, address: IpAddr) -> bool {
        self.taken.is_none_or(|cache| cache.get(&address.to_string()).is_none())
    }

    /// A free address. The first ones of a range are left to those who choose their own while there are others.
    fn any(&self, wanted: &str) -> Option<IpAddr> {
        let mut ranges = self.ranges.iter().filter(|range| family(range.address) == wanted);
        if self.dry_run {
            return ranges.next().map(Range::network);
        }
        ranges.find_map(|range| {
            let (left, all) = (left_to_choose(range), range.hosts());
            let upper = self.free_within(range, left + 1, all.saturating_sub(left));
            upper.or_else(|| self.free_within(range, 1, left.min(all)))
        })
    }

    /// A free one of `count` addresses from the `first` on, beginning anywhere.
    fn free_within(&self, range: &Range, first: u128, count: u128) -> Option<IpAddr> {
        if count == 0 {
            return None;
        }
        let start = rand::rng().random_range(0..count);
        let offsets = (start..count).chain(0..start);
        offsets.map(|offset| range.nth(first + offset)).find(|address| self.is_free(*address))
    }
}

/// How many addresses are left to those who choose their own.
fn left_to_choose(range: &Range) -> u128 {
    let size = range.hosts() + if range.address.is_ipv4() { 2 } else { 1 };
    if size <= 16 { 0 } else { (size / 16).clamp(16, 256) }
}

/// The ranges of the ServiceCIDRs that are in use.
fn ready(cache: &Arc<Cache>) -> Vec<Range> {
    let snapshot = cache.snapshot();
    let mut ranges = Vec::new();
    for stored in snapshot.objects.values() {
        let object = stored.decode();
        let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array);
        let ready = conditions.into_iter().flatten().find(|condition| condition.get("type") == Some(&json!("Ready")));
        // Without a controller nobody says anything of a range, and it is taken to be good.
        let is_ready = ready.is_none_or(|ready| ready.get("status") == Some(&json!("True")));
        if is_ready && !object.is_terminating() {
            let named = listed(&object, "cidrs").iter().filter_map(|range| Range::lenient(range.as_str()?));
            ranges.extend(named.filter(|range| range.host_bits() <= MOST_BITS));
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ranges_leave_nothing_to_choose() {
        for (range, left) in [("10.0.0.0/28", 0), ("10.0.0.0/27", 16), ("10.0.0.0/16", 256), ("fd00::/120", 16)] {
            assert_eq!(left_to_choose(&Range::lenient(range).unwrap()), left, "{range}");
        }
    }
}
