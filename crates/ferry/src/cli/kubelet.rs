//! The flags of `ferry kubelet`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args};

use crate::cluster::KUBELET_PORT;

#[derive(Args, Clone)]
pub(crate) struct Kubelet {
    /// How the API is reached, and as which node; with --bootstrap-kubeconfig it is written if it is not there
    #[arg(long)]
    pub(crate) kubeconfig: PathBuf,
    /// How a node that has no kubeconfig yet, or one whose certificate has ended, asks for a certificate: with a token that it may join
    /// with, or a certificate
    #[arg(long)]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates that were asked for are kept [default: ROOT_DIR/pki]
    #[arg(long)]
    pub(crate) cert_dir: Option<PathBuf>,
    /// Renew the client certificate through the API [default: true with --bootstrap-kubeconfig]
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) rotate_certificates: Option<bool>,
    /// Ask for the serving certificate through the API and renew it there; somebody must approve it
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub(crate) rotate_server_certificates: bool,
    /// `unix:///run/containerd/containerd.sock`, or the socket of `ferry runtime`
    #[arg(long)]
    pub(crate) container_runtime_endpoint: String,
    #[arg(long, default_value = "/var/lib/ferry/kubelet")]
    pub(crate) root_dir: PathBuf,
    #[arg(long, default_value = "/var/log/pods")]
    pub(crate) pod_logs_dir: PathBuf,
    #[arg(long)]
    pub(crate) hostname_override: Option<String>,
    #[arg(long)]
    pub(crate) node_ip: Option<IpAddr>,
    #[arg(long, default_value_t = KUBELET_PORT)]
    pub(crate) port: u16,
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.10")]
    pub(crate) cluster_dns: Vec<IpAddr>,
    #[arg(long, default_value = crate::cluster::DOMAIN)]
    pub(crate) cluster_domain: String,
    /// This node's part of the pod addresses, where no controller assigns one
    #[arg(long)]
    pub(crate) pod_cidr: Option<String>,
    /// The cgroup all pods are below
    #[arg(long, default_value = "/kubepods")]
    pub(crate) cgroup_root: String,
    /// Whose certificates those who call it must show; read again when it changes [default: the authority in the kubeconfig]
    #[arg(long)]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// The serving certificate; read again when it changes [default: one of its own making, in the certificate directory]
    #[arg(long, requires = "tls_private_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    #[arg(long, requires = "tls_cert_file")]
    pub(crate) tls_private_key_file: Option<PathBuf>,
    /// Pods from files in this directory
    #[arg(long)]
    pub(crate) pod_manifest_path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limits: super::node::NodeLimits,
}

impl Kubelet {
    pub(crate) fn cert_dir(&self) -> PathBuf {
        self.cert_dir.clone().unwrap_or_else(|| self.root_dir.join("pki"))
    }

    pub(crate) fn rotates_client(&self) -> bool {
        self.rotate_certificates.unwrap_or(self.bootstrap_kubeconfig.is_some())
    }

    /// Certificate and key.
    pub(crate) fn serving(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.tls_cert_file.as_ref().zip(self.tls_private_key_file.as_ref())
    }
}
