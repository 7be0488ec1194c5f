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
        taken: if wants_node_ports(service) { taken(services) } else { HashSet::new() },
    };
    let outcome = addresses(&mut claim, service).and_then(|()| node_ports(&mut claim, service));
    outcome.map_err(|error| ApiError::invalid("", "Service", service.name(), &[error]))
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
                let (base, bits) = claim.allocator.range;
                return Err(refuse(&format!(
                    "the provided IP ({text}) is not in the valid range. The range of valid IPs is {base}/{bits}"
                )));
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
    spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
    spec.entry("ipFamilyPolicy").or_insert_with(|| json!("SingleStack"));
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
                let detail = format!(
                    "provided port is not in the valid range. The range of valid ports is {}-{}",
                    range.start(),
                    range.end()
                );
                return Err(FieldError::invalid(path, number, detail));
            }
            Some(number) if !claim.port(&protocol, number) => {
                return Err(FieldError::invalid(path, number, "provided port is already allocated"));
            }
            Some(number) => number,
            None => {
                let candidates = (0..10_000).map(|_| rand::rng().random_range(range.clone()));
                let mut candidates = candidates.chain(range.clone());
                let free = candidates.find(|number| claim.port(&protocol, *number));
                free.ok_or_else(|| FieldError::invalid(path, 0, "failed to allocate a nodePort: range is full"))?
            }
        };
        port.insert("nodePort".into(), number.into());
    }
    Ok(())
}
