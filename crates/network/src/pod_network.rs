//! Attaches pods to the node's bridge and detaches them.

use std::collections::HashSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nft::Ipv4Prefix;

use crate::ipam::{Ipam, Lease};
use crate::link::{Links, mac_of};
use crate::{NetworkError, PortMapping, firewall, netns, sysctl};

/// The interface pods expect to have.
pub(crate) const POD_INTERFACE: &str = "eth0";
const DEFAULT_MTU: u32 = 1500;

#[derive(Clone, Debug)]
pub struct Config {
    pub bridge: String,
    /// This node's part of the cluster's pod addresses.
    pub pod_cidr: Ipv4Prefix,
    /// All nodes' pods: traffic to them keeps the pod's own address. `pod_cidr` if there is one node.
    pub cluster_cidr: Option<Ipv4Prefix>,
    /// Routed to the bridge, so that the node reaches services even without a default route.
    pub service_cidr: Option<Ipv4Prefix>,
    pub state_dir: PathBuf,
    /// That of the default route's interface if not given.
    pub mtu: Option<u32>,
}

impl Config {
    pub fn new(pod_cidr: Ipv4Prefix, state_dir: impl Into<PathBuf>) -> Self {
        let (bridge, state_dir) = ("ferry0".to_owned(), state_dir.into());
        Self { bridge, pod_cidr, cluster_cidr: None, service_cidr: None, state_dir, mtu: None }
    }
}

/// What a pod got.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    pub ips: Vec<IpAddr>,
    pub gateway: Ipv4Addr,
    /// The interface inside the pod.
    pub interface: String,
    pub mac: String,
    /// Its other end, on the node.
    pub host_interface: String,
}

pub struct PodNetwork {
    config: Config,
    ipam: Ipam,
    links: Links,
    bridge: u32,
    mtu: u32,
}

impl PodNetwork {
    /// Creates or adopts the bridge and its rules. Pods that are attached stay so.
    pub async fn open(config: Config) -> Result<Self, NetworkError> {
        let ipam = Ipam::open(&config.state_dir, config.pod_cidr)?;
        let links = Links::open()?;
        let mtu = match config.mtu {
            Some(mtu) => mtu,
            None => links.default_mtu().await?.unwrap_or(DEFAULT_MTU),
        };
        let bridge = links.bridge(&config.bridge, ipam.gateway(), config.pod_cidr, mtu).await?;
        if let Some(service_cidr) = config.service_cidr {
            links.link_route(bridge, service_cidr, Some(ipam.gateway())).await?;
        }
        node_settings(&config.bridge)?;
        let network = Self { config, ipam, links, bridge, mtu };
        network.sync_firewall()?;
        Ok(network)
    }

    /// Gives the pod in `netns` its address. Safe to repeat: the same `id` gets the same address.
    pub async fn attach(&self, id: &str, netns: &Path, ports: &[PortMapping]) -> Result<Attachment, NetworkError> {
        self.attach_as(id, netns, POD_INTERFACE, ports).await
    }

    pub(crate) async fn attach_as(
        &self,
        id: &str,
        netns: &Path,
        interface: &str,
        ports: &[PortMapping],
    ) -> Result<Attachment, NetworkError> {
        let namespace = netns::open(netns)?;
        let lease = self.ipam.claim(id, ports)?;
        self.connect(&lease, netns, namespace, interface).await?;
        if !ports.is_empty() {
            self.sync_firewall()?;
        }
        Ok(self.attachment(&lease, interface))
    }

    async fn connect(&self, lease: &Lease, path: &Path, namespace: File, interface: &str) -> Result<(), NetworkError> {
        let failed = |source| NetworkError::Namespace { path: path.to_owned(), source };
        if !has_interface(path, namespace.try_clone().map_err(failed)?, interface).await? {
            // What is left of an attempt that ended half-way, or of a namespace that is going away.
            self.links.delete(&lease.interface).await?;
            let mac = mac_of(lease.address);
            self.links.veth(&lease.interface, self.bridge, interface, mac, self.mtu, namespace.as_fd()).await?;
        }
        let (address, gateway, interface) = (lease.address, self.ipam.gateway(), interface.to_owned());
        netns::inside(path, namespace, async move |links| configure(links, &interface, address, gateway).await).await
    }

    /// Takes the pod off the network and frees its address. Safe to repeat, and after the namespace is gone.
    pub async fn detach(&self, id: &str, _netns: &Path) -> Result<(), NetworkError> {
        let Some(lease) = self.ipam.find(id)? else { return Ok(()) };
        // The pair goes as one; the address is free only when nobody can use it any more.
        self.links.delete(&lease.interface).await?;
        self.ipam.release(id)?;
        if !lease.ports.is_empty() {
            self.sync_firewall()?;
        }
        Ok(())
    }

