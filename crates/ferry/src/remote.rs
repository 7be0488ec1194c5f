//! A `kube::Client` for an API server elsewhere: as a kubeconfig says, or as a pod is told.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client as HttpClient, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::sync::Mutex;

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

/// How to reach a server, and as whom.
struct Access {
    server: Uri,
    authorities: Vec<u8>,
    server_name: Option<String>,
    /// Certificate and key, both PEM.
    identity: Option<(Vec<u8>, Vec<u8>)>,
    token: Token,
}

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
    let known = kubeconfig_access(path)?;
    let template = (known.server, known.authorities, known.server_name);
    let make = move |name: &str| {
        let (server, authorities, server_name) = template.clone();
        let token = Token::Account(Account { name: name.to_owned(), manager: manager.clone() });
        client(Access { server, authorities, server_name, identity: None, token })
    };
    // What could fail is the same for all.
    make("default")?;
    let manager = from_kubeconfig(path)?;
    Ok(Arc::new(move |name| make(name).unwrap_or_else(|_| manager.clone())))
}

/// As the current context of a kubeconfig says.
pub(crate) fn from_kubeconfig(path: &Path) -> Result<kube::Client> {
    client(kubeconfig_access(path)?).with_context(|| format!("cannot use the kubeconfig {}", path.display()))
}

fn kubeconfig_access(path: &Path) -> Result<Access> {
    let said = || format!("cannot use the kubeconfig {}", path.display());
    let text = std::fs::read_to_string(path).with_context(said)?;
    let config: Value = serde_saphyr::from_str(&text).with_context(said)?;
    access(&config, path.parent().unwrap_or(Path::new("."))).with_context(said)
}

/// As the service account of the pod this runs in.
pub(crate) fn from_pod() -> Result<kube::Client> {
    let variable =
        |name| std::env::var(name).with_context(|| format!("{name} is not set: this is no pod; use --kubeconfig"));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let dir = Path::new(SERVICE_ACCOUNT);
    client(Access {
        server: format!("https://{host}:{port}").parse()?,
        authorities: read(&dir.join("ca.crt"))?,
        server_name: None,
        identity: None,
        token: Token::File(dir.join("token")),
    })
}

fn access(config: &Value, dir: &Path) -> Result<Access> {
    let context = text(config, "current-context").context("no current-context")?;
    let context = named(config, "contexts", "context", context)?;
    let cluster =
        named(config, "clusters", "cluster", text(context, "cluster").context("the context has no cluster")?)?;
    let nobody = Value::Null;
    let user = match text(context, "user") {
        Some(name) => named(config, "users", "user", name)?,
        None => &nobody,
    };
    for unknown in ["exec", "auth-provider", "username"] {
        if user.get(unknown).is_some() {
            bail!("a user with {unknown:?} cannot be used here; give a token or a client certificate");
        }
    }
    if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
        bail!("insecure-skip-tls-verify is not supported; give certificate-authority");
    }
    let certificate = content(user, "client-certificate", dir)?;
    let key = content(user, "client-key", dir)?;
    let token = match (text(user, "token"), text(user, "tokenFile")) {
        (_, Some(file)) => Token::File(dir.join(file)),
        (Some(token), None) => Token::Fixed(token.to_owned()),
        (None, None) => Token::None,
    };
    Ok(Access {
        server: text(cluster, "server").context("the cluster has no server")?.parse().context("server")?,
        authorities: content(cluster, "certificate-authority", dir)?.unwrap_or_default(),
        server_name: text(cluster, "tls-server-name").map(str::to_owned),
        identity: certificate.zip(key),
        token,
    })
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !text.is_empty())
}

fn named<'a>(config: &'a Value, list: &str, what: &str, name: &str) -> Result<&'a Value> {
    let mut entries = config.get(list).and_then(Value::as_array).into_iter().flatten();
    let entry = entries.find(|entry| text(entry, "name") == Some(name)).and_then(|entry| entry.get(what));
    entry.with_context(|| format!("no {what} is named {name:?}"))
}

