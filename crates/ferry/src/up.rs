//! `ferry up`: a whole cluster in the foreground.
//!
//! Everything that can fail for a reason the user must mend (rights, ports, disk) is tried before anything is started.
//! Components start side by side and reach state only through the API, each under its own name.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use client::Informers;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::runtime::wait::await_condition;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cli::Up;
use crate::cluster::{DNS_IP, DOMAIN, DataDir, ISSUER, host_address, host_name};
use crate::control_plane::{self, Settings, client_for};
use crate::pki::Pki;
use crate::progress::{Progress, human};
use crate::{addons, alone, certs, image, kubeconfig, node, preflight};

/// A cluster that is not ready by then has a problem worth telling.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const CGROUP_ROOT: &str = "/kubepods";
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Where components that end by themselves are reported.
type Failures = mpsc::UnboundedSender<anyhow::Error>;

/// What runs, so that it can be stopped in order.
struct Running {
    failed: mpsc::UnboundedReceiver<anyhow::Error>,
    api_drain: CancellationToken,
    control_drain: CancellationToken,
    node_drain: CancellationToken,
    api: control_plane::Handle,
    store: Arc<store::Embedded>,
    runtime: Arc<runtime::Runtime>,
    network: Arc<network::PodNetwork>,
    control: Vec<JoinHandle<()>>,
    node: Vec<JoinHandle<()>>,
}

