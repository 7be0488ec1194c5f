//! How the runtime asks for a pod's network; the binary joins it with whoever provides one.

use std::net::IpAddr;
use std::path::Path;

use async_trait::async_trait;
use cri::v1::PodSandboxConfig;

/// What a pod was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAttachment {
    pub ips: Vec<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

/// Puts pods on the network and takes them off. Both verbs are idempotent.
#[async_trait]
pub trait PodNetwork: Send + Sync {
    async fn attach(
        &self,
        sandbox_id: &str,
        netns: &Path,
        config: &PodSandboxConfig,
    ) -> Result<PodAttachment, NetworkError>;
    async fn detach(&self, sandbox_id: &str, netns: &Path) -> Result<(), NetworkError>;
    /// Why pods cannot be attached at present, for the node's NetworkReady condition.
    fn not_ready(&self) -> Option<String> {
        None
    }
}

/// Pods get a loopback interface and nothing else.
#[derive(Debug, Default)]
pub struct NoNetwork;

#[async_trait]
impl PodNetwork for NoNetwork {
    async fn attach(&self, _: &str, _: &Path, _: &PodSandboxConfig) -> Result<PodAttachment, NetworkError> {
        Ok(PodAttachment::default())
    }

    async fn detach(&self, _: &str, _: &Path) -> Result<(), NetworkError> {
        Ok(())
    }
}
