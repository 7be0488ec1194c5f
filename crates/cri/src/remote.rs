//! [`Cri`] over gRPC on a unix socket: how Ferry's kubelet drives containerd or CRI-O.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::calls::{Cri, Events, with_calls};
use crate::v1;
use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;

/// Exec output and long lists pass the 4 MiB default; upstream's kubelet allows 16 MiB as well.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Why no connection to a runtime endpoint was made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0:?} is not a unix socket endpoint: write unix:///path/to/socket")]
    Endpoint(String),
    #[error("container runtime at {endpoint} does not answer: {source}")]
    Connect { endpoint: String, source: tonic::transport::Error },
}

/// A runtime in another process. Reconnects by itself when that process restarts.
#[derive(Clone, Debug)]
pub struct Remote {
    runtime: RuntimeServiceClient<Channel>,
    image: ImageServiceClient<Channel>,
}

impl Remote {
    /// Connects to `unix:///path` or a plain absolute path.
    ///
    /// # Errors
    /// The endpoint is not a unix socket, or nobody accepts connections on it.
    pub async fn connect(endpoint: &str) -> Result<Self, ConnectError> {
        let path = socket_path(endpoint).ok_or_else(|| ConnectError::Endpoint(endpoint.to_owned()))?;
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The URI is only the HTTP/2 authority; gRPC servers on unix sockets expect this name.
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connector)
            .await
            .map_err(|source| ConnectError::Connect { endpoint: endpoint.to_owned(), source })?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES),
            image: ImageServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
        })
    }
}

fn socket_path(endpoint: &str) -> Option<PathBuf> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    path.starts_with('/').then(|| PathBuf::from(path))
}

macro_rules! cri_remote {
    (runtime { $($r:ident($rq:ident) -> $rs:ident,)* } image { $($i:ident($iq:ident) -> $is:ident,)* }) => {
        #[async_trait::async_trait]
        impl Cri for Remote {
            $(async fn $r(&self, request: v1::$rq) -> Result<v1::$rs, Status> {
                self.runtime.clone().$r(request).await.map(tonic::Response::into_inner)
            })*
            $(async fn $i(&self, request: v1::$iq) -> Result<v1::$is, Status> {
                self.image.clone().$i(request).await.map(tonic::Response::into_inner)
            })*
            async fn events(&self) -> Result<Events, Status> {
                let stream = self.runtime.clone().get_container_events(v1::GetEventsRequest {}).await?;
                Ok(Box::pin(stream.into_inner()))
            }
        }
    };
}
with_calls!(cri_remote);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_absolute_unix_paths() {
        check("unix:///run/a.sock", Some("/run/a.sock"));
        check("/run/a.sock", Some("/run/a.sock"));
        check("unix://run/a.sock", None);
        check("tcp://127.0.0.1:1", None);
        check("", None);
    }

    #[track_caller]
    fn check(endpoint: &str, want: Option<&str>) {
        assert_eq!(socket_path(endpoint), want.map(PathBuf::from), "{endpoint}");
    }
}
