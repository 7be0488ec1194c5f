//! The pod network of one node: a bridge, a veth pair per pod, addresses from the node's pod CIDR.
//!
//! Pods are routed, not switched: a pod has a /32 address and knows only its gateway, the bridge. So replies to a service's client on
//! the same node pass the node's connection tracking whether bridge netfilter is there or not.

pub mod cni;
mod error;
mod firewall;
mod ipam;
mod link;
mod netns;
mod pod_network;
mod port;
mod sysctl;

pub use error::NetworkError;
pub use nft::Ipv4Prefix;
pub use pod_network::{Attachment, Config, PodNetwork, remove};
pub use port::{PortMapping, Protocol};
