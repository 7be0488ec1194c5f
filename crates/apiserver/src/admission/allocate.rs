//! Cluster addresses and node ports of services: each is given to one service at a time.
//!
//! What is taken is read from the services themselves; a reservation covers the time between the choice and the moment
//! the written service is seen by everyone.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::server::ApiServer;

/// Longer than any write takes to reach the cache.
const LINGER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Address(IpAddr),
    /// Protocols have node ports of their own.
    Port(String, u16),
}

pub(crate) struct Allocator {
    range: (IpAddr, u8),
    ports: RangeInclusive<u16>,
    reserved: Reserved,
}

/// What is chosen but not yet seen in a service; with the time of release once the write is over.
type Reserved = Arc<Mutex<HashMap<Item, Option<Instant>>>>;

/// Reserved items; given back when dropped.
pub(crate) struct Held {
    items: Vec<Item>,
    reserved: Option<Reserved>,
}

impl Held {
    pub(crate) fn nothing() -> Self {
        Self { items: Vec::new(), reserved: None }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(reserved) = &self.reserved else { return };
        let mut reserved = reserved.lock();
        for item in &self.items {
            reserved.insert(item.clone(), Some(Instant::now()));
        }
    }
}

impl Allocator {
    pub(crate) fn new(range: (IpAddr, u8), ports: RangeInclusive<u16>) -> Self {
        Self { range, ports, reserved: Arc::default() }
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

/// Gives a service the addresses and ports it needs.
pub(super) fn service(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    service: &mut Object,
) -> Result<Held, ApiError> {
    let allocator = &server.allocator;
    let (taken, owned) = taken(attributes);
    let mut reserved = allocator.reserved.lock();
    reserved.retain(|_, released| released.is_none_or(|at| at.elapsed() < LINGER));
    let mut claim = Claim { allocator, taken: &taken, owned: &owned, reserved: &mut reserved, items: Vec::new() };
    let outcome = addresses(&mut claim, service).and_then(|()| node_ports(&mut claim, service));
    let items = claim.items;
    if let Err(error) = outcome {
        for item in &items {
            reserved.remove(item);
        }
        return Err(ApiError::invalid("", "Service", service.name(), &[error]));
    }
    if attributes.dry_run || attributes.operation == Operation::Delete {
        reserved.retain(|item, _| !items.contains(item));
        return Ok(Held::nothing());
    }
    Ok(Held { items, reserved: Some(allocator.reserved.clone()) })
}

/// What other services hold, and what this one holds already.
fn taken(attributes: &Attributes<'_>) -> (HashSet<Item>, HashSet<Item>) {
    let (mut taken, mut owned) = (HashSet::new(), HashSet::new());
    let snapshot = attributes.served.cache.as_ref().map(|cache| cache.snapshot());
    let own = attributes.served.key(attributes.namespace, attributes.name);
    for stored in snapshot.iter().flat_map(|s| s.objects.values()) {
        let service = stored.decode();
        let taken = if *stored.key == *own { &mut owned } else { &mut taken };
        let addresses = service.at(&["spec", "clusterIPs"]).and_then(Value::as_array).into_iter().flatten();
        taken.extend(addresses.filter_map(|a| a.as_str()?.parse().ok()).map(Item::Address));
        for port in service.at(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten() {
            let number = port.get("nodePort").and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok());
            let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
            taken.extend(number.map(|number| Item::Port(protocol.to_owned(), number)));
        }
    }
    (taken, owned)
}

struct Claim<'a> {
    allocator: &'a Allocator,
    taken: &'a HashSet<Item>,
    owned: &'a HashSet<Item>,
    reserved: &'a mut HashMap<Item, Option<Instant>>,
    items: Vec<Item>,
}

impl Claim<'_> {
    fn take(&mut self, item: Item) -> bool {
        if self.owned.contains(&item) {
            return true; // Its own: two updates of one service do not compete.
        }
        let in_flight = self.reserved.get(&item).is_some_and(Option::is_none);
        if self.taken.contains(&item) || in_flight || self.items.contains(&item) {
            return false;
        }
        self.reserved.insert(item.clone(), None);
        self.items.push(item);
        true
    }

    /// A fresh choice also avoids what was released a moment ago.
    fn is_quiet(&self, item: &Item) -> bool {
        !self.reserved.contains_key(item)
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
            let free = (0..10_000).filter_map(|_| claim.allocator.candidate()).find(|address| {
                let item = Item::Address(*address);
                claim.is_quiet(&item) && claim.take(item)
            });
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
            if !claim.take(Item::Address(address)) {
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

fn node_ports(claim: &mut Claim<'_>, service: &mut Object) -> Result<(), FieldError> {
    let kind = service.text(&["spec", "type"]);
    let wanted = kind == "NodePort"
        || (kind == "LoadBalancer"
            && service.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false)));
    if !wanted {
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
            Some(number) if !claim.take(Item::Port(protocol.clone(), number)) => {
                return Err(FieldError::invalid(path, number, "provided port is already allocated"));
            }
            Some(number) => number,
            None => {
                let candidates = (0..10_000).map(|_| rand::rng().random_range(range.clone()));
                let mut candidates = candidates.chain(range.clone());
                let free = candidates.find(|number| {
                    let item = Item::Port(protocol.clone(), *number);
                    claim.is_quiet(&item) && claim.take(item)
                });
                free.ok_or_else(|| FieldError::invalid(path, 0, "failed to allocate a nodePort: range is full"))?
            }
        };
        port.insert("nodePort".into(), number.into());
    }
    Ok(())
}
