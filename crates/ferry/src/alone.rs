//! Each component as a process of its own, with upstream's flags.

mod kubelet;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use apiserver::ServiceRanges;
use client::Informers;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio_util::sync::CancellationToken;

use crate::cluster::{host_name, public_address};
use crate::control_plane::{self, Settings};
use crate::node;
use crate::pki::{Identity, make_private};
use crate::{cli, etcd, reload, remote};

pub(crate) use self::kubelet::kubelet;

/// Fires on Ctrl-C or SIGTERM.
pub(crate) fn until_signalled() -> Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let drain = CancellationToken::new();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let trigger = drain.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
        trigger.cancel();
    });
    Ok(drain)
}

pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

pub(crate) fn authorities(path: &Path) -> Result<Vec<Vec<u8>>> {
    let text = read(path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .map(|certificate| Ok(certificate.with_context(|| format!("{} is not PEM", path.display()))?.as_ref().to_vec()))
        .collect::<Result<_>>()?;
    anyhow::ensure!(!found.is_empty(), "there is no certificate in {}", path.display());
    Ok(found)
}

pub(crate) fn identity(certificate: &Path, key: &Path) -> Result<Identity> {
    Ok(Identity { certificate: read(certificate)?, key: read(key)? })
}

pub(crate) async fn apiserver(options: cli::Apiserver) -> Result<()> {
    let listener = control_plane::bind((options.bind_address, options.secure_port), "--secure-port").await?;
    let drain = until_signalled()?;
    let embedded =
        options.etcd.etcd_servers.is_empty().then(|| control_plane::open_store(&options.store_dir)).transpose()?;
    let store: Arc<dyn store::Store> = match &embedded {
        Some(store) => store.clone(),
        None => etcd::connect(&options.etcd, drain.clone()).await?,
    };
    let advertise_address = public_address(options.advertise_address, options.bind_address);
    let proxy_ca = options.api.auth.requestheader_client_ca_file.clone();
    let settings = Settings {
        listen: (options.bind_address, options.secure_port),
        advertise_address,
        service_cluster_ip_range: ServiceRanges::parse(&options.service_cluster_ip_range, Some(advertise_address))?,
        service_node_port_range: options.service_node_port_range,
        flags: options.api,
        service_account_key: read(&options.service_account_signing_key_file)?.into_bytes(),
        service_account_key_files: options.service_account_key_file,
        service_account_issuer: options.service_account_issuer,
        client_ca: authorities(&options.client_ca_file)?,
        kubelet_ca: options.kubelet_certificate_authority.as_deref().map(authorities).transpose()?,
        serving: reload::shown(&options.tls_cert_file, &options.tls_private_key_file, &drain)?,
        kubelet_client: reload::shown(&options.kubelet_client_certificate, &options.kubelet_client_key, &drain)?,
        front_proxy: None,
    };
    apiserver::allow_privileged(options.allow_privileged);
    let control_plane::Handle { serving, trust, .. } =
        control_plane::start(settings, store, listener, drain.clone()).await?;
    let client_ca = options.client_ca_file;
    let files = std::iter::once(&client_ca).chain(&proxy_ca).cloned().collect();
    let take = move || {
        let proxies = proxy_ca.as_deref().map(authorities).transpose()?;
        trust.believe(&authorities(&client_ca)?, &proxies.unwrap_or_default())
    };
    reload::follow(files, Box::new(take), drain);
    tokio::spawn(runtime::forget_start());
    serving.await?;
    if let Some(store) = embedded {
        store.close().await;
    }
    Ok(())
}

pub(crate) async fn controller_manager(options: cli::ControllerManager) -> Result<()> {
    let config = controllers::Config {
        root_ca: read(&options.root_ca_file)?,
        cluster_cidr: options.cluster_cidr,
        node_cidr_mask_size: options.node_cidr_mask_size,
        identity: format!("{}_{}", host_name(), uuid::Uuid::new_v4()),
        accounts: remote::accounts(&options.kubeconfig)?,
        signing: match (&options.cluster_signing_cert_file, &options.cluster_signing_key_file) {
            (Some(certificate), Some(key)) => {
                let lifetime = apiserver::parse_duration(&options.cluster_signing_duration);
                let lifetime = lifetime.context("--cluster-signing-duration is no duration")?;
                Some(Arc::new(controllers::Signing::new(&read(certificate)?, &read(key)?, lifetime)?))
            }
            _ => None,
        },
    };
    let drain = until_signalled()?;
    Ok(controllers::run(remote::from_kubeconfig(&options.kubeconfig)?, config, || (), drain).await?)
}

pub(crate) async fn scheduler(options: cli::Scheduler) -> Result<()> {
    let identity = format!("{}_{}", host_name(), uuid::Uuid::new_v4());
    let config = scheduler::Config { identity, ..scheduler::Config::default() };
    let drain = until_signalled()?;
    Ok(scheduler::run(remote::from_kubeconfig(&options.kubeconfig)?, config, || (), drain).await?)
}

pub(crate) async fn proxy(options: cli::Proxy) -> Result<()> {
    if options.cleanup {
        return Ok(proxy::cleanup()?);
    }
    let drain = until_signalled()?;
    let informers = Informers::new(remote::from_kubeconfig(&options.kubeconfig)?, drain.clone());
    let name = options.hostname_override.unwrap_or_else(host_name);
    let pod_cidr = Some(options.cluster_cidr.parse().context("--cluster-cidr")?);
    let config = proxy::ProxyConfig::new(proxy::Node { name, pod_cidr });
    Ok(proxy::run(config, informers, || (), drain).await?)
}

pub(crate) async fn runtime(options: cli::Runtime) -> Result<()> {
    if options.cleanup {
        return Ok(network::remove(crate::cluster::BRIDGE).await?);
    }
    crate::preflight::check(&options.root)?;
    let state = options.root.join("network");
    let services = ServiceRanges::parse(&options.service_cluster_ip_range, None)?;
    let network = node::open_network(state, &options.pod_cidr, &options.cluster_cidr, &services).await?;
    let runtime = node::open_runtime(options.root, Some(network), options.images.parse()?).await?;
    node::add_builtin_images(&runtime).await?;
    let drain = until_signalled()?;
    serve_cri(&options.listen, runtime, drain).await
}

/// Answers CRI on a unix socket until drained.
pub(crate) async fn serve_cri(path: &Path, runtime: Arc<runtime::Runtime>, drain: CancellationToken) -> Result<()> {
    if let Some(parent) = path.parent() {
        make_private(parent)?;
    }
    // A socket left by a process that was killed; a live one would hold the store's lock.
    let _ = std::fs::remove_file(path);
    let listener =
        tokio::net::UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    cri::serve_unix(listener, runtime, drain.cancelled_owned()).await?;
    let _ = std::fs::remove_file(path);
    Ok(())
}

pub(crate) async fn dns(options: cli::Dns) -> Result<()> {
    let client = match &options.kubeconfig {
        Some(path) => remote::from_kubeconfig(path)?,
        None => remote::from_pod()?,
    };
    let drain = until_signalled()?;
    let informers = Informers::new(client, drain.clone());
    let config = dns::DnsConfig::new(options.listen, &options.cluster_domain);
    Ok(dns::run(config, informers, || (), drain).await?)
}
