//! A stock kube-apiserver that somebody started.

use std::path::Path;

use anyhow::Result;
use http_body_util::BodyExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

pub(crate) struct Oracle(Client);

impl Oracle {
    pub(crate) async fn connect(kubeconfig: &Path) -> Result<Self> {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Self(Client::try_from(config)?))
    }

    pub(crate) async fn send(&self, request: http::Request<Vec<u8>>) -> Result<(u16, Value)> {
        let response = self.0.send(request.map(kube::client::Body::from)).await?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((code, super::compare::body(&body)))
    }
}
