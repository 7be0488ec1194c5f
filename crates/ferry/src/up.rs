//! `ferry up`: a whole cluster in the foreground.
//!
//! Everything that can fail for a reason the user must mend (rights, ports, disk) is tried before anything is started.
//! Components start side by side and reach state only through the API, each under its own name.

mod ready;
mod running;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use apiserver::{ApiServer, ServiceRanges};
use client::Informers;
use tokio::sync::watch;

use crate::cli::Up;
use crate::cluster::{DOMAIN, DataDir, ISSUER, dns_address, host_address, host_name};
use crate::control_plane::{self, FrontProxy, Settings, accounts_of, client_for};
use crate::pki::{self, Pki};
use crate::progress::{Progress, human};
use crate::renewal::{self, Renewal, Shown};
use crate::{addons, alone, certs, image, kubeconfig, node, preflight};
use running::{CGROUP_ROOT, Running};

/// Thresholds of `--eviction-hard` unless it is given. The kubelet's own, 10 % and 15 % of the disk, are for machines that only
/// run pods; this one shares its disk with its user's files.
const EVICTION_HARD: &str =
    "memory.available<100Mi,nodefs.available<5%,nodefs.inodesFree<5%,imagefs.available<5%,imagefs.inodesFree<5%";

/// The machine as the cluster's one node.
struct Host {
    name: String,
    address: IpAddr,
    pod_cidr: String,
    services: ServiceRanges,
    data: DataDir,
}

pub(crate) async fn run(options: Up) -> Result<()> {
    let progress = Progress::start();
    let mut interrupt = Signals::new()?;
    progress.line(&format!("{} {}", progress.bold("ferry"), env!("CARGO_PKG_VERSION")));
    let mut running = Running::nothing();
    let outcome = tokio::select! {
        failed = bring_up(&options, &progress, &mut running) => failed,
        () = interrupt.next() => Ok(()),
    };
    running.stop(&options, &progress).await;
    outcome
}

/// Starts everything and keeps it up; ends only when something fails.
async fn bring_up(options: &Up, progress: &Progress, running: &mut Running) -> Result<()> {
    let services = services(options)?;
    let admin = start(options, services, progress, running).await?;
    let (node, dns) = (node_name(options), dns_address(&services));
    tokio::select! {
        ready = ready::cluster(admin, &node, dns, progress) => ready?,
        failed = running.failure() => return Err(failed),
    }
    greet(options, progress);
    tokio::spawn(runtime::forget_start());
    Err(running.failure().await)
}

/// Ctrl-C and SIGTERM.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }
}

fn node_name(options: &Up) -> String {
    options.node_name.clone().unwrap_or_else(host_name)
}

fn address(options: &Up) -> IpAddr {
    options.advertise_address.unwrap_or_else(host_address)
}

/// Pods and the proxy here know IPv4 only: services may have another address of IPv6, but are reached at the first.
fn services(options: &Up) -> Result<ServiceRanges> {
    let services = ServiceRanges::parse(&options.service_cluster_ip_range, Some(address(options)))?;
    let primary = services.primary;
    anyhow::ensure!(
        primary.address.is_ipv4(),
        "pods have addresses of IPv4 here: {primary} cannot be the first range of services"
    );
    Ok(services)
}

fn kubeconfig_path(options: &Up) -> PathBuf {
    options.kubeconfig.clone().unwrap_or_else(kubeconfig::default_path)
}

