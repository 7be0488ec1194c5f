//! Joins what makes a node: container runtime, pod network, images.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use apiserver::ServiceRanges;
use async_trait::async_trait;
use cri::v1::{PodSandboxConfig, Protocol};
use network::{Ipv4Prefix, PortMapping};
use runtime::{NetworkError, PodAttachment, PodNetwork, ProcessConfig, Runtime};

use crate::cluster::BRIDGE;

/// The runtime's view of our pod network.
struct Network(Arc<network::PodNetwork>);

#[async_trait]
impl PodNetwork for Network {
    async fn attach(&self, id: &str, netns: &Path, config: &PodSandboxConfig) -> Result<PodAttachment, NetworkError> {
        let attached = self.0.attach(id, netns, &port_mappings(config)).await.map_err(told)?;
        Ok(PodAttachment { ips: attached.ips })
    }

    async fn detach(&self, id: &str, netns: &Path) -> Result<(), NetworkError> {
        self.0.detach(id, netns).await.map_err(told)
    }
}

fn told(error: network::NetworkError) -> NetworkError {
    NetworkError(format!("{:#}", anyhow::Error::from(error)))
}

fn port_mappings(config: &PodSandboxConfig) -> Vec<PortMapping> {
    let port = |number: i32| u16::try_from(number).ok().filter(|number| *number > 0);
    let mappings = config.port_mappings.iter().filter_map(|mapping| {
        let protocol = match mapping.protocol() {
            Protocol::Tcp => network::Protocol::Tcp,
            Protocol::Udp => network::Protocol::Udp,
            Protocol::Sctp => network::Protocol::Sctp,
        };
        let host_ip = match mapping.host_ip.parse() {
            Ok(IpAddr::V4(address)) if !address.is_unspecified() => Some(address),
            _ => None,
        };
        let (host_port, container_port) = (port(mapping.host_port)?, port(mapping.container_port)?);
        Some(PortMapping { protocol, host_ip, host_port, container_port })
    });
    mappings.collect()
}

/// Opens the pod network of this node.
pub(crate) async fn open_network(
    state_dir: PathBuf,
    pod_cidr: &str,
    cluster_cidr: &str,
    services: &ServiceRanges,
) -> Result<Arc<network::PodNetwork>> {
    let prefix =
        |text: &str| text.parse::<Ipv4Prefix>().with_context(|| format!("{text:?} is not a range of IPv4 addresses"));
    let mut config = network::Config::new(prefix(pod_cidr)?, state_dir);
    config.bridge = BRIDGE.to_owned();
    config.cluster_cidr = Some(prefix(cluster_cidr)?);
    let mut services = services.iter().filter(|range| range.address.is_ipv4());
    config.service_cidr = services.next().map(|range| prefix(&range.to_string())).transpose()?;
    Ok(Arc::new(network::PodNetwork::open(config).await?))
}

/// Opens the container runtime on that network.
pub(crate) async fn open_runtime(
    root: PathBuf,
    network: Option<Arc<network::PodNetwork>>,
    image_limits: runtime::ImageLimits,
) -> Result<Arc<Runtime>> {
    let network: Arc<dyn PodNetwork> = match network {
        Some(network) => Arc::new(Network(network)),
        None => Arc::new(runtime::NoNetwork),
    };
    let shim = (PathBuf::from("/proc/self/exe"), vec![OsString::from("shim")]);
    let registry_ca = Some(root.join("registry-ca")).filter(|dir| dir.is_dir());
    Ok(Runtime::open(runtime::Config { root, shim, network, registry_ca, image_limits }).await?)
}

/// Our own binary as images: one that is all of Ferry, one that says hello.
pub(crate) async fn add_builtin_images(runtime: &Runtime) -> Result<()> {
    let binary = std::env::current_exe().context("the path of this program is unknown")?;
    let files = [(binary, PathBuf::from("/ferry"))];
    let own = |arguments: &[&str]| ProcessConfig {
        entrypoint: Some(vec!["/ferry".into()]),
        cmd: Some(arguments.iter().map(ToString::to_string).collect()),
        ..ProcessConfig::default()
    };
    let images = runtime.images();
    let version = env!("CARGO_PKG_VERSION");
    for tag in [version, "latest"] {
        images.add_builtin("ferry.local/ferry", tag, &files, own(&["--help"])).await?;
        images.add_builtin("ferry.local/hello", tag, &files, own(&["hello"])).await?;
    }
    Ok(())
}
