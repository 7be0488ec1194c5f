//! A `kube::Client` for an API server elsewhere: as a kubeconfig says, or as a pod is told.

mod kubeconfig;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use arc_swap::ArcSwap;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client as HttpClient, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::sync::Mutex;

pub(crate) use self::kubeconfig::Kubeconfig;
use self::kubeconfig::{Access, Target};
use crate::pki::Identity;

/// Where a pod finds the token and the authority of its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Tokens in files are renewed long before they end; they are read again this often.
const TOKEN_AGE: Duration = Duration::from_secs(60);
/// A server that is gone without a word is noticed in this time.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Tokens of accounts are asked for anew when half of their life is over.
const ACCOUNT_TOKEN_SECONDS: u64 = 3600;
const ACCOUNT_TOKEN_AGE: Duration = Duration::from_secs(ACCOUNT_TOKEN_SECONDS / 2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

enum Token {
    None,
    Fixed(String),
    File(PathBuf),
    /// Of a service account, asked for by one who may.
    Account(Account),
}

struct Account {
    name: String,
    manager: kube::Client,
}

/// Clients for the service accounts of `kube-system`, with tokens that the kubeconfig's user asks for as needed.
pub(crate) fn accounts(path: &Path) -> Result<controllers::Accounts> {
    let manager = from_kubeconfig(path)?;
    let target = Kubeconfig::read(path)?.access()?.target;
    let make = move |name: &str| {
        let token = Token::Account(Account { name: name.to_owned(), manager: manager.clone() });
        client(Access { target: target.clone(), identity: None, token })
    };
    // What could fail is the same for all.
    make("default")?;
    let manager = from_kubeconfig(path)?;
    Ok(Arc::new(move |name| make(name).unwrap_or_else(|_| manager.clone())))
}

/// As the current context of a kubeconfig says.
pub(crate) fn from_kubeconfig(path: &Path) -> Result<kube::Client> {
    Ok(Renewable::from_kubeconfig(path)?.client)
}

/// A client that can show another certificate later.
pub(crate) struct Renewable {
    pub(crate) client: kube::Client,
    remote: Arc<Remote>,
}

impl Renewable {
    pub(crate) fn from_kubeconfig(path: &Path) -> Result<Self> {
        let said = || format!("cannot use the kubeconfig {}", path.display());
        let remote = Remote::new(Kubeconfig::read(path)?.access().with_context(said)?).with_context(said)?;
        Ok(Self { client: remote.clone().client(), remote })
    }

    /// From the next request on. It goes over a new connection, since a server sees only what a connection began with; what is under
    /// way over the old ones ends there.
    pub(crate) fn show(&self, identity: &Identity) -> Result<()> {
        self.remote.http.store(Arc::new(http_client(&self.remote.target, Some(identity))?));
        Ok(())
    }
}

/// As the service account of the pod this runs in.
pub(crate) fn from_pod() -> Result<kube::Client> {
    let variable =
        |name| std::env::var(name).with_context(|| format!("{name} is not set: this is no pod; use --kubeconfig"));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let dir = Path::new(SERVICE_ACCOUNT);
    let target = Target {
        server: format!("https://{host}:{port}").parse()?,
        authorities: read(&dir.join("ca.crt"))?,
        server_name: None,
    };
    client(Access { target, identity: None, token: Token::File(dir.join("token")) })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn client(access: Access) -> Result<kube::Client> {
    Ok(Remote::new(access)?.client())
}

type Http = HttpClient<HttpsConnector<HttpConnector>, kube::client::Body>;

fn http_client(target: &Target, identity: Option<&Identity>) -> Result<Http> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let mut connector = HttpsConnectorBuilder::new().with_tls_config(tls(target, identity)?).https_or_http();
    if let Some(name) = &target.server_name {
        let name = ServerName::try_from(name.clone()).context("tls-server-name")?;
        connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = connector.enable_all_versions().wrap_connector(http);
    let http = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEPALIVE)
        .http2_keep_alive_timeout(KEEPALIVE)
        .build(connector);
    Ok(http)
}

fn tls(target: &Target, identity: Option<&Identity>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&target.authorities) {
        roots.add(authority.context("the certificate authority is not PEM")?)?;
    }
    if roots.is_empty() && target.server.scheme_str() == Some("https") {
        bail!("no certificate-authority to know the server by");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots);
    Ok(match identity {
        Some(identity) => config.with_client_auth_cert(identity.chain()?, identity.private_key()?)?,
        None => config.with_no_client_auth(),
    })
}

