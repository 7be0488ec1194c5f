//! Ferry's API server in this process, on a store of its own.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use api::UserInfo;
use apiserver::{ApiServer, Config, KubeletClient, RuntimeConfig, ServiceAccountKeys, ServiceRanges};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Flags;

pub(crate) struct Ferry {
    server: Arc<ApiServer>,
    drain: CancellationToken,
    _dir: tempfile::TempDir,
}

impl Ferry {
    pub(crate) async fn start(flags: &Flags) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let store = Arc::new(store::Embedded::open(dir.path(), store::Options::default())?);
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?.serialize_pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let flag = |name: &str, usual: &str| flags.get(name).map_or(usual, String::as_str).to_owned();
        let advertise_address = flag("--advertise-address", "192.0.2.1").parse()?;
        let ranges = flag("--service-cluster-ip-range", "10.96.0.0/16");
        let runtime_config: Vec<String> = flag("--runtime-config", "").split(',').map(ToOwned::to_owned).collect();
        let keys = ServiceAccountKeys::read(key.as_bytes(), &[])?;
        let config = Config {
            secure_port: flag("--secure-port", "6443").parse()?,
            service_cluster_ip_range: ServiceRanges::parse(&ranges, Some(advertise_address))?,
            runtime_config: RuntimeConfig::new(&runtime_config)?,
            service_account_issuer: "https://kubernetes.default.svc.cluster.local".into(),
            ..Config::new(advertise_address, keys, KubeletClient::new(Arc::new(tls)))
        };
        let drain = CancellationToken::new();
        let server = ApiServer::start(config, store, drain.clone()).await?;
        Ok(Self { server, drain, _dir: dir })
    }

    pub(crate) async fn send(&self, request: http::Request<Vec<u8>>) -> Result<(u16, Value)> {
        let mut request = request.map(|body| Full::new(body.into()).map_err(Into::into).boxed_unsync());
        let user = UserInfo { uid: "admin".into(), ..UserInfo::authenticated("admin", &["system:masters"]) };
        request.extensions_mut().insert(user);
        let response = self.server.handle(request).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| anyhow::anyhow!(error)).context("body")?;
        Ok((code, super::compare::body(&body.to_bytes())))
    }
}

impl Drop for Ferry {
    fn drop(&mut self) {
        self.drain.cancel();
    }
}
