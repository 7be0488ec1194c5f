//! The facts of a cluster that its parts agree on.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use apiserver::ServiceRanges;

pub(crate) const SERVICE_CIDR: &str = "10.96.0.0/16";
pub(crate) const POD_CIDR: &str = "10.244.0.0/16";
pub(crate) const DOMAIN: &str = "cluster.local";
pub(crate) const KUBELET_PORT: u16 = 10250;
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
pub(crate) const BRIDGE: &str = "ferry0";

/// Where a cluster keeps its things.
#[derive(Clone, Debug)]
pub(crate) struct DataDir(pub(crate) PathBuf);

impl DataDir {
    pub(crate) fn join(&self, part: &str) -> PathBuf {
        self.0.join(part)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// `10.96.0.0/16` in its parts.
pub(crate) fn parse_cidr(text: &str) -> anyhow::Result<(IpAddr, u8)> {
    let malformed = || anyhow::anyhow!("{text:?} is not a range of addresses such as {SERVICE_CIDR}");
    let (address, bits) = text.split_once('/').ok_or_else(malformed)?;
    let (address, bits): (IpAddr, u8) =
        (address.parse().map_err(|_| malformed())?, bits.parse().map_err(|_| malformed())?);
    anyhow::ensure!(bits <= 32, malformed());
    Ok((address, bits))
}

/// Cluster DNS is the tenth of the services' addresses, as kubeadm has it.
pub(crate) fn dns_address(services: &ServiceRanges) -> IpAddr {
    services.primary.nth(10)
}

/// The machine's name, as nodes are named.
pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let name = name.to_lowercase();
    if name.is_empty() { "ferry".into() } else { name }
}

/// The address this machine is reached at: that of its default route, or loopback where it has none.
pub(crate) fn host_address() -> IpAddr {
    // Connecting a datagram socket sends nothing; it only makes the kernel choose a source address.
    let towards = |(any, other): (&str, &str)| {
        let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
        socket.connect((other, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_unspecified())
    };
    let found = [("0.0.0.0", "192.0.2.1"), ("::", "2001:db8::1")].into_iter().find_map(towards);
    found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The address others reach a server at that says where it listens and maybe how it is reached.
pub(crate) fn public_address(advertise: Option<IpAddr>, bind: IpAddr) -> IpAddr {
    let bound = Some(bind).filter(|bind| !bind.is_unspecified() && !bind.is_loopback());
    advertise.filter(|address| !address.is_unspecified()).or(bound).unwrap_or_else(host_address)
}
