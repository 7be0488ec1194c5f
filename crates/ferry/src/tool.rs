//! `ferry tool`: what one needs inside a pod whose image holds nothing else.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::cli::{Fetch, Tool};

const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub(crate) async fn run(tool: Tool) -> Result<()> {
    match tool {
        Tool::Fetch(options) => {
            let limit = Duration::from_secs(options.timeout);
            let fetched = tokio::time::timeout(limit, fetch(&options)).await;
            fetched.with_context(|| format!("no answer within {} s", options.timeout))?
        }
        Tool::Echo => {
            std::io::copy(&mut std::io::stdin(), &mut std::io::stdout())?;
            Ok(())
        }
        Tool::Pause => {
            crate::alone::until_signalled()?.cancelled().await;
            Ok(())
        }
    }
}

async fn fetch(options: &Fetch) -> Result<()> {
    let uri: Uri = options.url.parse().context("the URL is malformed")?;
    let host = uri.host().context("the URL names no host")?.to_owned();
    let tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let mut request = Request::get(uri.path_and_query().map_or("/", |path| path.as_str())).header("host", &host);
    if options.service_account {
        let token =
            std::fs::read_to_string(format!("{ACCOUNT}/token")).context("no service-account token is mounted here")?;
        request = request.header("authorization", format!("Bearer {}", token.trim()));
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let stream =
        TcpStream::connect((host.as_str(), port)).await.with_context(|| format!("cannot connect to {host}:{port}"))?;
    let (status, body) = if tls {
        let connector = TlsConnector::from(Arc::new(trusting()?));
        exchange(connector.connect(ServerName::try_from(host)?, stream).await?, request).await?
    } else {
        exchange(stream, request).await?
    };
    std::io::stdout().write_all(&body)?;
    if status >= 400 {
        bail!("the answer has status {status}");
    }
    Ok(())
}

/// Believes the cluster's authority, the one a pod is given.
fn trusting() -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let path = format!("{ACCOUNT}/ca.crt");
    for certificate in CertificateDer::pem_file_iter(&path).with_context(|| format!("cannot read {path}"))? {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<(u16, Bytes)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}
