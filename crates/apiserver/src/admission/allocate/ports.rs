//! Node ports. A number is one service's, whatever the protocol; only that service may use it for several.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use rand::Rng as _;
use serde_json::Value;

use super::{number, ports_of, wants_node_ports};
use crate::admission::Attributes;
use crate::server::ApiServer;
use crate::storage::{Cache, claims};
use crate::strategy::service::{has_node_ports, needs_health_check, node_ports};

const ALLOCATED: &str = "provided port is already allocated";
const FULL: &str = "range is full";

/// The ports there are, which are taken, and which this write takes.
pub(super) struct Ports<'a> {
    range: &'a RangeInclusive<u16>,
    taken: HashSet<i64>,
    now: Vec<i64>,
    dry_run: bool,
}

impl<'a> Ports<'a> {
    pub(super) fn new(server: &'a ApiServer, attributes: &Attributes<'_>, service: &Object) -> Self {
        let concerned = has_node_ports(service);
        let taken = if concerned { taken(attributes.served.cache.as_ref()) } else { HashSet::new() };
        Self { range: &server.allocator.ports, taken, now: Vec::new(), dry_run: attributes.dry_run }
    }

    /// Gives the service the node ports it needs and does not have.
    pub(super) fn give(&mut self, service: &mut Object, old: Option<&Object>) -> Result<(), ApiError> {
        if has_node_ports(service) {
            match old {
                None => self.first(service)?,
                Some(old) => self.others(service, &node_ports(old))?,
            }
        }
        if needs_health_check(service) && !old.is_some_and(needs_health_check) {
            self.health_check(service).map_err(ApiError::internal)?;
        }
        Ok(())
    }

    /// Ports of one number get one node port, whatever their protocols.
    fn first(&mut self, service: &mut Object) -> Result<(), ApiError> {
        let wants = wants_node_ports(service);
        let mut given: Vec<(i64, i64)> = Vec::new();
        let asked: Vec<(i64, i64)> = ports_of(service).map(|port| (own_number(port), number(port))).collect();
        for (index, (own, node)) in asked.iter().copied().enumerate() {
            if node == 0 && !wants {
                continue;
            }
            let known = given.iter().find(|(port, _)| *port == own).map(|(_, number)| *number);
            let requested = asked.iter().find(|(port, number)| *port == own && *number != 0);
            let chosen = match (known, requested) {
                (None, Some((_, number))) => self.claim(service, index, *number)?,
                (None, None) => self.next()?,
                (Some(known), _) if node == 0 || node == known => known,
                (Some(_), _) => self.claim(service, index, node)?,
            };
            if known.is_none() {
                given.push((own, chosen));
            }
            set(service, index, chosen);
        }
        Ok(())
    }

    /// What a changed service adds to the ones it has.
    fn others(&mut self, service: &mut Object, old: &[i64]) -> Result<(), ApiError> {
        let wants = wants_node_ports(service);
        let asked: Vec<(String, i64)> =
            ports_of(service).map(|port| (port.text(&["protocol"]).to_owned(), number(port))).collect();
        let mut seen: Vec<(&str, i64)> = Vec::new();
        for (index, (protocol, node)) in asked.iter().enumerate() {
            let chosen = match *node {
                0 if !wants => continue,
                0 => self.next()?,
                known if old.contains(&known) || seen.iter().any(|(_, number)| *number == known) => known,
                asked => self.claim(service, index, asked)?,
            };
            if seen.contains(&(protocol, chosen)) {
                return Err(ApiError::new(500, "", format!("duplicate nodePort: {{{protocol} {chosen}}}")));
            }
            seen.push((protocol, chosen));
            set(service, index, chosen);
        }
        Ok(())
    }

