//! Joins store and API server, and gives components their in-process clients.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use api::UserInfo;
use apiserver::{
    ApiServer, Config, KubeletClient, RequestHeaderSettings, ServiceAccountKeys, ServiceRanges, TlsSettings,
};
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientCertVerifierBuilder, ResolvesServerCert};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use store::Embedded;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::reload;
use crate::renewal::Shown;

/// What the API server is started with, wherever it came from.
pub(crate) struct Settings {
    pub(crate) listen: (IpAddr, u16),
    pub(crate) advertise_address: IpAddr,
    pub(crate) service_cluster_ip_range: ServiceRanges,
    pub(crate) service_node_port_range: String,
    /// Signs service-account tokens, in PEM.
    pub(crate) service_account_key: Vec<u8>,
    /// Keys whose tokens are believed beside its own.
    pub(crate) service_account_key_files: Vec<PathBuf>,
    pub(crate) service_account_issuer: String,
    pub(crate) client_ca: Vec<Vec<u8>>,
    /// Nobody says who is a kubelet, if there is none.
    pub(crate) kubelet_ca: Option<Vec<Vec<u8>>>,
    pub(crate) serving: Arc<Shown>,
    pub(crate) kubelet_client: Arc<Shown>,
    /// Where no flags say otherwise.
    pub(crate) front_proxy: Option<FrontProxy>,
    pub(crate) flags: crate::cli::api::Api,
}

/// Whom API servers behind this one believe what it says of users.
pub(crate) struct FrontProxy {
    pub(crate) authorities: Vec<Vec<u8>>,
    pub(crate) client: Arc<Shown>,
}

impl FrontProxy {
    /// How others, and this server itself, are to read what it says.
    fn headers(&self) -> RequestHeaderSettings {
        let list = |text: &str| vec![text.to_owned()];
        RequestHeaderSettings {
            client_ca: self.authorities.clone(),
            allowed_names: list(crate::certs::FRONT_PROXY),
            username_headers: list("X-Remote-User"),
            uid_headers: list("X-Remote-Uid"),
            group_headers: list("X-Remote-Group"),
            extra_headers_prefix: list("X-Remote-Extra-"),
        }
    }
}

/// Opens the embedded store.
pub(crate) fn open_store(dir: &Path) -> Result<Arc<Embedded>> {
    Ok(Arc::new(Embedded::open(dir, store::Options::default())?))
}

/// Binds the port first: a busy one must stop everything before anything is written.
pub(crate) async fn bind(listen: (IpAddr, u16), flag: &str) -> Result<TcpListener> {
    TcpListener::bind(listen).await.with_context(|| {
        let (address, port) = listen;
        format!(
            "cannot listen on {address}:{port}. If another cluster runs here, stop it, or choose a port with {flag}"
        )
    })
}

/// A running API server; [`Handle::serving`] ends when it has drained.
pub(crate) struct Handle {
    pub(crate) server: Arc<ApiServer>,
    pub(crate) serving: tokio::task::JoinHandle<()>,
    pub(crate) trust: Trust,
}

/// Which clients an API server believes, so that others can be believed while it runs.
pub(crate) struct Trust {
    server: Arc<ApiServer>,
    shown: Arc<dyn ResolvesServerCert>,
    settings: TlsSettings,
    tls: watch::Sender<Arc<ServerConfig>>,
}

impl Trust {
    /// Clients and front proxies of these authorities, in DER, from the next handshake and the next request on.
    pub(crate) fn believe(&self, client_ca: &[Vec<u8>], proxy_ca: &[Vec<u8>]) -> Result<()> {
        self.tls.send_replace(apiserver::tls_config(
            &self.settings,
            self.shown.clone(),
            &[client_ca, proxy_ca].concat(),
        )?);
        self.server.believe(client_ca, proxy_ca);
        Ok(())
    }
}

