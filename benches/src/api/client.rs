//! The client both servers are asked with: HTTP/1.1 over TLS, a connection each, one request at a time.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use rustls::{
    CipherSuite, ConfigBuilder,
    client::WantsClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::records::Records;

/// Whom a client believes, and who it is.
pub(super) struct Trust(Arc<rustls::ClientConfig>);

impl Trust {
    pub(super) fn read(kubeconfig: &Path) -> Result<Trust> {
        let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig)?)?;
        let data = |pointer: &str| -> Result<Vec<u8>> {
            let text = config.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer}"))?;
            Ok(STANDARD.decode(text)?)
        };
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&data("/clusters/0/cluster/certificate-authority-data")?)?)?;
        let chain = CertificateDer::from_pem_slice(&data("/users/0/user/client-certificate-data")?)?;
        let key = PrivateKeyDer::from_pem_slice(&data("/users/0/user/client-key-data")?)?;
        Ok(Trust(Arc::new(believing(roots)?.with_client_auth_cert(vec![chain], key)?)))
    }

    /// Of somebody whom this authority vouches for, and who does not ask who we are.
    pub(super) fn anybody(authority: &str) -> Result<Trust> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
        Ok(Trust(Arc::new(believing(roots)?.with_no_client_auth())))
    }

    /// A connection on which nothing was said yet.
    pub(super) async fn open(&self, url: &str) -> Result<TlsStream<TcpStream>> {
        self.secure(url, &[], reach(url).await?).await
    }

    /// The same, to speak HTTP/2 and to read much.
    pub(super) async fn open_http2(&self, url: &str) -> Result<Records> {
        Ok(Records::new(self.secure(url, b"h2", reach(url).await?).await?)?)
    }

    async fn secure(&self, url: &str, protocol: &[u8], stream: TcpStream) -> Result<TlsStream<TcpStream>> {
        let mut config = (*self.0).clone();
        if !protocol.is_empty() {
            config.alpn_protocols = vec![protocol.to_vec()];
            config.enable_secret_extraction = true;
        }
        let address = host(url)?.rsplit_once(':').context("a host without a port")?.0.to_owned();
        Ok(TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(address)?, stream).await?)
    }
}

fn believing(roots: rustls::RootCertStore) -> Result<ConfigBuilder<rustls::ClientConfig, WantsClientCert>> {
    // What Go's clients, which are most of them, ask for first.
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
    Ok(builder.with_safe_default_protocol_versions()?.with_root_certificates(roots))
}

async fn reach(url: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(host(url)?).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(super) fn host(url: &str) -> Result<&str> {
    url.strip_prefix("https://").context("the url is https://HOST:PORT")
}

pub(super) struct Client {
    connection: SendRequest<Full<Bytes>>,
    host: String,
    /// As whom it asks, where not as itself.
    acts_as: Option<&'static str>,
    in_group: Option<&'static str>,
}

impl Client {
    pub(super) async fn connect(url: &str, trust: &Trust) -> Result<Client> {
        let stream = trust.open(url).await?;
        let (connection, task) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(task);
        Ok(Client { connection, host: host(url)?.to_owned(), acts_as: None, in_group: None })
    }

    /// From now on it asks as a user of this name.
    pub(super) fn acting_as(self, user: &'static str) -> Client {
        Client { acts_as: Some(user), ..self }
    }

    /// And as one of these.
    pub(super) fn in_group(self, group: &'static str) -> Client {
        Client { in_group: Some(group), ..self }
    }

    /// Asks, and returns the body of the answer, which goes on coming.
    pub(super) async fn open(&mut self, method: Method, path: &str, accept: &str, body: Bytes) -> Result<Incoming> {
        self.connection.ready().await?;
        let mut request =
            Request::builder().method(method).uri(path).header("host", &self.host).header("accept", accept);
        if let Some(user) = self.acts_as {
            request = request.header("impersonate-user", user);
        }
        if let Some(group) = self.in_group {
            request = request.header("impersonate-group", group);
        }
        let request = request.header("content-type", "application/json").body(Full::new(body))?;
        let response = self.connection.send_request(request).await?;
        let status = response.status();
        if !matches!(status, StatusCode::OK | StatusCode::CREATED) {
            let said = response.into_body().collect().await?.to_bytes();
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&said));
        }
        Ok(response.into_body())
    }

    /// What is said to a body that should not have been sent; nothing, if the connection is closed over it.
    pub(super) async fn provoke(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Option<StatusCode> {
        self.connection.ready().await.ok()?;
        let request = Request::builder().method(method).uri(path).header("host", &self.host);
        let request = request.header("content-type", content_type).body(Full::new(body)).ok()?;
        let response = self.connection.send_request(request).await.ok()?;
        let status = response.status();
        response.into_body().collect().await.ok()?;
        Some(status)
    }

    /// The whole answer, of which only the length is kept.
    async fn ask(&mut self, method: Method, path: &str, accept: &str, body: Bytes) -> Result<usize> {
        let mut body = self.open(method, path, accept, body).await?;
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(bytes)
    }

    pub(super) async fn get(&mut self, path: &str, accept: &str) -> Result<usize> {
        self.ask(Method::GET, path, accept, Bytes::new()).await
    }

    pub(super) async fn get_json(&mut self, path: &str) -> Result<Value> {
        let body = self.open(Method::GET, path, "application/json", Bytes::new()).await?;
        Ok(serde_json::from_slice(&body.collect().await?.to_bytes())?)
    }

    pub(super) async fn post(&mut self, path: &str, object: &Value) -> Result<()> {
        self.send(Method::POST, path, serde_json::to_vec(object)?.into()).await
    }

    pub(super) async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<()> {
        self.ask(method, path, "application/json", body).await?;
        Ok(())
    }
}
