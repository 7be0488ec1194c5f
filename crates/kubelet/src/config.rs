//! What a kubelet is given by whoever starts it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Taint;
use tokio::sync::watch;

use crate::{LogLimits, SysctlAllowlist, Thresholds};

pub struct Config {
    pub node_name: String,
    /// The container runtime: built in, or a socket.
    pub cri: Arc<dyn cri::Cri>,
    /// Speaks to the API as `system:node:<name>`.
    pub client: kube::Client,
    /// Pod folders (volumes, hosts files) live below it.
    pub root_dir: PathBuf,
    /// Container logs, one folder per pod.
    pub pod_logs_dir: PathBuf,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// What pods with DNS policy `Default` resolve with, and where cluster pods' further search domains come from.
    pub resolv_conf: PathBuf,
    pub node_ip: IpAddr,
    pub port: u16,
    /// The pod network of this node; without it the one that a controller assigns is used.
    pub pod_cidr: Option<String>,
    /// The cgroup all pods are below, such as `/kubepods`.
    pub cgroup_root: String,
    /// For the serving port, as it is at the moment of a handshake. Must ask for and verify client certificates.
    pub tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    pub max_pods: u16,
    pub register_node: bool,
    pub node_labels: BTreeMap<String, String>,
    pub register_with_taints: Vec<Taint>,
    /// A folder of pod manifests to run without the API server's word.
    pub static_pod_path: Option<PathBuf>,
    /// The sysctls that pods may set.
    pub sysctls: SysctlAllowlist,
    /// When container logs are rotated, and how many are kept.
    pub logs: LogLimits,
    /// When pods are evicted to keep the node alive.
    pub eviction: Thresholds,
    /// How long a pressure condition stays after the resource has recovered.
    pub eviction_transition: Duration,
    /// Processes and threads of one pod; none is no limit.
    pub pod_max_pids: Option<u64>,
    /// What pods do not get of the node: resource names and amounts.
    pub reserved: BTreeMap<String, Quantity>,
}

impl Config {
    /// Upstream's defaults for all that has one.
    pub fn new(
        node_name: impl Into<String>,
        node_ip: IpAddr,
        cri: Arc<dyn cri::Cri>,
        client: kube::Client,
        tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    ) -> Self {
        Self {
            node_name: node_name.into(),
            cri,
            client,
            root_dir: PathBuf::from("/var/lib/kubelet"),
            pod_logs_dir: PathBuf::from("/var/log/pods"),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            node_ip,
            port: 10250,
            pod_cidr: None,
            cgroup_root: "/kubepods".to_owned(),
            tls,
            max_pods: 110,
            register_node: true,
            node_labels: BTreeMap::new(),
            register_with_taints: Vec::new(),
            static_pod_path: None,
            sysctls: SysctlAllowlist::default(),
            logs: LogLimits::default(),
            eviction: Thresholds::default(),
            eviction_transition: Duration::from_secs(300),
            pod_max_pids: None,
            reserved: BTreeMap::new(),
        }
    }
}
