//! A small client of the registry protocol: authenticated GETs with bounded redirects and sizes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cri::v1::AuthConfig;
use http::header::{ACCEPT, AUTHORIZATION, LOCATION, USER_AGENT, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;

use super::pull::PullError;
use super::reference::Reference;

/// For one resource: redirects, and the request that is repeated with a credential.
const MAX_REQUESTS: usize = 6;
const MAX_TOKEN_BYTES: usize = 1 << 20;
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How to prove who asks.
#[derive(Clone)]
pub enum Credentials {
    Basic {
        username: String,
        password: String,
    },
    /// Exchanged for an access token at the registry's token service.
    Identity(String),
    /// Sent as it is.
    Bearer(String),
}

impl From<AuthConfig> for Credentials {
    fn from(auth: AuthConfig) -> Self {
        if !auth.registry_token.is_empty() {
            return Self::Bearer(auth.registry_token);
        }
        if !auth.identity_token.is_empty() {
            return Self::Identity(auth.identity_token);
        }
        let decoded = STANDARD.decode(auth.auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match decoded.as_deref().and_then(|pair| pair.split_once(':')) {
            Some((username, password)) => {
                Self::Basic { username: username.to_owned(), password: password.trim_end_matches('\0').to_owned() }
            }
            None => Self::Basic { username: auth.username, password: auth.password },
        }
    }
}

impl Credentials {
    fn basic(&self) -> Option<String> {
        match self {
            Self::Basic { username, password } if !username.is_empty() => {
                Some(format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
            }
            _ => None,
        }
    }
}

/// Connections and certificates, shared by all pulls.
pub(crate) struct Client {
    http: HttpClient<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Client {
    pub(crate) fn new(extra_ca: Option<&Path>) -> Result<Self, rustls::Error> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(ANSWER_PATIENCE));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(extra_ca)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Ok(Self { http: HttpClient::builder(TokioExecutor::new()).build(connector) })
    }

    /// A conversation about one repository.
    pub(crate) fn session<'a>(&'a self, reference: &'a Reference, credentials: Option<&'a Credentials>) -> Session<'a> {
        let authorization = match credentials {
            Some(Credentials::Bearer(token)) => Some(format!("Bearer {token}")),
            _ => None,
        };
        Session { client: self, reference, credentials, authorization: Mutex::new(authorization) }
    }

    async fn get(
        &self,
        uri: &Uri,
        accept: &[&str],
        authorization: Option<&str>,
    ) -> Result<Response<Incoming>, PullError> {
        let mut request = Request::get(uri).header(USER_AGENT, concat!("ferry/", env!("CARGO_PKG_VERSION")));
        for kind in accept {
            request = request.header(ACCEPT, *kind);
        }
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let host = || uri.host().unwrap_or_default().to_owned();
        let request = request.body(Empty::new()).map_err(|e| PullError::unreachable(host(), io::Error::other(e)))?;
        match tokio::time::timeout(ANSWER_PATIENCE, self.http.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(PullError::unreachable(host(), error)),
            Err(_) => Err(PullError::unreachable(host(), io::Error::from(io::ErrorKind::TimedOut))),
        }
    }
}

/// Trusts what the system trusts, and the operator's own authorities.
fn tls(extra_ca: Option<&Path>) -> Result<rustls::ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let own = extra_ca
        .and_then(|directory| std::fs::read_dir(directory).ok())
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path());
    let system = SYSTEM_BUNDLES.iter().map(std::path::PathBuf::from).find(|path| path.exists());
    for file in system.into_iter().chain(own) {
        let certificates = CertificateDer::pem_file_iter(&file).into_iter().flatten().flatten();
        roots.add_parsable_certificates(certificates);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    Ok(builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth())
}

pub(crate) struct Session<'a> {
    client: &'a Client,
    reference: &'a Reference,
    credentials: Option<&'a Credentials>,
    /// What the registry accepted last; one token serves all requests of a pull.
    authorization: Mutex<Option<String>>,
}

