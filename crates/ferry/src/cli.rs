//! The command line.

pub(crate) mod api;
pub(crate) mod auth;
pub(crate) mod images;
pub(crate) mod kubelet;
pub(crate) mod node;
pub(crate) mod server;
pub(crate) mod serving;
pub(crate) mod state;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::kubelet::Kubelet;
pub(crate) use self::server::Server;
use crate::cluster::{KUBELET_PORT, POD_CIDR, SERVICE_CIDR};

/// Kubernetes, whole, in one binary.
///
/// `ferry up` starts a cluster here and points kubectl at it. Every component also runs alone, with upstream's flags.
#[derive(Parser)]
#[command(name = "ferry", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// How much is logged: 0 warnings, 2 information, 4 debugging, 6 that of libraries, too
    #[arg(short = 'v', long = "v", global = true, default_value_t = 0)]
    pub(crate) verbosity: u8,
    /// Levels of single modules: `kubelet=4,apiserver::auth=6`
    #[arg(long, global = true)]
    pub(crate) vmodule: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a whole cluster on this machine, in the foreground
    Up(Up),
    /// A control plane; several on one etcd are one cluster
    Server(Server),
    /// Save, look at and restore a cluster's state
    Snapshot(state::Snapshot),
    /// Move a cluster's state between the embedded store and etcd
    Migrate(state::Migrate),
    /// The API server alone
    Apiserver(Apiserver),
    /// The controllers alone
    ControllerManager(ControllerManager),
    /// The scheduler alone
    Scheduler(Scheduler),
    /// The kubelet alone: runs the pods of one node
    Kubelet(Kubelet),
    /// The service proxy alone
    Proxy(Proxy),
    /// The container runtime alone: CRI v1 on a unix socket
    Runtime(Runtime),
    /// The store alone: etcd's v3 API on the embedded engine
    Store(Store),
    /// Cluster DNS, as it runs in its pod
    Dns(Dns),
    /// Make the certificates and kubeconfigs that components need to run alone
    Certs(Certs),
    /// Images in the local store
    Image(Image),
    /// A small HTTP server that tells who answered, as `ferry.local/hello` runs it
    Hello(Hello),
    /// Small tools for pods whose image holds nothing else
    #[command(subcommand)]
    Tool(Tool),
}

#[derive(Args, Clone)]
pub(crate) struct Up {
    /// Where the cluster lives: state, certificates, images, logs
    #[arg(long, default_value = "/var/lib/ferry")]
    pub(crate) data_dir: PathBuf,
    /// The kubeconfig that gets the context `ferry` [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Leave pods running when ferry stops; the next start adopts them
    #[arg(long)]
    pub(crate) keep_pods: bool,
    /// The port the API is served on
    #[arg(long, default_value_t = 6443)]
    pub(crate) secure_port: u16,
    /// The address the API is reached at [default: the one of the default route]
    #[arg(long)]
    pub(crate) advertise_address: Option<IpAddr>,
    /// This node's name [default: the host's]
    #[arg(long)]
    pub(crate) node_name: Option<String>,
    #[arg(long, default_value = SERVICE_CIDR)]
    pub(crate) service_cluster_ip_range: String,
    #[arg(long, default_value = POD_CIDR)]
    pub(crate) cluster_cidr: String,
    #[arg(long, default_value_t = KUBELET_PORT)]
    pub(crate) kubelet_port: u16,
    /// Serve etcd's API here too, beside DATA_DIR/run/etcd.sock: `https://127.0.0.1:2379`. Clients show the certificate in
    /// DATA_DIR/pki/etcd
    #[arg(long, value_delimiter = ',')]
    pub(crate) etcd_listen_client_urls: Vec<String>,
    #[command(flatten)]
    pub(crate) api: api::Api,
    #[command(flatten)]
    pub(crate) images: images::ImageLimits,
    #[command(flatten)]
    pub(crate) limits: node::NodeLimits,
}

