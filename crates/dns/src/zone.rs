//! What the names of the cluster mean.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use client::Key;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// The names of one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// `spec.externalName`: nothing else is there then.
    pub(crate) external_name: Option<String>,
    /// Empty for a headless service.
    pub(crate) cluster_ips: Vec<IpAddr>,
    pub(crate) ports: Vec<Port>,
    pub(crate) endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// Lower case, as in names.
    pub(crate) protocol: String,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Endpoint {
    /// The pod's hostname, or its address with dashes.
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) ports: Vec<Port>,
}

impl Records {
    /// `slices` are those of this service.
    pub fn of(service: &Service, slices: &[Arc<EndpointSlice>]) -> Self {
        let spec = service.spec.clone().unwrap_or_default();
        if spec.type_.as_deref() == Some("ExternalName") {
            return Self { external_name: spec.external_name, ..Self::default() };
        }
        let all = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
        let cluster_ips: BTreeSet<IpAddr> = all.filter_map(|address| address.parse().ok()).collect();
        let ports = spec.ports.iter().flatten().filter_map(|port| Port::new(&port.name, &port.protocol, port.port));
        let ready_only = spec.publish_not_ready_addresses != Some(true);
        let mut endpoints: Vec<_> = slices.iter().flat_map(|slice| endpoints(slice, ready_only)).collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        Self { external_name: None, cluster_ips: cluster_ips.into_iter().collect(), ports: ports.collect(), endpoints }
    }

    pub(crate) fn is_headless(&self) -> bool {
        self.cluster_ips.is_empty()
    }
}

impl Port {
    fn new(name: &Option<String>, protocol: &Option<String>, port: i32) -> Option<Self> {
        let protocol = protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase();
        Some(Self { name: name.clone().unwrap_or_default(), protocol, port: u16::try_from(port).ok()? })
    }
}

fn endpoints(slice: &EndpointSlice, ready_only: bool) -> Vec<Endpoint> {
    let ports = slice.ports.iter().flatten().filter_map(|port| Port::new(&port.name, &port.protocol, port.port?));
    let ports: Vec<_> = ports.collect();
    let endpoints = slice.endpoints.iter().flatten().filter(|endpoint| {
        let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
        ready || !ready_only
    });
    let named = endpoints.flat_map(|endpoint| {
        endpoint.addresses.iter().filter_map(|address| {
            let address: IpAddr = address.parse().ok()?;
            let name = endpoint.hostname.clone().unwrap_or_else(|| dashed(address));
            Some(Endpoint { name, address, ports: ports.clone() })
        })
    });
    named.collect()
}

pub(crate) fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// All services of the cluster by name and by address.
pub struct Zone {
    /// Lower-case labels of the cluster domain.
    pub(crate) domain: Vec<String>,
    pub(crate) ttl: u32,
    /// Rises with each change, as secondaries would expect.
    pub(crate) serial: u32,
    services: HashMap<Key, Records>,
    namespaces: HashSet<String>,
    by_cluster_ip: HashMap<IpAddr, BTreeSet<Key>>,
    by_endpoint: HashMap<IpAddr, BTreeSet<Key>>,
}

impl Zone {
    pub fn new(domain: &str, ttl: u32) -> Self {
        let labels = domain.trim_matches('.').split('.').map(str::to_ascii_lowercase);
        Self {
            domain: labels.collect(),
            ttl,
            serial: 1,
            services: HashMap::new(),
            namespaces: HashSet::new(),
            by_cluster_ip: HashMap::new(),
            by_endpoint: HashMap::new(),
        }
    }

    /// `None` for a service that is gone.
    pub fn set_service(&mut self, key: &Key, records: Option<Records>) {
        if self.services.get(key) == records.as_ref() {
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        if let Some(old) = self.services.remove(key) {
            unlink(&mut self.by_cluster_ip, key, old.cluster_ips);
            unlink(&mut self.by_endpoint, key, old.endpoints.into_iter().map(|endpoint| endpoint.address));
        }
        if let Some(records) = records {
            link(&mut self.by_cluster_ip, key, records.cluster_ips.iter().copied());
            link(&mut self.by_endpoint, key, records.endpoints.iter().map(|endpoint| endpoint.address));
            self.services.insert(key.clone(), records);
        }
    }

    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        if exists {
            self.namespaces.insert(name.to_owned());
        } else {
            self.namespaces.remove(name);
        }
    }

    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<&Records> {
        self.services.get(&Key::new(namespace, name))
    }

    pub(crate) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    pub(crate) fn is_service(&self, address: IpAddr) -> bool {
        self.by_cluster_ip.contains_key(&address)
    }

    /// Names under the domain that lead to `address`: services first, else endpoints.
    pub(crate) fn names_of(&self, address: IpAddr) -> Vec<Vec<String>> {
        let service = |key: &Key| vec![key.name.clone(), key.namespace.clone(), "svc".into()];
        if let Some(keys) = self.by_cluster_ip.get(&address) {
            return keys.iter().map(service).collect();
        }
        let keys = self.by_endpoint.get(&address).into_iter().flatten();
        let names = keys.flat_map(|key| {
            let endpoints = self.services.get(key).into_iter().flat_map(|records| &records.endpoints);
            let here = endpoints.filter(|endpoint| endpoint.address == address);
            here.map(|endpoint| [vec![endpoint.name.clone()], service(key)].concat())
        });
        names.collect()
    }
}

fn link(index: &mut HashMap<IpAddr, BTreeSet<Key>>, key: &Key, addresses: impl IntoIterator<Item = IpAddr>) {
    for address in addresses {
        index.entry(address).or_default().insert(key.clone());
    }
}

fn unlink(index: &mut HashMap<IpAddr, BTreeSet<Key>>, key: &Key, addresses: impl IntoIterator<Item = IpAddr>) {
    for address in addresses {
        if let Some(keys) = index.get_mut(&address) {
            keys.remove(key);
            if keys.is_empty() {
                index.remove(&address);
            }
        }
    }
}
