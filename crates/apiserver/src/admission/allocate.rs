//! Cluster addresses and node ports of services: chooses ones that look free. That each is given to one service only is
//! ensured by the write itself, which claims them in the store; one that comes too late chooses again.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use bytes::Bytes;
use rand::Rng as _;
use serde_json::{Value, json};

use super::Attributes;
use crate::server::ApiServer;
use crate::storage::{Cache, claims};
use crate::strategy::needs_health_check;

pub(crate) struct Allocator {
    range: (IpAddr, u8),
    ports: RangeInclusive<u16>,
}

impl Allocator {
    pub(crate) fn new(range: (IpAddr, u8), ports: RangeInclusive<u16>) -> Self {
        Self { range, ports }
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.range, address) {
            ((IpAddr::V4(base), bits), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                u32::from(base) & mask == u32::from(address) & mask
            }
            _ => false,
        }
    }

    /// A random host address of the range; the first sixteenth is left to those who choose their own.
    fn candidate(&self) -> Option<IpAddr> {
        let (IpAddr::V4(base), bits) = self.range else { return None };
        let size = 1_u64 << (32 - u32::from(bits));
        let first = (size / 16).clamp(16, 256).min(size / 2);
        let offset = rand::rng().random_range(first..size - 1);
        let offset = u32::try_from(offset).ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(u32::from(base) + offset)))
    }
}

/// Gives a service the addresses and ports it needs. The caches must be current.
pub(super) fn service(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    service: &mut Object,
) -> Result<(), ApiError> {
    let services = attributes.served.cache.as_ref();
    let own = services.and_then(|cache| cache.get(&attributes.served.key(attributes.namespace, attributes.name)));
    let ip_addresses = server.registry.stored("networking.k8s.io", "ipaddresses");
    let mut claim = Claim {
        allocator: &server.allocator,
        own: own.map(|stored| claims::of(&stored.decode())).unwrap_or_default(),
        ip_addresses: ip_addresses.and_then(|served| served.cache.as_ref()),
        taken: if wants_node_ports(service) || needs_health_check(service) { taken(services) } else { HashSet::new() },
    };
    let refused = |service: &Object, errors: &[FieldError]| ApiError::invalid("", "Service", service.name(), errors);
    families(claim.allocator, service).map_err(|errors| refused(service, &errors))?;
    let outcome = addresses(&mut claim, service).and_then(|()| node_ports(&mut claim, service));
    outcome.map_err(|error| refused(service, &[error]))?;
    health_check_port(&mut claim, service)
}

/// Which families of addresses a service has: those of the cluster, unless it only names endpoints that others write.
fn families(allocator: &Allocator, service: &mut Object) -> Result<(), Vec<FieldError>> {
    const OTHER: [(&str, &str); 2] = [("IPv4", "IPv6"), ("IPv6", "IPv4")];
    if service.text(&["spec", "type"]) == "ExternalName" {
        return Ok(());
    }
    let own = if allocator.range.0.is_ipv4() { "IPv4" } else { "IPv6" };
    let selects = service.at(&["spec", "selector"]).and_then(Value::as_object).is_some_and(|labels| !labels.is_empty());
    let unmanaged = service.text(&["spec", "clusterIP"]) == "None" && !selects;
    let spec = service.at_mut(&["spec"]);
    let usual = if unmanaged { "RequireDualStack" } else { "SingleStack" };
    let policy = spec.entry("ipFamilyPolicy").or_insert_with(|| usual.into()).as_str().unwrap_or_default().to_owned();
    let listed = spec.get("ipFamilies").and_then(Value::as_array).into_iter().flatten();
    let mut families: Vec<String> = listed.filter_map(Value::as_str).map(str::to_owned).collect();
    let mut errors = Vec::new();
    if policy == "SingleStack" && families.len() == 2 {
        let detail = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
        return Err(vec![FieldError::invalid("spec.ipFamilyPolicy", policy, detail)]);
    }
    if !unmanaged {
        if policy == "RequireDualStack" {
            let detail = "this cluster is not configured for dual-stack services";
            errors.push(FieldError::invalid("spec.ipFamilyPolicy", policy.as_str(), detail));
        }
        for (index, family) in families.iter().enumerate().filter(|(_, family)| *family != own) {
            let path = format!("spec.ipFamilies[{index}]");
            errors.push(FieldError::invalid(path, family.as_str(), "not configured on this cluster"));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if families.is_empty() {
        families.push(own.to_owned());
    }
    if let (true, [first]) = (unmanaged && policy != "SingleStack", families.as_slice()) {
        let other = OTHER.iter().find(|(one, _)| one == first).map(|(_, other)| (*other).to_owned());
        families.extend(other);
    }
    spec.insert("ipFamilies".into(), json!(families));
    Ok(())
}

/// The port on which each node tells load balancers how it is.
fn health_check_port(claim: &mut Claim<'_>, service: &mut Object) -> Result<(), ApiError> {
    if !needs_health_check(service) {
        return Ok(());
    }
    let range = claim.allocator.ports.clone();
    let asked = service.at(&["spec", "healthCheckNodePort"]).and_then(Value::as_u64).filter(|number| *number > 0);
    let number = match asked {
        Some(asked) => {
            let number = u16::try_from(asked).ok().filter(|number| range.contains(number));
            let why = match number {
                None => Some(out_of_range(&range)),
                Some(number) => (!claim.port("TCP", number)).then(|| "provided port is already allocated".to_owned()),
            };
            if let Some(why) = why {
                return Err(ApiError::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {asked}: {why}"
                )));
            }
            return Ok(());
        }
        None => free_port(claim, "TCP")
            .ok_or_else(|| ApiError::internal("failed to allocate a HealthCheck NodePort 0: range is full"))?,
    };
    service.at_mut(&["spec"]).insert("healthCheckNodePort".into(), number.into());
    Ok(())
}