    /// Fails if what [`PodNetwork::attach`] made is no longer there.
    pub async fn check(&self, id: &str, netns: &Path, interface: &str) -> Result<Attachment, NetworkError> {
        let lease = self.ipam.find(id)?.ok_or_else(|| NetworkError::Missing(interface.to_owned()))?;
        self.links.index(&lease.interface).await?;
        let (address, name) = (lease.address, interface.to_owned());
        netns::inside(netns, netns::open(netns)?, async move |links| {
            let index = links.index(&name).await?;
            match links.has_address(index, address).await? {
                true => Ok(()),
                false => Err(NetworkError::WrongAddress { interface: name, address }),
            }
        })
        .await?;
        Ok(self.attachment(&lease, interface))
    }

    /// Detaches every pod that is not in `live`, for those that vanished while nobody looked.
    pub async fn retain(&self, live: &HashSet<String>) -> Result<(), NetworkError> {
        for lease in self.ipam.leases()? {
            if !live.contains(&lease.id) {
                tracing::info!(sandbox = lease.id, address = %lease.address, "releasing the address of a pod that is gone");
                self.detach(&lease.id, Path::new("")).await?;
            }
        }
        Ok(())
    }

    fn sync_firewall(&self) -> Result<(), NetworkError> {
        let Config { bridge, pod_cidr, cluster_cidr, .. } = &self.config;
        let networks = firewall::Networks { bridge, pods: *pod_cidr, cluster: cluster_cidr.unwrap_or(*pod_cidr) };
        firewall::sync(&networks, &self.ipam.leases()?)
    }

    fn attachment(&self, lease: &Lease, interface: &str) -> Attachment {
        let mac: Vec<_> = mac_of(lease.address).iter().map(|byte| format!("{byte:02x}")).collect();
        Attachment {
            ips: vec![lease.address.into()],
            gateway: self.ipam.gateway(),
            interface: interface.to_owned(),
            mac: mac.join(":"),
            host_interface: lease.interface.clone(),
        }
    }
}

/// Takes away what [`PodNetwork::open`] makes, however far it came: the rules and the bridge. Pods must be gone before.
pub async fn remove(bridge: &str) -> Result<(), NetworkError> {
    firewall::remove()?;
    Links::open()?.delete(bridge).await
}

async fn has_interface(path: &Path, namespace: File, interface: &str) -> Result<bool, NetworkError> {
    let name = interface.to_owned();
    netns::inside(path, namespace, async move |links| Ok(links.find(&name).await?.is_some())).await
}

/// The pod's side: loopback, its address, and everything else by way of the gateway.
async fn configure(links: Links, interface: &str, address: Ipv4Addr, gateway: Ipv4Addr) -> Result<(), NetworkError> {
    links.up("lo").await?;
    // Both must be off: a host of two interfaces on one link tells about the short cut, which bypasses the node.
    sysctl::set("ipv4/conf/all/accept_redirects", "0")?;
    sysctl::set(&format!("ipv4/conf/{interface}/accept_redirects"), "0")?;
    ignore_routers(interface)?;
    let index = links.up(interface).await?;
    links.address(index, interface, address, 32).await?;
    links.link_route(index, Ipv4Prefix::new(gateway, 32), None).await?;
    links.default_route(index, gateway).await
}

fn node_settings(bridge: &str) -> Result<(), NetworkError> {
    sysctl::set("ipv4/ip_forward", "1")?;
    // The node reaches pods from 127.0.0.1 by node ports and host ports.
    sysctl::set(&format!("ipv4/conf/{bridge}/route_localnet"), "1")?;
    // Pods are to come by way of the node, so it must not show them the short cut.
    sysctl::set("ipv4/conf/all/send_redirects", "0")?;
    sysctl::set(&format!("ipv4/conf/{bridge}/send_redirects"), "0")?;
    ignore_routers(bridge)
}

/// Turns off IPv6 router advertisements on an interface: any pod could send them and redirect the node's traffic (CVE-2020-10749).
fn ignore_routers(interface: &str) -> Result<(), NetworkError> {
    let settings = format!("ipv6/conf/{interface}");
    if !Path::new("/proc/sys/net").join(&settings).exists() {
        return Ok(()); // A kernel without IPv6.
    }
    sysctl::set(&format!("{settings}/accept_ra"), "0")?;
    sysctl::set(&format!("{settings}/accept_redirects"), "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers are multi-threaded, so nothing here may hold a thread across an await.
    #[allow(dead_code)]
    fn verbs_are_send(network: &PodNetwork, config: Config) {
        fn check(_: impl Send) {}
        check(PodNetwork::open(config));
        check(network.attach("a", Path::new("/"), &[]));
        check(network.detach("a", Path::new("/")));
    }
}