/// Starts every component; answers a client for the cluster's administrator.
async fn start(
    options: &Up,
    services: ServiceRanges,
    progress: &Progress,
    running: &mut Running,
) -> Result<kube::Client> {
    let data = DataDir(options.data_dir.clone());
    preflight::check(data.path())?;
    let listener =
        control_plane::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.secure_port), "--secure-port").await?;
    // The kubelet binds it again; a busy one must be found out before anything is started.
    drop(control_plane::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.kubelet_port), "--kubelet-port").await?);
    let host = Host {
        name: node_name(options),
        address: address(options),
        pod_cidr: first_node_cidr(&options.cluster_cidr)?,
        services,
        data,
    };

    let begun = Instant::now();
    let store = control_plane::open_store(&host.data.join("store"))?;
    running.store = Some(store.clone());
    running.machine = Some(preflight::claim_machine()?);
    progress.done("store", begun.elapsed(), &host.data.join("store").display().to_string());

    let begun = Instant::now();
    let pki = Pki::open(&host.data.join("pki"))?;
    let certificates = certs::apiserver(&pki, &host.name, host.address, &host.services)?.shown()?;
    let front_proxy = certs::front_proxy(&host.data.join("pki"))?;
    let proxy_client = front_proxy.client.clone();
    let settings = settings(options, &pki, &host, &certificates, front_proxy)?;
    let api = control_plane::start(settings, store.clone(), listener, running.api_drain.clone()).await?;
    let server = api.server.clone();
    running.api = Some(api);
    progress.done("API server", begun.elapsed(), &format!("https://127.0.0.1:{}", options.secure_port));

    let (socket, etcd_pki) = (host.data.join("run/etcd.sock"), host.data.join("pki/etcd"));
    let urls = &options.etcd_listen_client_urls;
    let (listeners, of_etcd) = crate::etcd::beside(&socket, urls, &etcd_pki, host.address).await?;
    if let Some(of_etcd) = of_etcd {
        running.control("certificates of the etcd API", renewal::keep(running.control_drain.clone(), of_etcd));
    }
    running.control("etcd API", store::etcd::serve(store, listeners, running.control_drain.clone()));
    start_control(options, &pki, &host, &server, running)?;
    let kubelet = Shown::new(&certs::kubelet(&pki, &host.name, host.address)?)?;
    start_node(options, &pki, &host, &server, kubelet.clone(), progress, running).await?;
    let admin = client_for(&server, "system:admin", &["system:masters"]);
    addons::apply(&admin, dns_address(&services)).await?;
    // Last, so that a cluster that did not start is not the current one.
    write_kubeconfig(options, &pki)?;
    let renewal = renewal(options.clone(), pki, host, certificates, [kubelet, proxy_client]);
    running.control("certificates", renewal::keep(running.control_drain.clone(), renewal));
    Ok(admin)
}

/// Makes certificates anew that end soon, the administrator's too.
fn renewal(options: Up, pki: Pki, host: Host, shown: certs::ApiServerShown, others: [Arc<Shown>; 2]) -> Renewal {
    Box::new(move || {
        let own = certs::apiserver(&pki, &host.name, host.address, &host.services)?;
        own.show(&shown)?;
        let node = certs::kubelet(&pki, &host.name, host.address)?;
        let (_, proxy_client) = certs::front_proxy_client(&host.data.join("pki"))?;
        let [kubelet, front_proxy] = &others;
        kubelet.show(&node)?;
        front_proxy.show(&proxy_client)?;
        let before = std::fs::read_to_string(host.data.join("pki/admin.crt")).ok();
        let admin = pki.client("admin", "kubernetes-admin", &["system:masters"])?;
        if before.as_ref() != Some(&admin.certificate) {
            write_kubeconfig(&options, &pki)?;
        }
        pki::good_for(&[&own.serving, &own.kubelet_client, &node, &proxy_client, &admin])
    })
}

/// Controllers and scheduler.
fn start_control(options: &Up, pki: &Pki, host: &Host, server: &Arc<ApiServer>, running: &mut Running) -> Result<()> {
    let drain = running.control_drain.clone();
    let manager = client_for(server, "system:kube-controller-manager", &[]);
    let config = controllers::Config {
        root_ca: pki.ca.certificate.clone(),
        cluster_cidr: options.cluster_cidr.clone(),
        node_cidr_mask_size: 24,
        identity: host.name.clone(),
        accounts: accounts_of(server),
        signing: certs::signing(pki)?,
    };
    running.control("controllers", controllers::run(manager, config, || (), drain.clone()));
    let scheduler = client_for(server, "system:kube-scheduler", &[]);
    let config = scheduler::Config { identity: host.name.clone(), ..scheduler::Config::default() };
    running.control("scheduler", scheduler::run(scheduler, config, || (), drain));
    Ok(())
}

