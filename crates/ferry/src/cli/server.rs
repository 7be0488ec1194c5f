//! The flags of `ferry server`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::state::Etcd;
use crate::cluster::{POD_CIDR, SERVICE_CIDR};

#[derive(Args, Clone)]
pub(crate) struct Server {
    /// Where this server keeps its certificates, its kubeconfig, and the embedded store if no etcd is named
    #[arg(long, default_value = "/var/lib/ferry")]
    pub(crate) data_dir: PathBuf,
    #[command(flatten)]
    pub(crate) etcd: Etcd,
    /// The secret that servers of one cluster share [default: DATA_DIR/token, made by the first server]
    #[arg(long, env = "FERRY_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// A file with that secret
    #[arg(long, conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    #[arg(long, default_value = "0.0.0.0")]
    pub(crate) bind_address: IpAddr,
    /// The same on all servers
    #[arg(long, default_value_t = 6443)]
    pub(crate) secure_port: u16,
    /// The address the others reach this server at [default: the one of the default route]
    #[arg(long)]
    pub(crate) advertise_address: Option<IpAddr>,
    /// More addresses of this server, such as a load balancer's, for its certificate
    #[arg(long, value_delimiter = ',')]
    pub(crate) tls_san: Vec<IpAddr>,
    #[arg(long, default_value = SERVICE_CIDR)]
    pub(crate) service_cluster_ip_range: String,
    #[arg(long, default_value = "30000-32767")]
    pub(crate) service_node_port_range: String,
    #[arg(long, default_value = POD_CIDR)]
    pub(crate) cluster_cidr: String,
    #[arg(long, default_value_t = 24)]
    pub(crate) node_cidr_mask_size: u8,
    #[command(flatten)]
    pub(crate) api: super::api::Api,
}
