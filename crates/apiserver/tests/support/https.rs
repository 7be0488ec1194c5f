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
    #[allow(dead_code)] // Few tests lead to it by another name.
    pub(crate) port: u16,
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

/// What is answered.
pub(crate) enum Reply {
    Json(Value),
    #[allow(dead_code)] // Few tests need a server that misbehaves.
    Raw(u16, Bytes),
    #[allow(dead_code)] // As above.
    Redirect(String),
    #[allow(dead_code)] // As above.
    Never,
}

/// The server's own URL, the path with its query, the headers and the body.
pub(crate) struct Asked {
    pub(crate) url: String,
    pub(crate) path: String,
    #[allow(dead_code)] // Few tests look at them.
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Value,
}

impl Https {
    /// `answer` gets the server's URL, the path and the body.
    #[allow(dead_code)] // Some need more than that.
    pub(crate) async fn start(answer: impl Fn(&str, &str, Value) -> Value + Send + Sync + 'static) -> Result<Self> {
        let answer = move |asked: Asked| {
            let path = asked.path.split('?').next().unwrap_or_default();
            std::future::ready(Reply::Json(answer(&asked.url, path, asked.body)))
        };
        Self::answering(&["localhost"], answer).await
    }

    /// One that has these names, and may take its time.
    pub(crate) async fn answering<F>(
        names: &[&str],
        answer: impl Fn(Asked) -> F + Send + Sync + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        let key = rcgen::generate_simple_self_signed(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let authority = key.cert.pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der());
        let private = private.ok().context("a key")?;
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let url = format!("https://localhost:{port}");
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
                        let (answer, url, count) = (answer.clone(), own.clone(), count.clone());
                        async move {
                            count.fetch_add(1, Ordering::Relaxed);
                            let path = request.uri().to_string();
                            let headers = request.headers().clone();
                            let body =
                                request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                            let body = serde_json::from_slice(&body).unwrap_or_default();
                            let (code, bytes, location) = match answer(Asked { url, path, headers, body }).await {
                                Reply::Json(value) => (200, Bytes::from(value.to_string()), None),
                                Reply::Raw(code, bytes) => (code, bytes, None),
                                Reply::Redirect(to) => (307, Bytes::new(), http::HeaderValue::try_from(to).ok()),
                                Reply::Never => std::future::pending().await,
                            };
                            let mut response = Response::new(Full::new(bytes));
                            *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
                            response.headers_mut().extend(location.map(|to| (http::header::LOCATION, to)));
                            Ok::<_, Infallible>(response)
                        }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { url, port, authority, asked, task })
    }

    /// Whom to believe, as configurations have it.
    pub(crate) fn bundle(&self) -> String {
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &self.authority)
    }

    /// A kubeconfig that leads here.
    #[allow(dead_code)] // Not every test needs one.
    pub(crate) fn kubeconfig(&self) -> String {
        let authority = self.bundle();
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        })
        .to_string()
    }

    #[allow(dead_code)] // Not every test counts.
    pub(crate) fn count(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}
