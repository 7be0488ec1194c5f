//! `ferry server`: a control plane without a node. Several of them on one etcd are one cluster: every API server serves,
//! one scheduler and one set of controllers lead, the others stand by.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use apiserver::ServiceRanges;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::alone::until_signalled;
use crate::cli::Server;
use crate::cluster::{ISSUER, host_name, public_address};
use crate::control_plane::{self, FrontProxy, Settings, accounts_of, client_for};
use crate::pki::{self, Pki};
use crate::{certs, etcd, kubeconfig, renewal, shared_pki};

/// Giving leases back and finishing what is under way.
const STOP_GRACE: Duration = Duration::from_secs(10);

pub(crate) async fn run(options: Server) -> Result<()> {
    let listener = control_plane::bind((options.bind_address, options.secure_port), "--secure-port").await?;
    pki::make_private(&options.data_dir)?;
    let (stop, api_drain) = (until_signalled()?, CancellationToken::new());
    let embedded = match options.etcd.etcd_servers.is_empty() {
        true => Some(control_plane::open_store(&options.data_dir.join("store"))?),
        false => None,
    };
    let store: Arc<dyn store::Store> = match &embedded {
        Some(store) => store.clone(),
        None => etcd::connect(&options.etcd, api_drain.clone()).await?,
    };
    let Some(embedded) = embedded else { return serve(&options, store, listener, stop, api_drain).await };
    // For `ferry snapshot` and `etcdctl`, as `ferry up` has it.
    let socket = etcd::unix(&options.data_dir.join("run/etcd.sock"))?;
    let etcd_api = tokio::spawn(store::etcd::serve(store.clone(), vec![socket], api_drain.clone()));
    let served = serve(&options, store, listener, stop, api_drain.clone()).await;
    api_drain.cancel();
    let ended = etcd_api.await?;
    embedded.close().await;
    served?;
    Ok(ended?)
}

async fn serve(
    options: &Server,
    store: Arc<dyn store::Store>,
    listener: TcpListener,
    stop: CancellationToken,
    api_drain: CancellationToken,
) -> Result<()> {
    let pki = shared_pki::open(store.as_ref(), options, &options.data_dir.join("pki")).await?;
    let certificates = certificates(options, &pki)?.shown()?;
    let front_proxy = certs::front_proxy(&options.data_dir.join("pki"))?;
    let proxy_client = front_proxy.client.clone();
    let settings = settings(options, &pki, &certificates, front_proxy)?;
    let api = control_plane::start(settings, store, listener, api_drain.clone()).await?;
    let server = write_kubeconfig(options, &pki)?;
    let _ = writeln!(std::io::stderr(), "The API server is ready: {server}");

    let identity = format!("{}_{}", host_name(), uuid::Uuid::new_v4());
    let drain = stop.child_token();
    let mut components = JoinSet::new();
    let manager = client_for(&api.server, "system:kube-controller-manager", &[]);
    let (accounts, signing) = (accounts_of(&api.server), certs::signing(&pki)?);
    let (own, authority, id, until) = (options.clone(), pki.ca.certificate.clone(), identity.clone(), drain.clone());
    components.spawn(async move {
        let config = || controllers::Config {
            root_ca: authority.clone(),
            cluster_cidr: own.cluster_cidr.clone(),
            node_cidr_mask_size: own.node_cidr_mask_size,
            identity: id.clone(),
            accounts: accounts.clone(),
            signing: signing.clone(),
        };
        // Whoever loses the lead stands by again.
        while let Err(error) = controllers::run(manager.clone(), config(), || (), until.clone()).await {
            match error {
                controllers::RunError::LeadershipLost => tracing::warn!("the controllers lost the lead; standing by"),
                error => return Err(anyhow::Error::from(error).context("the controllers ended")),
            }
        }
        Ok(())
    });
    let scheduler = client_for(&api.server, "system:kube-scheduler", &[]);
    let until = drain.clone();
    components.spawn(async move {
        let config = scheduler::Config { identity, ..scheduler::Config::default() };
        while let Err(error) = scheduler::run(scheduler.clone(), config.clone(), || (), until.clone()).await {
            match error {
                scheduler::RunError::LeadershipLost => tracing::warn!("the scheduler lost the lead; standing by"),
            }
        }
        Ok(())
    });
    let own = options.clone();
    components.spawn(renewal::keep(
        drain.clone(),
        Box::new(move || {
            let made = self::certificates(&own, &pki)?;
            made.show(&certificates)?;
            let (_, of_proxy) = certs::front_proxy_client(&own.data_dir.join("pki"))?;
            proxy_client.show(&of_proxy)?;
            write_kubeconfig(&own, &pki)?;
            let admin = pki.client("admin", "kubernetes-admin", &["system:masters"])?;
            pki::good_for(&[&made.serving, &made.kubelet_client, &of_proxy, &admin])
        }),
    ));
    // One that fails or panics ends the server: half of one would look whole.
    let ended = tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(ended) = components.join_next() => ended.map_err(anyhow::Error::from).flatten(),
    };
    drain.cancel();
    let _ = tokio::time::timeout(STOP_GRACE, async { while components.join_next().await.is_some() {} }).await;
    api_drain.cancel();
    let _ = tokio::time::timeout(STOP_GRACE, api.serving).await;
    ended
}

fn services(options: &Server) -> Result<ServiceRanges> {
    let public = public_address(options.advertise_address, options.bind_address);
    Ok(ServiceRanges::parse(&options.service_cluster_ip_range, Some(public))?)
}

fn certificates(options: &Server, pki: &Pki) -> Result<certs::ApiServerCertificates> {
    let address = public_address(options.advertise_address, options.bind_address);
    let mut addresses = vec![address];
    addresses.extend(Some(options.bind_address).filter(|address| !address.is_unspecified()));
    addresses.extend(&options.tls_san);
    certs::apiserver_at(pki, &host_name(), &addresses, &services(options)?)
}

fn settings(
    options: &Server,
    pki: &Pki,
    certificates: &certs::ApiServerShown,
    front_proxy: FrontProxy,
) -> Result<Settings> {
    let authorities = pki.authorities()?;
    Ok(Settings {
        listen: (options.bind_address, options.secure_port),
        advertise_address: public_address(options.advertise_address, options.bind_address),
        service_cluster_ip_range: services(options)?,
        service_node_port_range: options.service_node_port_range.clone(),
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

/// `admin.conf` beside the data, for whoever administers this server; answers the URL in it.
fn write_kubeconfig(options: &Server, pki: &Pki) -> Result<String> {
    let admin = pki.client("admin", "kubernetes-admin", &["system:masters"])?;
    let address =
        if options.bind_address.is_unspecified() { "127.0.0.1".into() } else { options.bind_address.to_string() };
    let server = format!("https://{address}:{}", options.secure_port);
    let document = kubeconfig::document("ferry", &server, &pki.ca.certificate, &admin);
    kubeconfig::write(&options.data_dir.join("admin.conf"), &document)?;
    Ok(server)
}