impl Session<'_> {
    /// `GET /v2/<repository>/<path>`, authenticated if asked for, redirects followed.
    ///
    /// A credential is for the registry, and for the token service that the registry itself names. Once a redirect has led elsewhere
    /// nothing is sent that proves who asks, and no challenge is answered: neither there nor where that leads to.
    pub(crate) async fn get(&self, path: &str, accept: &[&str]) -> Result<Response<Incoming>, PullError> {
        let mut uri = self.uri(path)?;
        let (mut is_home, mut challenged) = (true, false);
        for _ in 0..MAX_REQUESTS {
            let authorization = if is_home { self.authorization.lock().clone() } else { None };
            let response = self.client.get(&uri, accept, authorization.as_deref()).await?;
            match response.status() {
                StatusCode::UNAUTHORIZED if is_home && !challenged => {
                    challenged = true;
                    let answer = self.answer_challenges(&uri, &response).await?;
                    *self.authorization.lock() = Some(answer);
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !is_home => {
                    let host = uri.authority().map_or("", |authority| authority.as_str());
                    return Err(self.denied(&format!("{host}, to which the registry redirects, refused")));
                }
                status if status.is_redirection() => {
                    let to = redirect(&uri, &response).ok_or_else(|| self.odd("a redirect to nowhere"))?;
                    is_home &= same_origin(&uri, &to);
                    uri = to;
                }
                StatusCode::OK => return Ok(response),
                StatusCode::NOT_FOUND => return Err(PullError::NotFound(self.reference.to_string())),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(self.denied("the registry refused")),
                status => return Err(self.odd(&format!("status {status}"))),
            }
        }
        Err(self.odd("too many redirects"))
    }

    fn uri(&self, path: &str) -> Result<Uri, PullError> {
        let registry = match self.reference.registry.as_str() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let scheme = if is_loopback(registry) { "http" } else { "https" };
        format!("{scheme}://{registry}/v2/{}/{path}", self.reference.repository)
            .parse()
            .map_err(|_| self.odd("a malformed name"))
    }

    /// The value of `Authorization` that a challenge by the registry at `asked` calls for.
    async fn answer_challenges(&self, asked: &Uri, response: &Response<Incoming>) -> Result<String, PullError> {
        for challenge in response.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()) {
            match challenge.split_once(' ') {
                Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => {
                    return self.token(asked, &parameters(rest)).await;
                }
                Some((scheme, _)) if scheme.eq_ignore_ascii_case("basic") => {
                    let basic = self.credentials.and_then(Credentials::basic);
                    return basic
                        .ok_or_else(|| self.denied("authentication is required and no credentials were given"));
                }
                _ => (),
            }
        }
        Err(self.denied("the registry asks for an unknown kind of authentication"))
    }

    /// Asks the token service that the registry named.
    async fn token(&self, asked: &Uri, challenge: &[(String, String)]) -> Result<String, PullError> {
        let get = |name: &str| challenge.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let realm = get("realm").ok_or_else(|| self.odd("an authentication challenge without realm"))?;
        let fallback = format!("repository:{}:pull", self.reference.repository);
        let scope = get("scope").unwrap_or(&fallback);
        let mut query = format!("scope={}", escape(scope));
        if let Some(service) = get("service") {
            query.push_str(&format!("&service={}", escape(service)));
        }
        let separator = if realm.contains('?') { '&' } else { '?' };
        let uri: Uri = format!("{realm}{separator}{query}").parse().map_err(|_| self.odd("a malformed realm"))?;
        if !may_authenticate(asked, &uri) {
            return Err(self.denied("the registry wants credentials sent in clear text"));
        }
        let authorization = match self.credentials {
            Some(Credentials::Identity(token)) => Some(format!("Bearer {token}")),
            Some(credentials) => credentials.basic(),
            None => None,
        };
        let response = self.client.get(&uri, &[], authorization.as_deref()).await?;
        if response.status() != StatusCode::OK {
            return Err(self.denied("the token service refused the credentials"));
        }
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let body = Limited::new(response.into_body(), MAX_TOKEN_BYTES)
            .collect()
            .await
            .map_err(|_| self.odd("an oversized token"))?;
        let token: Token = serde_json::from_slice(&body.to_bytes()).map_err(|_| self.odd("a malformed token"))?;
        let token = token.token.or(token.access_token).ok_or_else(|| self.odd("an empty token"))?;
        Ok(format!("Bearer {token}"))
    }

    fn denied(&self, reason: &str) -> PullError {
        PullError::Denied { reference: self.reference.to_string(), reason: reason.to_owned() }
    }

    fn odd(&self, answer: &str) -> PullError {
        PullError::Protocol { registry: self.reference.registry.clone(), answer: answer.to_owned() }
    }
}

/// Registries on this machine may speak plain HTTP; nothing leaves it.
fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether a registry may name this token service: one that is reached over https, or on this machine like the registry itself.
fn may_authenticate(registry: &Uri, realm: &Uri) -> bool {
    match realm.scheme_str() {
        Some("https") => true,
        Some("http") => {
            registry.scheme_str() == Some("http") && realm.authority().is_some_and(|a| is_loopback(a.host()))
        }
        _ => false,
    }
}