/// What `key` names as a file, beside the kubeconfig if not a whole path, or holds itself as `key-data`.
fn content(value: &Value, key: &str, dir: &Path) -> Result<Option<Vec<u8>>> {
    if let Some(data) = text(value, &format!("{key}-data")) {
        return Ok(Some(STANDARD.decode(data).with_context(|| format!("{key}-data is not base64"))?));
    }
    text(value, key).map(|file| read(&dir.join(file))).transpose()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn client(access: Access) -> Result<kube::Client> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let mut connector = HttpsConnectorBuilder::new().with_tls_config(tls(&access)?).https_or_http();
    if let Some(name) = &access.server_name {
        let name = ServerName::try_from(name.clone()).context("tls-server-name")?;
        connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = connector.enable_all_versions().wrap_connector(http);
    let http = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEPALIVE)
        .http2_keep_alive_timeout(KEEPALIVE)
        .build(connector);
    let remote = Arc::new(Remote { http, server: access.server, token: access.token, read: Mutex::default() });
    let service = tower::service_fn(move |request| remote.clone().ask(request));
    Ok(kube::Client::new(service, "default"))
}

fn tls(access: &Access) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&access.authorities) {
        roots.add(authority.context("the certificate authority is not PEM")?)?;
    }
    if roots.is_empty() && access.server.scheme_str() == Some("https") {
        bail!("no certificate-authority to know the server by");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots);
    Ok(match &access.identity {
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>();
            let key = PrivateKeyDer::from_pem_slice(key).context("the client key is not PEM")?;
            config.with_client_auth_cert(chain.context("the client certificate is not PEM")?, key)?
        }
        None => config.with_no_client_auth(),
    })
}

struct Remote {
    http: HttpClient<HttpsConnector<HttpConnector>, kube::client::Body>,
    server: Uri,
    token: Token,
    /// The header of a token from a file, and when it was read.
    read: Mutex<Option<(Instant, HeaderValue)>>,
}

impl Remote {
    async fn ask(
        self: Arc<Self>,
        mut request: http::Request<kube::client::Body>,
    ) -> Result<http::Response<hyper::body::Incoming>, tower::BoxError> {
        *request.uri_mut() = absolute(&self.server, request.uri())?;
        if let Some(token) = self.authorization().await? {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        Ok(self.http.request(request).await?)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(cluster: Value, user: Value) -> Value {
        json!({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}], "users": [{"name": "u", "user": user}],
        })
    }

    #[test]
    fn a_kubeconfig_says_where_and_as_whom() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), "authority").unwrap();
        let cluster = json!({"server": "https://x:1/base", "certificate-authority": "ca.crt", "tls-server-name": "y"});
        let user = json!({"client-certificate-data": STANDARD.encode("c"), "client-key-data": STANDARD.encode("k"), "token": "t"});
        let access = access(&config(cluster, user), dir.path()).unwrap();
        assert_eq!(access.authorities, b"authority");
        assert_eq!(access.server_name.as_deref(), Some("y"));
        assert_eq!(access.identity, Some((b"c".to_vec(), b"k".to_vec())));
        assert!(matches!(access.token, Token::Fixed(token) if token == "t"));
        let asked = "/api/v1/pods?watch=1".parse().unwrap();
        assert_eq!(absolute(&access.server, &asked).unwrap(), "https://x:1/base/api/v1/pods?watch=1");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        check(json!({"server": "https://x"}), json!({"exec": {}}), "a user with \"exec\" cannot be used here");
        check(json!({"server": "https://x", "insecure-skip-tls-verify": true}), json!({}), "is not supported");
        check(json!({}), json!({}), "the cluster has no server");
        check(json!({"server": "https://x"}), json!({"client-key-data": "%"}), "client-key-data is not base64");
        check(json!({"server": "https://x"}), json!({}), "no certificate-authority");
        check(json!({"server": "https://x", "certificate-authority": "gone"}), json!({}), "cannot read");
    }

    #[track_caller]
    fn check(cluster: Value, user: Value, want: &str) {
        let refused =
            access(&config(cluster, user), Path::new("/nowhere")).and_then(client).err().map(|e| format!("{e:#}"));
        assert!(refused.as_ref().is_some_and(|said| said.contains(want)), "{want}: {refused:?}");
    }
}
