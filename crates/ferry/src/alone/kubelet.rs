//! `ferry kubelet`: how it comes by its certificates, and what it is started with.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use kubelet::certificate::{CertificateStore, Leaf, Rotation, Template};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{authorities, until_signalled};
use crate::cluster::{host_address, host_name};
use crate::control_plane::kubelet_tls;
use crate::pki::{self, Identity, Pki};
use crate::remote::{Kubeconfig, Renewable};
use crate::renewal::{self, Shown};
use crate::{certs, cli, join, reload, remote};

/// A node whose kubelet is about to start, and what is renewed while it runs.
struct Node {
    options: cli::Kubelet,
    name: String,
    address: IpAddr,
    drain: CancellationToken,
    renewals: JoinSet<Result<()>>,
}

pub(crate) async fn kubelet(options: cli::Kubelet) -> Result<()> {
    let cri = Arc::new(cri::Remote::connect(&options.container_runtime_endpoint).await?);
    let name = options.hostname_override.clone().unwrap_or_else(host_name);
    let address = options.node_ip.unwrap_or_else(host_address);
    let drain = until_signalled()?;
    if let Some(with) = &options.bootstrap_kubeconfig {
        let store = CertificateStore::client(&options.cert_dir());
        let joined = join::join(&options.kubeconfig, with, &name, &store);
        let Some(joined) = drain.run_until_cancelled(joined).await else { return Ok(()) };
        joined?;
    }
    let mut node = Node { options, name, address, drain, renewals: JoinSet::new() };
    let client = node.client()?;
    let shown = node.serving(&client)?;
    let tls = node.tls(shown)?;
    let Node { options, name, address, drain, mut renewals } = node;
    let config = kubelet::Config {
        root_dir: options.root_dir,
        pod_logs_dir: options.pod_logs_dir,
        cluster_dns: options.cluster_dns,
        cluster_domain: options.cluster_domain,
        port: options.port,
        pod_cidr: options.pod_cidr,
        cgroup_root: options.cgroup_root,
        static_pod_path: options.pod_manifest_path,
        ..kubelet::Config::new(name, address, cri, client, tls)
    };
    let kubelet = kubelet::Kubelet::build(options.limits.apply(config)?).await?;
    tokio::select! {
        ended = kubelet.run(|| (), drain) => Ok(ended?),
        // Without a certificate nothing works any more; who starts it again lets it join again. Its pods do not notice.
        failed = failure(&mut renewals) => Err(failed),
    }
}

async fn failure(renewals: &mut JoinSet<Result<()>>) -> anyhow::Error {
    while let Some(ended) = renewals.join_next().await {
        if let Err(error) = ended.map_err(anyhow::Error::from).flatten() {
            return error;
        }
    }
    std::future::pending().await
}

/// Chain and key of a file that has both.
fn identity(pem: &str) -> Identity {
    Identity { certificate: pem.to_owned(), key: pem.to_owned() }
}

/// What is in a store and has not ended.
fn current(store: &CertificateStore) -> Result<Option<(Identity, Leaf)>> {
    let pem = store.current()?;
    let known = pem.and_then(|pem| Some((identity(&pem), Leaf::read(pem.as_bytes())?)));
    Ok(known.filter(|(_, leaf)| !leaf.is_over(Timestamp::now())))
}

impl Node {
    /// Speaks to the API as this node, with a certificate that is renewed if that is wanted.
    fn client(&mut self) -> Result<kube::Client> {
        if !self.options.rotates_client() {
            return remote::from_kubeconfig(&self.options.kubeconfig);
        }
        let renewable = Renewable::from_kubeconfig(&self.options.kubeconfig)?;
        let store = CertificateStore::client(&self.options.cert_dir());
        // One that was made by hand is in the kubeconfig for ever, and is replaced by one that was asked for.
        let known = current(&store)?;
        if let Some((identity, _)) = &known {
            renewable.show(identity)?;
        }
        let client = renewable.client.clone();
        let rotation = Rotation {
            client: client.clone(),
            template: Template::client(&self.name),
            store,
            current: known.map(|(_, leaf)| leaf),
            show: Box::new(move |pem| Ok(renewable.show(&identity(pem))?)),
            is_own: true,
        };
        self.keep(rotation);
        Ok(client)
    }

    /// What it shows to those who call it: as files say, as the API gives it, or of its own making.
    fn serving(&mut self, client: &kube::Client) -> Result<Arc<Shown>> {
        let folder = self.options.cert_dir();
        if self.options.rotate_server_certificates {
            anyhow::ensure!(
                self.options.serving().is_none(),
                "--rotate-server-certificates asks for what --tls-cert-file names: give only one of them"
            );
            let (shown, store) = (Arc::new(Shown::default()), CertificateStore::server(&folder));
            let known = current(&store)?;
            if let Some((identity, _)) = &known {
                shown.show(identity)?;
            }
            let to = shown.clone();
            self.keep(Rotation {
                client: client.clone(),
                template: Template::serving(&self.name, self.address),
                store,
                current: known.map(|(_, leaf)| leaf),
                show: Box::new(move |pem| Ok(to.show(&identity(pem))?)),
                is_own: false,
            });
            return Ok(shown);
        }
        if let Some((certificate, key)) = self.options.serving() {
            return reload::shown(certificate, key, &self.drain);
        }
        let own = Pki::open(&folder)?;
        let shown = Shown::new(&certs::kubelet(&own, &self.name, self.address)?)?;
        let (name, address, to) = (self.name.clone(), self.address, shown.clone());
        let renew = move || {
            let made = certs::kubelet(&own, &name, address)?;
            to.show(&made)?;
            pki::good_for(&[&made])
        };
        self.renewals.spawn(renewal::keep(self.drain.clone(), Box::new(renew)));
        Ok(shown)
    }

    /// Whom it lets in.
    fn tls(&self, shown: Arc<Shown>) -> Result<watch::Receiver<Arc<ServerConfig>>> {
        let Some(path) = self.options.client_ca_file.clone() else {
            let pem = Kubeconfig::read(&self.options.kubeconfig)?.authorities()?;
            let read = CertificateDer::pem_slice_iter(&pem).map(|der| Ok(der?.as_ref().to_vec()));
            let known = read.collect::<Result<Vec<_>>>().context("the authority in the kubeconfig is not PEM")?;
            anyhow::ensure!(!known.is_empty(), "the kubeconfig names no authority; give --client-ca-file");
            return Ok(watch::channel(kubelet_tls(&known, shown)?).1);
        };
        let paths = vec![path.clone()];
        let tls = move || {
            let known = authorities(&path)?;
            anyhow::ensure!(!known.is_empty(), "{} holds no certificate", path.display());
            kubelet_tls(&known, shown.clone())
        };
        let (sender, now) = watch::channel(tls()?);
        let take = Box::new(move || {
            sender.send_replace(tls()?);
            Ok(())
        });
        reload::follow(paths, take, self.drain.clone());
        Ok(now)
    }

    fn keep(&mut self, rotation: Rotation) {
        let drain = self.drain.clone();
        self.renewals.spawn(async move { Ok(rotation.run(drain).await?) });
    }
}
