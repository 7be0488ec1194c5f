//! Ports of the node that lead into a pod (`hostPort`).

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

/// Spelled as in CNI's `portMappings`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub protocol: Protocol,
    /// Only this address of the node, or all of them.
    #[serde(default, rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<Ipv4Addr>,
    pub host_port: u16,
    pub container_port: u16,
}