pub(crate) async fn run(options: Up) -> Result<()> {
    let progress = Progress::start();
    let mut interrupt = Signals::new()?;
    progress.line(&format!("{} {}", progress.bold("ferry"), env!("CARGO_PKG_VERSION")));
    let starting = start(&options, &progress);
    let mut running = tokio::select! {
        running = starting => running?,
        () = interrupt.next() => return Ok(()),
    };
    let ready = tokio::select! {
        ready = await_ready(&options, &running, &progress) => ready.map(|()| true),
        () = interrupt.next() => Ok(false),
    };
    if matches!(ready, Ok(true)) {
        greet(&options, &progress);
    }
    let failed = match ready {
        Ok(true) => tokio::select! {
            () = interrupt.next() => None,
            failed = running.failed.recv() => failed,
        },
        Ok(false) => None,
        Err(error) => Some(error),
    };
    stop(running, &options, &progress).await;
    failed.map_or(Ok(()), Err)
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

fn kubeconfig_path(options: &Up) -> PathBuf {
    options.kubeconfig.clone().unwrap_or_else(kubeconfig::default_path)
}

async fn start(options: &Up, progress: &Progress) -> Result<Running> {
    let data = DataDir(options.data_dir.clone());
    preflight::check(data.path())?;
    let listener =
        control_plane::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.secure_port), "--secure-port").await?;
    // The kubelet binds it again; a busy one must be found out before anything is started.
    drop(control_plane::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.kubelet_port), "--kubelet-port").await?);
    let name = node_name(options);
    let address = options.advertise_address.unwrap_or_else(host_address);

    let begun = Instant::now();
    let store = control_plane::open_store(&data.join("store"))?;
    progress.done("store", begun.elapsed(), &data.join("store").display().to_string());

    let begun = Instant::now();
    let pki = Pki::open(&data.join("pki"))?;
    let (api_drain, control_drain) = (CancellationToken::new(), CancellationToken::new());
    let settings = settings(options, &pki, &name, address)?;
    let api = control_plane::start(settings, store.clone(), listener, api_drain.clone()).await?;
    progress.done("API server", begun.elapsed(), &format!("https://127.0.0.1:{}", options.secure_port));
    write_kubeconfig(options, &pki)?;

    let (failures, failed) = mpsc::unbounded_channel();
    let mut control = Vec::new();
    let etcd_socket = crate::etcd::unix(&data.join("run/etcd.sock"))?;
    control.push(supervise(
        &failures,
        "etcd API",
        store::etcd::serve(store.clone(), vec![etcd_socket], control_drain.clone()),
    ));
    let server = &api.server;
    let manager = client_for(server, "system:kube-controller-manager", &[]);
    let config = controllers::Config {
        root_ca: pki.ca.certificate.clone(),
        cluster_cidr: options.cluster_cidr.clone(),
        node_cidr_mask_size: 24,
        identity: name.clone(),
    };
    control.push(supervise(&failures, "controllers", controllers::run(manager, config, || (), control_drain.clone())));
    let scheduler = client_for(server, "system:kube-scheduler", &[]);
    let config = scheduler::Config { identity: name.clone(), ..scheduler::Config::default() };
    control.push(supervise(&failures, "scheduler", scheduler::run(scheduler, config, || (), control_drain.clone())));

    let begun = Instant::now();
    let pod_cidr = first_node_cidr(&options.cluster_cidr)?;
    let network =
        node::open_network(data.join("network"), &pod_cidr, &options.cluster_cidr, &options.service_cluster_ip_range)
            .await?;
    progress.done("pod network", begun.elapsed(), &pod_cidr);

    let begun = Instant::now();
    let runtime = node::open_runtime(data.join("runtime"), Some(network.clone())).await?;
    node::add_builtin_images(&runtime).await?;
    progress.done("container runtime", begun.elapsed(), "CRI v1");

    let node_drain = CancellationToken::new();
    let mut node_tasks = Vec::new();
    let sockets = data.join("run");
    std::fs::create_dir_all(&sockets).with_context(|| format!("cannot create {}", sockets.display()))?;
    let (cri, import) = (sockets.join("runtime.sock"), sockets.join("import.sock"));
    let (own, drain) = (runtime.clone(), node_drain.clone());
    node_tasks.push(supervise(&failures, "CRI socket", async move { alone::serve_cri(&cri, own, drain).await }));
    node_tasks.push(supervise(&failures, "imports", image::serve_imports(import, runtime.clone(), node_drain.clone())));
    let proxy_client = client_for(server, "system:kube-proxy", &[]);
    let cluster_cidr = options.cluster_cidr.parse().ok();
    let proxy_config = proxy::ProxyConfig::new(proxy::Node { name: name.clone(), pod_cidr: cluster_cidr });
    let informers = Informers::new(proxy_client, node_drain.clone());
    node_tasks.push(supervise(&failures, "proxy", proxy::run(proxy_config, informers, || (), node_drain.clone())));

    let user = format!("system:node:{name}");
    let kubelet_identity = certs::kubelet(&pki, &name, address)?;
    let tls = control_plane::kubelet_tls(&[pki.ca_der()?], &kubelet_identity)?;
    let node_client = client_for(server, &user, &["system:nodes"]);
    let config = kubelet::Config {
        root_dir: data.join("kubelet"),
        pod_logs_dir: data.join("log/pods"),
        cluster_dns: vec![IpAddr::V4(DNS_IP)],
        cluster_domain: DOMAIN.to_owned(),
        port: options.kubelet_port,
        pod_cidr: Some(pod_cidr),
        cgroup_root: CGROUP_ROOT.to_owned(),
        ..kubelet::Config::new(name.clone(), address, runtime.clone(), node_client, tls)
    };
    let kubelet = kubelet::Kubelet::build(config).await?;
    node_tasks.push(supervise(&failures, "kubelet", kubelet.run(|| (), node_drain.clone())));

    addons::apply(&client_for(server, "system:admin", &["system:masters"])).await?;
    Ok(Running {
        failed,
        api_drain,
        control_drain,
        node_drain,
        api,
        store,
        runtime,
        network,
        control,
        node: node_tasks,
    })
}

