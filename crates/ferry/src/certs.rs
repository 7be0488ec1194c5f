//! `ferry certs`: the authority, certificates and kubeconfigs that components need when each runs alone.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use apiserver::ServiceRanges;

use crate::cli::Certs;
use crate::cluster::{host_address, host_name};
use crate::control_plane::FrontProxy;
use crate::kubeconfig;
use crate::pki::{Identity, Pki};
use crate::renewal::Shown;

/// What each component is called, and the groups it is in.
const COMPONENTS: [(&str, &str, &[&str]); 4] = [
    ("admin", "kubernetes-admin", &["system:masters"]),
    ("controller-manager", "system:kube-controller-manager", &[]),
    ("scheduler", "system:kube-scheduler", &[]),
    ("proxy", "system:kube-proxy", &[]),
];

/// The API server's own certificates.
pub(crate) struct ApiServerCertificates {
    pub(crate) serving: Identity,
    pub(crate) kubelet_client: Identity,
}

/// The same as they are shown, until they are renewed.
pub(crate) struct ApiServerShown {
    pub(crate) serving: Arc<Shown>,
    pub(crate) kubelet_client: Arc<Shown>,
}

impl ApiServerCertificates {
    pub(crate) fn shown(&self) -> Result<ApiServerShown> {
        Ok(ApiServerShown { serving: Shown::new(&self.serving)?, kubelet_client: Shown::new(&self.kubelet_client)? })
    }

    pub(crate) fn show(&self, shown: &ApiServerShown) -> Result<()> {
        shown.serving.show(&self.serving)?;
        shown.kubelet_client.show(&self.kubelet_client)
    }
}

/// What approved requests for certificates are signed with.
pub(crate) fn signing(pki: &Pki) -> Result<Option<Arc<controllers::Signing>>> {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Ok(Some(Arc::new(controllers::Signing::new(&pki.ca.certificate, &pki.ca.key, YEAR)?)))
}

/// A serving certificate for every name the API server is called by, and the one it calls kubelets with.
pub(crate) fn apiserver(
    pki: &Pki,
    host: &str,
    address: IpAddr,
    services: &ServiceRanges,
) -> Result<ApiServerCertificates> {
    apiserver_at(pki, host, &[address], services)
}

/// The same for a server with several addresses.
pub(crate) fn apiserver_at(
    pki: &Pki,
    host: &str,
    addresses: &[IpAddr],
    services: &ServiceRanges,
) -> Result<ApiServerCertificates> {
    let names = [
        host,
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let always = [IpAddr::V4(Ipv4Addr::LOCALHOST), services.primary.nth(1)];
    let addresses = [addresses, &always].concat();
    Ok(ApiServerCertificates {
        serving: pki.server("apiserver", "kube-apiserver", &names, &addresses)?,
        kubelet_client: pki.client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", &["system:masters"])?,
    })
}

/// What the API server is called when it speaks for others.
pub(crate) const FRONT_PROXY: &str = "front-proxy-client";

/// An authority of its own, so that no other certificate is believed what this one is. Each server has one; all are published.
pub(crate) fn front_proxy(dir: &Path) -> Result<FrontProxy> {
    let (pki, client) = front_proxy_client(dir)?;
    Ok(FrontProxy { authorities: pki.authorities()?, client: Shown::new(&client)? })
}

/// What it shows, made anew if it ends soon.
pub(crate) fn front_proxy_client(dir: &Path) -> Result<(Pki, Identity)> {
    let pki = Pki::open(&dir.join("front-proxy"))?;
    let client = pki.client(FRONT_PROXY, FRONT_PROXY, &[])?;
    Ok((pki, client))
}

/// A serving certificate for a node's kubelet.
pub(crate) fn kubelet(pki: &Pki, node: &str, address: IpAddr) -> Result<Identity> {
    let addresses = [address, IpAddr::V4(Ipv4Addr::LOCALHOST)];
    pki.server("kubelet", &format!("system:node:{node}"), &[node, "localhost"], &addresses)
}

pub(crate) fn run(options: &Certs) -> Result<()> {
    let pki = Pki::open(&options.dir.join("pki"))?;
    if options.rotate_authority {
        // Servers that share a store have the authority from there.
        anyhow::ensure!(
            !options.dir.join("token").exists(),
            "the authority of `ferry server` cannot be changed this way"
        );
        writeln!(std::io::stdout(), "{}", pki.rotate()?)?;
        return Ok(());
    }
    let node = options.node_name.clone().unwrap_or_else(host_name);
    let address = options.advertise_address.unwrap_or_else(host_address);
    let services = ServiceRanges::parse(&options.service_cluster_ip_range, None)?;
    apiserver(&pki, &node, address, &services)?;
    kubelet(&pki, &node, address)?;
    front_proxy(&options.dir.join("pki"))?;
    pki.service_account_key()?;
    let user = format!("system:node:{node}");
    let node_component: (&str, &str, &[&str]) = ("kubelet", &user, &["system:nodes"]);
    for (file, user, groups) in COMPONENTS.into_iter().chain([node_component]) {
        // The kubelet's serving certificate already has its name.
        let identity = pki.client(&format!("{file}-client"), user, groups)?;
        let path = options.dir.join(format!("{file}.conf"));
        kubeconfig::write(&path, &kubeconfig::document("ferry", &options.server, &pki.ca.certificate, &identity))?;
        writeln!(std::io::stdout(), "{}", path.display())?;
    }
    Ok(())
}
