//! An API server over a store in a temporary directory, called in process as a cluster administrator.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use apiserver::{ApiServer, Config, KubeletClient, ServiceAccountKeys};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub(crate) struct Api {
    server: Arc<ApiServer>,
    drain: CancellationToken,
    #[allow(dead_code)] // Few tests go behind the server's back.
    pub(crate) store: Arc<dyn store::Store>,
    _dir: Option<tempfile::TempDir>,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.drain.cancel();
    }
}

impl Api {
    #[allow(dead_code)] // Not every test needs it.
    pub(crate) async fn start() -> Result<Self> {
        Self::start_with(|_| ()).await
    }

    /// The same with beta and alpha versions served too.
    #[allow(dead_code)] // Not every test needs it.
    pub(crate) async fn start_with_all_versions() -> Result<Self> {
        let runtime_config = apiserver::RuntimeConfig::new(&["api/all=true".to_owned()])?;
        Self::start_with(|config| config.runtime_config = runtime_config).await
    }

    /// The same, set up in another way.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let store = Arc::new(store::Embedded::open(dir.path(), store::Options::default())?);
        let mut api = Self::start_on(store, change).await?;
        api._dir = Some(dir);
        Ok(api)
    }

    /// The same on a store that is there already.
    pub(crate) async fn start_on(store: Arc<dyn store::Store>, change: impl FnOnce(&mut Config)) -> Result<Self> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?.serialize_pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let keys = ServiceAccountKeys::read(key.as_bytes(), &[])?;
        let mut config = Config::new([192, 0, 2, 1].into(), keys, KubeletClient::new(Arc::new(tls)));
        config.cors = apiserver::Cors::new(&["//example[.]com$".into()])?;
        change(&mut config);
        let drain = CancellationToken::new();
        let server = ApiServer::start(config, store.clone(), drain.clone()).await?;
        Ok(Self { server, drain, store, _dir: None })
    }

    /// Sends `METHOD path` with headers; answers the response with its body still to be read.
    pub(crate) async fn send(
        &self,
        what: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<apiserver::Body>> {
        let mut request = request(what, headers, body.into())?;
        request.extensions_mut().insert(api::UserInfo::authenticated("admin", &["system:masters"]));
        Ok(self.server.handle(request).await)
    }

    /// The same from a user of this name.
    #[allow(dead_code)] // Not every test needs it.
    pub(crate) async fn send_as(&self, user: &str, what: &str) -> Result<Response<apiserver::Body>> {
        let mut request = request(what, &[], Bytes::new())?;
        request.extensions_mut().insert(api::UserInfo::authenticated(user, &[]));
        Ok(self.server.handle(request).await)
    }

    /// The same from somebody nobody vouches for, with the body read to its end.
    #[allow(dead_code)] // Not every test needs it.
    pub(crate) async fn stranger(
        &self,
        what: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<(u16, http::HeaderMap, Bytes)> {
        let response = self.server.handle(request(what, headers, body.into())?).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        Ok((parts.status.as_u16(), parts.headers, bytes))
    }

    /// One connection of HTTP/1.1 to the server, upgrades included, with nothing of a network in between.
    #[allow(dead_code)] // Not every test needs one.
    pub(crate) fn connect(&self) -> tokio::io::DuplexStream {
        let (near, far) = tokio::io::duplex(1 << 16);
        let server = self.server.clone();
        let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
            let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
            request.extensions_mut().insert(api::UserInfo::authenticated("admin", &["system:masters"]));
            let answer = server.handle(request);
            async move { Ok::<_, std::convert::Infallible>(answer.await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(hyper_util::rt::TokioIo::new(far), service)
            .with_upgrades();
        tokio::spawn(connection);
        near
    }

    /// The same, with the body read to its end.
    pub(crate) async fn call(
        &self,
        what: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<(u16, http::HeaderMap, Bytes)> {
        let response = self.send(what, headers, body).await?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        Ok((parts.status.as_u16(), parts.headers, bytes))
    }

    #[allow(dead_code)] // Not every test needs it.
    pub(crate) async fn json(
        &self,
        what: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let (code, _, bytes) = self.call(what, headers, body).await?;
        Ok((code, serde_json::from_slice(&bytes).with_context(|| String::from_utf8_lossy(&bytes).into_owned())?))
    }
}

fn request(what: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Request<apiserver::Body>> {
    let (method, path) = what.split_once(' ').context("METHOD path")?;
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Ok(request.body(Full::new(body).map_err(|never| match never {}).boxed_unsync())?)
}