fn settings(options: &Up, pki: &Pki, name: &str, address: IpAddr) -> Result<Settings> {
    let certificates = certs::apiserver(pki, name, address, &options.service_cluster_ip_range)?;
    let authority = pki.ca_der()?;
    Ok(Settings {
        listen: (IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.secure_port),
        advertise_address: address,
        service_cluster_ip_range: options.service_cluster_ip_range.clone(),
        service_node_port_range: "30000-32767".into(),
        service_account_key: pki.service_account_key()?,
        service_account_issuer: ISSUER.into(),
        client_ca: vec![authority.clone()],
        kubelet_ca: vec![authority],
        serving: certificates.serving,
        kubelet_client: certificates.kubelet_client,
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

/// Runs a component. One that fails or panics ends the cluster: half of one would look whole.
fn supervise<F, E>(failures: &Failures, name: &'static str, component: F) -> JoinHandle<()>
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<anyhow::Error> + Send + 'static,
{
    let failures = failures.clone();
    tokio::spawn(async move {
        let outcome = match tokio::spawn(component).await {
            Ok(outcome) => outcome.map_err(Into::into),
            Err(panic) => Err(anyhow::Error::from(panic)),
        };
        if let Err(error) = outcome {
            // Nobody listens any more once the cluster stops.
            let _ = failures.send(error.context(format!("the {name} ended")));
        }
    })
}

/// Waits for the node, and for names to be answered.
async fn await_ready(options: &Up, running: &Running, progress: &Progress) -> Result<()> {
    let begun = Instant::now();
    let client = client_for(&running.api.server, "system:admin", &["system:masters"]);
    let name = node_name(options);
    let ready = await_condition(Api::<Node>::all(client.clone()), &name, |node: Option<&Node>| {
        let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    });
    tokio::time::timeout(READY_TIMEOUT, ready)
        .await
        .context("the node is not ready after a minute; `ferry up --v 4` tells why")??;
    progress.done("node", begun.elapsed(), &name);
    let begun = Instant::now();
    let answering = async {
        dns_ready(client).await?;
        dns_answers().await
    };
    let hint = "cluster DNS does not answer after a minute; see `kubectl -n kube-system describe pods`";
    tokio::time::timeout(READY_TIMEOUT, answering).await.context(hint)??;
    progress.done("cluster DNS", begun.elapsed(), &DNS_IP.to_string());
    Ok(())
}

async fn dns_ready(client: kube::Client) -> Result<()> {
    use futures::TryStreamExt as _;
    use kube::runtime::{WatchStreamExt as _, watcher};
    let slices: Api<EndpointSlice> = Api::namespaced(client, "kube-system");
    let config = watcher::Config::default().labels("kubernetes.io/service-name=kube-dns");
    let mut changes = std::pin::pin!(watcher(slices, config).applied_objects());
    while let Some(slice) = changes.try_next().await? {
        let mut endpoints = slice.endpoints.iter().flatten();
        if endpoints.any(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.ready == Some(true))) {
            return Ok(());
        }
    }
    anyhow::bail!("the watch for cluster DNS ended")
}

/// Asks for a name every cluster has, through the service's address, until there is an answer. The endpoint alone may be
/// what a former start left behind.
async fn dns_answers() -> Result<()> {
    const PATIENCE: Duration = Duration::from_millis(20);
    let mut query = vec![0x0f, 0xe0, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["kubernetes", "default", "svc"].into_iter().chain(DOMAIN.split('.')) {
        query.push(u8::try_from(label.len())?);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    loop {
        // A socket per try: a refused one keeps its error.
        let socket = tokio::net::UdpSocket::bind(("0.0.0.0", 0)).await?;
        let mut answer = [0_u8; 512];
        let asked = async {
            socket.send_to(&query, (DNS_IP, 53)).await?;
            socket.recv(&mut answer).await
        };
        if let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, asked).await {
            return Ok(());
        }
        tokio::time::sleep(PATIENCE / 4).await;
    }
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

/// Pods first, then the node, then controllers and scheduler, then the API they all need, then the store.
async fn stop(running: Running, options: &Up, progress: &Progress) {
    let begun = Instant::now();
    progress.line("\nStopping …");
    running.node_drain.cancel();
    for task in running.node {
        let _ = tokio::time::timeout(STOP_GRACE, task).await;
    }
    if !options.keep_pods {
        if let Err(error) = kubelet::stop_all_pods(&*running.runtime, STOP_GRACE).await {
            tracing::warn!(%error, "not every pod could be stopped");
        }
        if let Err(error) = kubelet::release(&options.data_dir.join("kubelet"), CGROUP_ROOT) {
            tracing::warn!(%error, "not every volume and cgroup could be removed");
        }
        if let Err(error) = proxy::cleanup() {
            tracing::warn!(%error, "the proxy's rules could not be removed");
        }
        if let Err(error) = running.network.remove().await {
            tracing::warn!(%error, "the pod network could not be removed");
        }
    }
    running.control_drain.cancel();
    for task in running.control {
        let _ = tokio::time::timeout(STOP_GRACE, task).await;
    }
    running.api_drain.cancel();
    let _ = tokio::time::timeout(STOP_GRACE, running.api.serving).await;
    running.store.close().await;
    progress.done("stopped", begun.elapsed(), if options.keep_pods { "pods left running" } else { "" });
}
