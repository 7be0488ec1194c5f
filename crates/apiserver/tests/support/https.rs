//! An HTTPS server of a test's own: one function answers every request.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;

pub(crate) struct Https {
    pub(crate) url: String,
    pub(crate) authority: String,
    /// How many requests came.
    pub(crate) asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Https {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Https {
    /// `answer` gets the server's URL, the path and the body.
    pub(crate) async fn start(answer: impl Fn(&str, &str, Value) -> Value + Send + Sync + 'static) -> Result<Self> {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let authority = key.cert.pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der());
        let private = private.ok().context("a key")?;
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("https://localhost:{}", listener.local_addr()?.port());
        let asked = Arc::new(AtomicUsize::new(0));
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let (answer, own, count) = (Arc::new(answer), url.clone(), asked.clone());
        let task = tokio::spawn(async move {
            // With the listener go its connections.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer, own, count) = (acceptor.clone(), answer.clone(), own.clone(), count.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                        let (answer, own, count) = (answer.clone(), own.clone(), count.clone());
                        async move {
                            count.fetch_add(1, Ordering::Relaxed);
                            let path = request.uri().path().to_owned();
                            let body =
                                request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                            let body = serde_json::from_slice(&body).unwrap_or_default();
                            let text = answer(&own, &path, body).to_string();
                            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
                        }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { url, authority, asked, task })
    }

    /// A kubeconfig that leads here.
    pub(crate) fn kubeconfig(&self) -> String {
        let authority = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &self.authority);
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        })
        .to_string()
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}