/// Scheme, host and port alike. User names in an address count as well: nobody but an attacker writes them there.
fn same_origin(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme() && one.authority() == other.authority()
}

/// Never from https to http.
fn redirect(from: &Uri, response: &Response<Incoming>) -> Option<Uri> {
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let absolute = match location.starts_with('/') {
        true => format!("{}://{}{location}", from.scheme_str()?, from.authority()?),
        false => location.to_owned(),
    };
    let to: Uri = absolute.parse().ok()?;
    let safe =
        to.scheme_str() == Some("https") || (from.scheme_str() == Some("http") && to.scheme_str() == Some("http"));
    safe.then_some(to)
}

/// `key="value",key="value"`; values may hold commas.
pub(crate) fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([',', ' ']).to_ascii_lowercase();
        let (value, remaining) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((key, value.to_owned()));
        rest = remaining;
    }
    found
}

pub(crate) fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~' | b':' | b'/' | b',');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with a certificate from an authority of our own is trusted if the authority is, and only then.
    #[tokio::test]
    async fn the_operators_own_authority_is_trusted() -> Result<(), Box<dyn std::error::Error>> {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("ca.pem"), key.cert.pem())?;
        let private = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private)?;
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let uri: Uri = format!("https://localhost:{}/v2/", listener.local_addr()?.port()).parse()?;
        tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                let _ = stream.shutdown().await;
            }
        });
        assert_eq!(Client::new(Some(directory.path()))?.get(&uri, &[], None).await?.status(), StatusCode::OK);
        let refused = Client::new(None)?.get(&uri, &[], None).await.err().ok_or("trusted")?;
        assert!(refused.to_string().contains("certificate"), "{refused}");
        Ok(())
    }

    #[test]
    fn credentials_are_not_sent_in_clear_text() {
        for (registry, realm, want) in [
            ("https://r.io/v2/", "https://auth.io/token", true),
            ("https://r.io/v2/", "http://auth.io/token", false),
            ("https://r.io/v2/", "http://127.0.0.1/token", false),
            ("https://r.io/v2/", "http://localhost:5000/token", false),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:6000/token", true),
            ("http://127.0.0.1:5000/v2/", "http://[::1]:6000/token", true),
            ("http://127.0.0.1:5000/v2/", "https://auth.io/token", true),
            ("http://127.0.0.1:5000/v2/", "http://auth.io/token", false),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1@auth.io/token", false),
            ("http://127.0.0.1:5000/v2/", "/token", false),
        ] {
            let (from, to) = (registry.parse().expect(registry), realm.parse().expect(realm));
            assert_eq!(may_authenticate(&from, &to), want, "{registry} names {realm}");
        }
    }

    #[test]
    fn only_an_address_with_the_same_scheme_host_and_port_is_the_registry() {
        let home: Uri = "https://r.io/v2/x".parse().expect("an address");
        for (other, want) in [
            ("https://r.io/elsewhere", true),
            ("https://R.IO/elsewhere", true),
            ("http://r.io/v2/x", false),
            ("https://r.io:444/v2/x", false),
            ("https://user@r.io/v2/x", false),
            ("https://r.io.evil.com/v2/x", false),
        ] {
            assert_eq!(same_origin(&home, &other.parse().expect(other)), want, "{other}");
        }
    }

    #[test]
    fn challenges_are_read_with_commas_in_values() {
        let got = parameters(r#"realm="https://a/t",service="a",scope="repository:x:pull,push""#);
        let want = [("realm", "https://a/t"), ("service", "a"), ("scope", "repository:x:pull,push")];
        assert_eq!(got, want.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }

    #[test]
    fn only_this_machine_is_spoken_to_in_clear_text() {
        for (authority, want) in [
            ("localhost:5000", true),
            ("127.0.0.1:1", true),
            ("127.9.9.9", true),
            ("[::1]:5000", true),
            ("10.0.0.1:5000", false),
            ("localhost.evil.com", false),
        ] {
            assert_eq!(is_loopback(authority), want, "{authority}");
        }
    }

    #[test]
    fn credentials_come_in_every_form_the_kubelet_has() {
        let auth = AuthConfig { auth: STANDARD.encode("user:pa:ss"), ..Default::default() };
        assert_eq!(Credentials::from(auth).basic(), Some(format!("Basic {}", STANDARD.encode("user:pa:ss"))));
        assert_eq!(Credentials::from(AuthConfig::default()).basic(), None);
    }
}
