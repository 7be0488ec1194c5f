//! The places of the service table, and how each is written as an element of a set or map.

use std::net::{Ipv4Addr, SocketAddrV4};

use nft::{Element, Ipv4Prefix};

/// What a packet is sent to, before translation. Node ports have no address: they answer at every address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    pub address: Ipv4Addr,
    pub protocol: u8,
    pub port: u16,
}

impl ServiceKey {
    pub fn is_node_port(&self) -> bool {
        self.address.is_unspecified()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.address.octets().to_vec();
        bytes.extend([self.protocol, 0, 0, 0]);
        bytes.extend(padded(self.port));
        bytes
    }
}

/// Whose traffic: everybody's, or that from outside to a service with `externalTrafficPolicy: Local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Cluster,
    ExternalLocal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// How many endpoints a service has.
    Service(Scope, ServiceKey),
    Endpoint(Scope, ServiceKey, u32),
    /// An endpoint that clients may still be bound to by affinity.
    Sticky(Scope, ServiceKey, SocketAddrV4),
    /// Nobody answers: the client is told.
    Reject(ServiceKey),
    /// Nobody on this node answers, but the cluster does: the client is not told, as upstream.
    Drop(ServiceKey),
    DropExternal(ServiceKey),
    ClusterIp(Ipv4Addr),
    /// A pod that may reach itself through a service.
    Hairpin(Ipv4Addr),
    /// Only [`Slot::Allowed`] sources may come.
    Firewalled(ServiceKey),
    Allowed(ServiceKey, Ipv4Prefix),
}

/// What a slot of a map holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    Present,
    /// `affinity_s` is 0 without session affinity.
    Class {
        endpoints: u32,
        affinity_s: u32,
    },
    To(SocketAddrV4),
}

/// One of the chains that draw an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Pick {
    pub(crate) scope: Scope,
    pub(crate) node_port: bool,
    pub(crate) endpoints: u32,
    pub(crate) affinity_s: u32,
}

impl Pick {
    pub(crate) fn of(slot: &Slot, value: &Value) -> Option<Self> {
        match (slot, value) {
            (Slot::Service(scope, key), Value::Class { endpoints, affinity_s }) => {
                let (endpoints, affinity_s) = (*endpoints, *affinity_s);
                Some(Self { scope: *scope, node_port: key.is_node_port(), endpoints, affinity_s })
            }
            _ => None,
        }
    }

    pub(crate) fn chain(&self) -> String {
        let kind = if self.node_port { "node-port" } else { "service" };
        let suffix = suffix(self.scope);
        match self.affinity_s {
            0 => format!("{kind}{suffix}-{}", self.endpoints),
            seconds => format!("{kind}{suffix}-{}-sticky-{seconds}", self.endpoints),
        }
    }

    /// The number by which maps name it.
    pub(crate) fn class(&self) -> u32 {
        class(self.endpoints, self.affinity_s)
    }
}

/// Upstream allows a day of affinity, 17 bits; what is left counts endpoints.
pub(crate) const MAX_ENDPOINTS: usize = (1 << 15) - 1;

fn class(endpoints: u32, affinity_s: u32) -> u32 {
    affinity_s << 15 | endpoints
}

pub(crate) fn suffix(scope: Scope) -> &'static str {
    match scope {
        Scope::Cluster => "",
        Scope::ExternalLocal => "-local",
    }
}

impl Slot {
    pub(crate) fn set(&self) -> &'static str {
        match self {
            Self::Service(Scope::Cluster, _) => "services",
            Self::Service(Scope::ExternalLocal, _) => "services-local",
            Self::Endpoint(Scope::Cluster, ..) => "endpoints",
            Self::Endpoint(Scope::ExternalLocal, ..) => "endpoints-local",
            Self::Sticky(Scope::Cluster, ..) => "sticky",
            Self::Sticky(Scope::ExternalLocal, ..) => "sticky-local",
            Self::Reject(_) => "reject",
            Self::Drop(_) => "drop",
            Self::DropExternal(_) => "drop-external",
            Self::ClusterIp(_) => "cluster-ips",
            Self::Hairpin(_) => "hairpin",
            Self::Firewalled(_) => "firewalled",
            Self::Allowed(..) => "allowed",
        }
    }

    pub(crate) fn element(&self, value: &Value) -> Element {
        let element = match self {
            Self::Service(_, key)
            | Self::Reject(key)
            | Self::Drop(key)
            | Self::DropExternal(key)
            | Self::Firewalled(key) => Element::new(key.bytes()),
            Self::Endpoint(_, key, index) => Element::new([key.bytes(), index.to_ne_bytes().into()].concat()),
            Self::Sticky(_, key, to) => Element::new([key.bytes(), socket_bytes(to)].concat()),
            Self::ClusterIp(address) => Element::new(address.octets().into()),
            Self::Hairpin(address) => Element::new([address.octets(), address.octets()].concat()),
            Self::Allowed(key, prefix) => {
                let with = |address: Ipv4Addr| [key.bytes(), address.octets().into()].concat();
                Element::new(with(prefix.address())).until(with(prefix.last()))
            }
        };
        match value {
            Value::Present => element,
            Value::Class { endpoints, affinity_s } => {
                element.value(class(*endpoints, *affinity_s).to_ne_bytes().into())
            }
            Value::To(to) => element.value(socket_bytes(to)),
        }
    }
}

fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn socket_bytes(to: &SocketAddrV4) -> Vec<u8> {
    [to.ip().octets(), padded(to.port())].concat()
}