struct Remote {
    http: ArcSwap<Http>,
    target: Target,
    token: Token,
    /// The header of a token from a file, and when it was read.
    read: Mutex<Option<(Instant, HeaderValue)>>,
}

impl Remote {
    fn new(Access { target, identity, token }: Access) -> Result<Arc<Self>> {
        let http = ArcSwap::from_pointee(http_client(&target, identity.as_ref())?);
        Ok(Arc::new(Self { http, target, token, read: Mutex::default() }))
    }

    fn client(self: Arc<Self>) -> kube::Client {
        kube::Client::new(tower::service_fn(move |request| self.clone().ask(request)), "default")
    }

    async fn ask(
        self: Arc<Self>,
        mut request: http::Request<kube::client::Body>,
    ) -> Result<http::Response<hyper::body::Incoming>, tower::BoxError> {
        *request.uri_mut() = absolute(&self.target.server, request.uri())?;
        if let Some(token) = self.authorization().await? {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let http = self.http.load_full();
        Ok(http.request(request).await?)
    }

    async fn authorization(&self) -> Result<Option<HeaderValue>> {
        match &self.token {
            Token::None => Ok(None),
            Token::Fixed(token) => bearer(token).map(Some),
            Token::File(path) => {
                let mut read = self.read.lock().await;
                if let Some((at, header)) = &*read
                    && at.elapsed() < TOKEN_AGE
                {
                    return Ok(Some(header.clone()));
                }
                let token = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                let header = bearer(token.trim())?;
                *read = Some((Instant::now(), header.clone()));
                Ok(Some(header))
            }
            Token::Account(account) => {
                let mut read = self.read.lock().await;
                if let Some((at, header)) = &*read
                    && at.elapsed() < ACCOUNT_TOKEN_AGE
                {
                    return Ok(Some(header.clone()));
                }
                let header = bearer(&account.token().await?)?;
                *read = Some((Instant::now(), header.clone()));
                Ok(Some(header))
            }
        }
    }
}

impl Account {
    /// A fresh token; the account is made if it is not there yet.
    async fn token(&self) -> Result<String> {
        let accounts: kube::Api<ServiceAccount> = kube::Api::namespaced(self.manager.clone(), "kube-system");
        let asked = json!({"spec": {"expirationSeconds": ACCOUNT_TOKEN_SECONDS, "audiences": []}});
        let ask = || async {
            let params = kube::api::PostParams::default();
            let request: Value = accounts.create_subresource("token", &self.name, &params, &asked).await?;
            Ok::<_, kube::Error>(request)
        };
        let answer = match ask().await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let account = ServiceAccount { metadata, ..ServiceAccount::default() };
                match accounts.create(&kube::api::PostParams::default(), &account).await {
                    Err(kube::Error::Api(status)) if status.is_already_exists() => (),
                    made => drop(made?),
                }
                ask().await
            }
            answer => answer,
        };
        let answer = answer.with_context(|| format!("no token for the account {}", self.name))?;
        let token = answer.pointer("/status/token").and_then(Value::as_str);
        Ok(token.context("an answer without a token")?.to_owned())
    }
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).context("the token is no header value")?;
    value.set_sensitive(true);
    Ok(value)
}

/// The server's address with the request's path behind its own.
fn absolute(server: &Uri, asked: &Uri) -> Result<Uri> {
    let mut parts = server.clone().into_parts();
    let path = asked.path_and_query().map_or("/", |path| path.as_str());
    parts.path_and_query = Some(format!("{}{path}", server.path().trim_end_matches('/')).parse()?);
    Ok(Uri::from_parts(parts)?)
}