pub(crate) async fn start(
    settings: Settings,
    store: Arc<dyn store::Store>,
    listener: TcpListener,
    drain: CancellationToken,
) -> Result<Handle> {
    let (first, last) =
        settings.service_node_port_range.split_once('-').context("--service-node-port-range is FIRST-LAST")?;
    let mut auth = settings.flags.auth.settings()?;
    let front_proxy = settings.front_proxy.as_ref();
    if let Some(own) = front_proxy.filter(|_| auth.request_header.client_ca.is_empty()) {
        auth.request_header = own.headers();
    }
    let proxy_client = match settings.flags.proxy_client() {
        None => front_proxy.map(|own| own.client.clone()),
        Some((certificate, key)) => Some(reload::shown(certificate, key, &drain)?),
    };
    let authorities = [settings.client_ca.as_slice(), &auth.request_header.client_ca].concat();
    let shown = settings.flags.serving.shown(settings.serving, &drain)?;
    let tls_settings = settings.flags.serving.tls()?;
    let (tls, tls_now) = watch::channel(apiserver::tls_config(&tls_settings, shown.clone(), &authorities)?);
    let others = settings.service_account_key_files.iter().map(|path| crate::alone::read(path).map(String::into_bytes));
    let others = others.collect::<Result<Vec<_>>>()?;
    let service_account_keys = ServiceAccountKeys::read(&settings.service_account_key, &others)
        .context("--service-account-signing-key-file or --service-account-key-file cannot be used")?;
    let authorities = settings.kubelet_ca.as_deref();
    let kubelet = KubeletClient::new(client_tls(authorities.unwrap_or_default(), settings.kubelet_client)?);
    let mut kubelet = if authorities.is_none() { kubelet.believing_anybody() } else { kubelet };
    if !settings.flags.kubelet_preferred_address_types.is_empty() {
        kubelet.preferred_address_types = settings.flags.kubelet_preferred_address_types.clone();
    }
    let config = Config {
        advertise_address: settings.advertise_address,
        secure_port: settings.listen.1,
        service_cluster_ip_range: settings.service_cluster_ip_range,
        service_node_port_range: first.parse()?..=last.parse()?,
        service_account_keys,
        service_account_issuer: settings.service_account_issuer,
        client_ca: settings.client_ca.clone(),
        kubelet,
        proxy_client: proxy_client.map(|client| client as Arc<dyn rustls::client::ResolvesClientCert>),
        cors: settings.flags.cors()?,
        runtime_config: apiserver::RuntimeConfig::new(&settings.flags.runtime_config)?,
        auth,
        admission: settings.flags.admission()?,
        audit: settings.flags.audit()?,
        set_verbosity: Some(crate::logging::set_verbosity),
        encryption: settings.flags.encryption()?,
        flow: settings.flags.flow(),
        request_timeout: settings.flags.serving.request_timeout,
        event_ttl: settings.flags.serving.event_ttl,
        toleration_seconds: settings.flags.serving.toleration_seconds(),
    };
    let server = ApiServer::start(config, store, drain).await?;
    let serving = tokio::spawn(server.clone().serve(listener, tls_now));
    let trust = Trust { server: server.clone(), shown, settings: tls_settings, tls };
    Ok(Handle { server, serving, trust })
}

/// A client that shows `identity` and believes `authorities`.
fn client_tls(authorities: &[Vec<u8>], identity: Arc<Shown>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(CertificateDer::from(authority.clone()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_cert_resolver(identity);
    Ok(Arc::new(config))
}

/// A kubelet's port: it asks for a client certificate, and takes connections without one, whose requests show a token.
pub(crate) fn kubelet_tls(clients: &[Vec<u8>], identity: Arc<Shown>) -> Result<Arc<ServerConfig>> {
    let verifier = client_verifier(clients)?.map(|verifier| verifier.allow_unauthenticated().build()).transpose()?;
    tls_with(verifier, identity, &[b"http/1.1"])
}

/// A server that insists on a client certificate of `clients`, if there are any.
pub(crate) fn serving_tls(clients: &[Vec<u8>], identity: Arc<Shown>, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>> {
    let verifier = client_verifier(clients)?.map(ClientCertVerifierBuilder::build).transpose()?;
    tls_with(verifier, identity, protocols)
}

fn client_verifier(clients: &[Vec<u8>]) -> Result<Option<ClientCertVerifierBuilder>> {
    let mut roots = RootCertStore::empty();
    for authority in clients {
        roots.add(CertificateDer::from(authority.clone()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = || rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    Ok((!clients.is_empty()).then(builder))
}

fn tls_with(
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    identity: Arc<Shown>,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(identity);
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

/// Clients for the controllers in this process, each under its service account.
pub(crate) fn accounts_of(server: &Arc<ApiServer>) -> controllers::Accounts {
    let server = server.clone();
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
    Arc::new(move |account| client_for(&server, &format!("system:serviceaccount:kube-system:{account}"), &groups))
}

/// A client for a component in this process, under its own name.
pub(crate) fn client_for(server: &Arc<ApiServer>, user: &str, groups: &[&str]) -> kube::Client {
    let server = server.clone();
    client::in_process(move |request| server.handle(request), UserInfo::authenticated(user, groups))
}