    /// The port on which each node tells load balancers how it is.
    fn health_check(&mut self, service: &mut Object) -> Result<(), String> {
        let asked = service.at(&["spec", "healthCheckNodePort"]).and_then(Value::as_i64).unwrap_or(0);
        let number = match asked {
            0 => self.any().ok_or_else(|| format!("failed to allocate a HealthCheck NodePort 0: {FULL}"))?,
            asked => self
                .take(asked)
                .map(|()| asked)
                .map_err(|why| format!("failed to allocate requested HealthCheck NodePort {asked}: {why}"))?,
        };
        service.at_mut(&["spec"]).insert("healthCheckNodePort".into(), number.into());
        Ok(())
    }

    fn claim(&mut self, service: &Object, index: usize, number: i64) -> Result<i64, ApiError> {
        self.take(number).map(|()| number).map_err(|why| {
            let error = FieldError::invalid(format!("spec.ports[{index}].nodePort"), number, why);
            ApiError::invalid("", "Service", service.name(), &[error])
        })
    }

    fn next(&mut self) -> Result<i64, ApiError> {
        self.any().ok_or_else(|| ApiError::internal(format!("failed to allocate a nodePort: {FULL}")))
    }

    /// Takes a number, or tells why not. What is only tried may be out of the range, upstream says.
    fn take(&mut self, number: i64) -> Result<(), String> {
        let (first, last) = (self.range.start(), self.range.end());
        let is_ours = u16::try_from(number).is_ok_and(|number| self.range.contains(&number));
        if !is_ours && !self.dry_run {
            return Err(format!("provided port is not in the valid range. The range of valid ports is {first}-{last}"));
        }
        if (is_ours && self.taken.contains(&number)) || self.now.contains(&number) {
            return Err(ALLOCATED.to_owned());
        }
        self.now.push(number);
        Ok(())
    }

    /// Takes any number. Tries answer numbers that nobody gets, the same ones as upstream's.
    fn any(&mut self) -> Option<i64> {
        if self.dry_run {
            let last = self.now.iter().copied().max().map_or(32768, |last| last.max(0));
            let free = (last + 1..100).find(|number| self.take(*number).is_ok());
            return Some(free.unwrap_or_else(|| {
                self.now.push(last + 1);
                last + 1
            }));
        }
        let (first, last) = (unchosen(self.range), *self.range.end());
        let start = rand::rng().random_range(first..=last);
        let candidates = (start..=last).chain(first..start).chain(*self.range.start()..first);
        candidates.map(i64::from).find(|number| self.take(*number).is_ok())
    }
}

fn own_number(port: &Object) -> i64 {
    port.get("port").and_then(Value::as_i64).unwrap_or(0)
}

fn set(service: &mut Object, index: usize, number: i64) {
    let ports = service.at_mut(&["spec"]).get_mut("ports").and_then(Value::as_array_mut);
    if let Some(port) = ports.and_then(|ports| ports.get_mut(index)).and_then(Value::as_object_mut) {
        port.insert("nodePort".into(), number.into());
    }
}

/// Where ports begin that are handed out while there are any; those before are left to those who choose their own.
fn unchosen(range: &RangeInclusive<u16>) -> u16 {
    let size = range.end().saturating_sub(*range.start()).saturating_add(1);
    let left = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
    range.start().saturating_add(left).min(*range.end())
}

/// What all services hold.
fn taken(services: Option<&Arc<Cache>>) -> HashSet<i64> {
    let snapshot = services.map(|cache| cache.snapshot());
    let all = snapshot.iter().flat_map(|snapshot| snapshot.objects.values());
    all.flat_map(|stored| claims::node_ports(&stored.decode())).collect()
}

#[cfg(test)]
mod tests {
    use super::unchosen;

    #[test]
    fn the_first_ports_are_left_to_those_who_choose() {
        for (range, first) in [(30000..=32767, 30086), (1..=10, 1), (1..=100, 17), (1..=60000, 129), (7..=7, 7)] {
            assert_eq!(unchosen(&range), first, "{range:?}");
        }
    }
}