#[derive(Args, Clone)]
pub(crate) struct Apiserver {
    /// Where the embedded store lives, if no etcd is named
    #[arg(long, default_value = "/var/lib/ferry/store")]
    pub(crate) store_dir: PathBuf,
    #[command(flatten)]
    pub(crate) etcd: state::Etcd,
    #[arg(long, default_value = "0.0.0.0")]
    pub(crate) bind_address: IpAddr,
    #[arg(long, default_value_t = 6443)]
    pub(crate) secure_port: u16,
    #[arg(long)]
    pub(crate) advertise_address: Option<IpAddr>,
    #[arg(long)]
    pub(crate) tls_cert_file: PathBuf,
    #[arg(long)]
    pub(crate) tls_private_key_file: PathBuf,
    #[arg(long)]
    pub(crate) client_ca_file: PathBuf,
    /// Verifies the kubelets' serving certificates; without it, they are believed as they are
    #[arg(long)]
    pub(crate) kubelet_certificate_authority: Option<PathBuf>,
    #[arg(long)]
    pub(crate) kubelet_client_certificate: PathBuf,
    #[arg(long)]
    pub(crate) kubelet_client_key: PathBuf,
    /// Signs the tokens of service accounts: RSA, P-256 or P-384
    #[arg(long)]
    pub(crate) service_account_signing_key_file: PathBuf,
    /// Keys, public or private, whose tokens are believed beside those of the signing key; may be repeated
    #[arg(long)]
    pub(crate) service_account_key_file: Vec<PathBuf>,
    /// Let pods have privileged containers
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub(crate) allow_privileged: bool,
    #[arg(long, default_value = crate::cluster::ISSUER)]
    pub(crate) service_account_issuer: String,
    #[arg(long, default_value = SERVICE_CIDR)]
    pub(crate) service_cluster_ip_range: String,
    #[arg(long, default_value = "30000-32767")]
    pub(crate) service_node_port_range: String,
    #[command(flatten)]
    pub(crate) api: api::Api,
}

#[derive(Args, Clone)]
pub(crate) struct ControllerManager {
    #[arg(long)]
    pub(crate) kubeconfig: PathBuf,
    /// The authority pods verify the API server with
    #[arg(long)]
    pub(crate) root_ca_file: PathBuf,
    #[arg(long, default_value = POD_CIDR)]
    pub(crate) cluster_cidr: String,
    #[arg(long, default_value_t = 24)]
    pub(crate) node_cidr_mask_size: u8,
    /// The authority that approved requests for certificates are signed with
    #[arg(long, requires = "cluster_signing_key_file")]
    pub(crate) cluster_signing_cert_file: Option<PathBuf>,
    #[arg(long, requires = "cluster_signing_cert_file")]
    pub(crate) cluster_signing_key_file: Option<PathBuf>,
    /// How long such a certificate is good, at most
    #[arg(long, default_value = "8760h")]
    pub(crate) cluster_signing_duration: String,
}

#[derive(Args, Clone)]
pub(crate) struct Scheduler {
    #[arg(long)]
    pub(crate) kubeconfig: PathBuf,
}

#[derive(Args, Clone)]
pub(crate) struct Proxy {
    #[arg(long)]
    pub(crate) kubeconfig: PathBuf,
    #[arg(long)]
    pub(crate) hostname_override: Option<String>,
    /// The pods' addresses: traffic from elsewhere to a service is masqueraded
    #[arg(long, default_value = POD_CIDR)]
    pub(crate) cluster_cidr: String,
    /// Take this proxy's rules out of the kernel and stop
    #[arg(long)]
    pub(crate) cleanup: bool,
}