fn out_of_range(range: &RangeInclusive<u16>) -> String {
    format!("provided port is not in the valid range. The range of valid ports is {}-{}", range.start(), range.end())
}

fn free_port(claim: &mut Claim<'_>, protocol: &str) -> Option<u16> {
    let range = claim.allocator.ports.clone();
    let candidates = (0..10_000).map(|_| rand::rng().random_range(unchosen(&range)..=*range.end()));
    candidates.chain(range.clone()).find(|number| claim.port(protocol, *number))
}

/// Where ports begin that are handed out while there are any; those before are left to those who choose their own.
fn unchosen(range: &RangeInclusive<u16>) -> u16 {
    let size = range.end().saturating_sub(*range.start()).saturating_add(1);
    let left = if size < 16 { 0 } else { (size / 32).clamp(16, 128) };
    range.start().saturating_add(left).min(*range.end())
}

/// What all services hold.
fn taken(services: Option<&Arc<Cache>>) -> HashSet<String> {
    let snapshot = services.map(|cache| cache.snapshot());
    let all = snapshot.iter().flat_map(|snapshot| snapshot.objects.values());
    all.flat_map(|stored| claims::of(&stored.decode()).into_keys()).collect()
}

struct Claim<'a> {
    allocator: &'a Allocator,
    /// What the service holds already: two updates of one service do not compete.
    own: BTreeMap<String, Bytes>,
    ip_addresses: Option<&'a Arc<Cache>>,
    taken: HashSet<String>,
}

impl Claim<'_> {
    fn address(&self, address: IpAddr) -> bool {
        self.own.contains_key(&format!("{}{address}", claims::ADDRESSES))
            || self.ip_addresses.is_none_or(|cache| cache.get(&address.to_string()).is_none())
    }

    fn port(&mut self, protocol: &str, number: u16) -> bool {
        let key = format!("{}{protocol}/{number}", claims::NODE_PORTS);
        self.own.contains_key(&key) || self.taken.insert(key)
    }
}

fn addresses(claim: &mut Claim<'_>, service: &mut Object) -> Result<(), FieldError> {
    if service.text(&["spec", "type"]) == "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            service.remove_at(&["spec", field]);
        }
        return Ok(());
    }
    let asked = match service.text(&["spec", "clusterIP"]) {
        "" => service.at(&["spec", "clusterIPs"]).and_then(|l| l.get(0)?.as_str()).unwrap_or_default().to_owned(),
        text => text.to_owned(),
    };
    let address = match asked.as_str() {
        "None" => "None".to_owned(),
        "" => {
            let mut candidates = (0..10_000).filter_map(|_| claim.allocator.candidate());
            let free = candidates.find(|address| claim.address(*address));
            let free = free.ok_or_else(|| {
                FieldError::invalid("spec.clusterIPs", json!([]), "failed to allocate a serviceIP: range is full")
            })?;
            free.to_string()
        }
        text => {
            let refuse = |why: &str| {
                FieldError::invalid("spec.clusterIPs", json!([text]), format!("failed to allocate IP {text}: {why}"))
            };
            let address: IpAddr = text.parse().map_err(|_| {
                FieldError::invalid(
                    "spec.clusterIPs[0]",
                    text,
                    "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                )
            })?;
            if !claim.allocator.contains(address) {
                return Err(refuse("the provided network does not match the current range"));
            }
            if !claim.address(address) {
                return Err(refuse("provided IP is already allocated"));
            }
            text.to_owned()
        }
    };
    let spec = service.at_mut(&["spec"]);
    spec.insert("clusterIPs".into(), json!([address]));
    spec.insert("clusterIP".into(), address.into());
    Ok(())
}

fn wants_node_ports(service: &Object) -> bool {
    match service.text(&["spec", "type"]) {
        "NodePort" => true,
        "LoadBalancer" => service.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false)),
        _ => false,
    }
}

fn node_ports(claim: &mut Claim<'_>, service: &mut Object) -> Result<(), FieldError> {
    if !wants_node_ports(service) {
        return Ok(());
    }
    let range = claim.allocator.ports.clone();
    let ports = service.at_mut(&["spec"]).get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for (index, port) in ports.filter_map(Value::as_object_mut).enumerate() {
        let protocol = port.text(&["protocol"]).to_owned();
        let path = format!("spec.ports[{index}].nodePort");
        let asked = port.get("nodePort").and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
        let number = match asked {
            Some(number) if !range.contains(&number) => {
                return Err(FieldError::invalid(path, number, out_of_range(&range)));
            }
            Some(number) if !claim.port(&protocol, number) => {
                return Err(FieldError::invalid(path, number, "provided port is already allocated"));
            }
            Some(number) => number,
            None => free_port(claim, &protocol)
                .ok_or_else(|| FieldError::invalid(path, 0, "failed to allocate a nodePort: range is full"))?,
        };
        port.insert("nodePort".into(), number.into());
    }
    Ok(())
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