/// Pod network, container runtime, service proxy and kubelet.
async fn start_node(
    options: &Up,
    pki: &Pki,
    host: &Host,
    server: &Arc<ApiServer>,
    identity: Arc<Shown>,
    progress: &Progress,
    running: &mut Running,
) -> Result<()> {
    let Host { name, address, pod_cidr, services, data } = host;
    let begun = Instant::now();
    running.network = true;
    let network = node::open_network(data.join("network"), pod_cidr, &options.cluster_cidr, services).await?;
    progress.done("pod network", begun.elapsed(), pod_cidr);

    let begun = Instant::now();
    let runtime = node::open_runtime(data.join("runtime"), Some(network), options.images.parse()?).await?;
    running.runtime = Some(runtime.clone());
    node::add_builtin_images(&runtime).await?;
    progress.done("container runtime", begun.elapsed(), "CRI v1");

    let drain = running.node_drain.clone();
    let sockets = data.join("run");
    pki::close_to_others(&sockets)?;
    let (cri, import) = (sockets.join("runtime.sock"), sockets.join("import.sock"));
    let (own, ended) = (runtime.clone(), drain.clone());
    running.node("CRI socket", async move { alone::serve_cri(&cri, own, ended).await });
    running.node("imports", image::serve_imports(import, runtime.clone(), drain.clone()));
    let informers = Informers::new(client_for(server, "system:kube-proxy", &[]), drain.clone());
    let cluster_cidr = options.cluster_cidr.parse().ok();
    let config = proxy::ProxyConfig::new(proxy::Node { name: name.clone(), pod_cidr: cluster_cidr });
    running.node("proxy", proxy::run(config, informers, || (), drain.clone()));

    let tls = control_plane::kubelet_tls(&pki.authorities()?, identity)?;
    let client = client_for(server, &format!("system:node:{name}"), &["system:nodes"]);
    let config = kubelet::Config {
        root_dir: data.join("kubelet"),
        pod_logs_dir: data.join("log/pods"),
        cluster_dns: vec![dns_address(services)],
        cluster_domain: DOMAIN.to_owned(),
        port: options.kubelet_port,
        pod_cidr: Some(pod_cidr.clone()),
        cgroup_root: CGROUP_ROOT.to_owned(),
        eviction: EVICTION_HARD.parse()?,
        ..kubelet::Config::new(name.clone(), *address, runtime, client, watch::channel(tls).1)
    };
    let kubelet = kubelet::Kubelet::build(options.limits.apply(config)?).await?;
    running.node("kubelet", kubelet.run(|| (), drain));
    Ok(())
}

fn settings(
    options: &Up,
    pki: &Pki,
    host: &Host,
    certificates: &certs::ApiServerShown,
    front_proxy: FrontProxy,
) -> Result<Settings> {
    let authorities = pki.authorities()?;
    Ok(Settings {
        listen: (IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.secure_port),
        advertise_address: host.address,
        service_cluster_ip_range: host.services,
        service_node_port_range: "30000-32767".into(),
        flags: options.api.clone(),
        service_account_key: pki.service_account_key()?,
        service_account_key_files: Vec::new(),
        service_account_issuer: ISSUER.into(),
        client_ca: authorities.clone(),
        kubelet_ca: Some(authorities),
        serving: certificates.serving.clone(),
        kubelet_client: certificates.kubelet_client.clone(),
        front_proxy: Some(front_proxy),
    })
}

fn write_kubeconfig(options: &Up, pki: &Pki) -> Result<()> {
    let admin = pki.client("admin", "kubernetes-admin", &["system:masters"])?;
    let server = format!("https://127.0.0.1:{}", options.secure_port);
    let ours = kubeconfig::document("ferry", &server, &pki.ca.certificate, &admin);
    kubeconfig::write(&options.data_dir.join("admin.conf"), &ours)?;
    kubeconfig::merge(&kubeconfig_path(options), &ours)
}

/// The first node's share of the pod addresses.
fn first_node_cidr(cluster_cidr: &str) -> Result<String> {
    let (base, bits) = crate::cluster::parse_cidr(cluster_cidr)?;
    Ok(format!("{base}/{}", bits.max(24)))
}

fn greet(options: &Up, progress: &Progress) {
    progress.line(&format!("\n{} in {}. Try:\n", progress.bold("The cluster is up"), human(progress.elapsed())));
    let path = kubeconfig_path(options);
    let flag =
        if path == kubeconfig::default_path() { String::new() } else { format!("--kubeconfig {} ", path.display()) };
    for command in [
        "create deployment hello --image=ferry.local/hello --port=8080",
        "expose deployment hello",
        "get pods,services -o wide",
    ] {
        progress.line(&format!("    kubectl {flag}{command}"));
    }
    progress.line("\nCtrl-C stops it. The cluster's state stays; `ferry up` brings it back.");
}