#[derive(Args, Clone)]
pub(crate) struct Runtime {
    #[arg(long, default_value = "/var/lib/ferry/runtime")]
    pub(crate) root: PathBuf,
    #[arg(long, default_value = "/run/ferry/runtime.sock")]
    pub(crate) listen: PathBuf,
    /// This node's pod addresses
    #[arg(long, default_value = "10.244.0.0/24")]
    pub(crate) pod_cidr: String,
    #[arg(long, default_value = POD_CIDR)]
    pub(crate) cluster_cidr: String,
    #[arg(long, default_value = SERVICE_CIDR)]
    pub(crate) service_cluster_ip_range: String,
    /// Take the pod network's bridge and rules out of the kernel and stop
    #[arg(long)]
    pub(crate) cleanup: bool,
    #[command(flatten)]
    pub(crate) images: images::ImageLimits,
}

#[derive(Args, Clone)]
pub(crate) struct Store {
    #[arg(long, default_value = "/var/lib/ferry/store")]
    pub(crate) data_dir: PathBuf,
    /// `http://127.0.0.1:2379`, `https://0.0.0.0:2379`, `unix:///run/ferry/etcd.sock`; several with commas
    #[arg(long, value_delimiter = ',', default_value = "http://127.0.0.1:2379")]
    pub(crate) listen_client_urls: Vec<String>,
    /// For https
    #[arg(long)]
    pub(crate) cert_file: Option<PathBuf>,
    #[arg(long)]
    pub(crate) key_file: Option<PathBuf>,
    /// Clients must show a certificate of this authority
    #[arg(long)]
    pub(crate) trusted_ca_file: Option<PathBuf>,
}

#[derive(Args, Clone)]
pub(crate) struct Dns {
    /// [default: the pod's service account]
    #[arg(long)]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[arg(long, default_value = "0.0.0.0:53")]
    pub(crate) listen: std::net::SocketAddr,
    #[arg(long, default_value = crate::cluster::DOMAIN)]
    pub(crate) cluster_domain: String,
}

#[derive(Args, Clone)]
pub(crate) struct Certs {
    /// Where they go: `pki/`, and a kubeconfig per component
    pub(crate) dir: PathBuf,
    /// The API server as the components reach it
    #[arg(long, default_value = "https://127.0.0.1:6443")]
    pub(crate) server: String,
    /// Take the next of the three steps to a new authority, and nothing else
    #[arg(long)]
    pub(crate) rotate_authority: bool,
    #[arg(long)]
    pub(crate) node_name: Option<String>,
    #[arg(long)]
    pub(crate) advertise_address: Option<IpAddr>,
    #[arg(long, default_value = SERVICE_CIDR)]
    pub(crate) service_cluster_ip_range: String,
}

#[derive(Args, Clone)]
pub(crate) struct Image {
    #[arg(long, default_value = "/var/lib/ferry", global = true)]
    pub(crate) data_dir: PathBuf,
    #[command(flatten)]
    pub(crate) limits: images::ImageLimits,
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Subcommand, Clone)]
pub(crate) enum ImageCommand {
    /// Import the images of an OCI or docker archive
    Import { archive: PathBuf },
    /// Show the images in the store
    List,
    /// Remove an image by name, digest or id
    Remove { name: String },
    /// Pull an image from its registry
    Pull {
        name: String,
        /// `user:password`
        #[arg(long)]
        creds: Option<String>,
    },
}

#[derive(Args, Clone)]
pub(crate) struct Hello {
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub(crate) listen: std::net::SocketAddr,
}

#[derive(Subcommand, Clone)]
pub(crate) enum Tool {
    /// Fetch a URL
    Fetch(Fetch),
    /// Copy standard input to standard output
    Echo,
    /// Do nothing until told to stop: the sandbox container of runtimes that need one
    Pause,
}

#[derive(Args, Clone)]
pub(crate) struct Fetch {
    pub(crate) url: String,
    /// Send the pod's service-account token
    #[arg(long)]
    pub(crate) service_account: bool,
    /// Seconds to wait for the answer
    #[arg(long, default_value_t = 10)]
    pub(crate) timeout: u64,
}
