//! gRPC in front of any [`Cri`]: the built-in runtime's socket, for `crictl` and foreign kubelets.

use std::future::Future;
use std::sync::Arc;

use futures::stream;
use tokio::net::UnixListener;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::calls::{Cri, Events, with_calls};
use crate::v1;
use crate::v1::image_service_server::{ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// Both CRI services over `cri`; [`serve_unix`] runs them.
pub fn serve(cri: Arc<dyn Cri>) -> Routes {
    Routes::new(RuntimeServiceServer::new(Served(cri.clone()))).add_service(ImageServiceServer::new(Served(cri)))
}

/// Answers on `listener` until `stop` resolves, then finishes the calls in flight.
///
/// # Errors
/// The socket can no longer be accepted from.
pub async fn serve_unix(
    listener: UnixListener,
    cri: Arc<dyn Cri>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let connections = stream::unfold(listener, |listener| async move {
        let connection = listener.accept().await.map(|(stream, _)| stream);
        Some((connection, listener))
    });
    tonic::transport::Server::builder().add_routes(serve(cri)).serve_with_incoming_shutdown(connections, stop).await
}

struct Served(Arc<dyn Cri>);

macro_rules! cri_server {
    (runtime { $($r:ident($rq:ident) -> $rs:ident,)* } image { $($i:ident($iq:ident) -> $is:ident,)* }) => {
        #[async_trait::async_trait]
        impl RuntimeService for Served {
            $(async fn $r(&self, request: Request<v1::$rq>) -> Result<Response<v1::$rs>, Status> {
                self.0.$r(request.into_inner()).await.map(Response::new)
            })*
            type GetContainerEventsStream = Events;
            async fn get_container_events(
                &self,
                _: Request<v1::GetEventsRequest>,
            ) -> Result<Response<Events>, Status> {
                self.0.events().await.map(Response::new)
            }
        }
        #[async_trait::async_trait]
        impl ImageService for Served {
            $(async fn $i(&self, request: Request<v1::$iq>) -> Result<Response<v1::$is>, Status> {
                self.0.$i(request.into_inner()).await.map(Response::new)
            })*
        }
    };
}
with_calls!(cri_server);

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::Remote;

    /// Refuses every call with the call's own name, so that a crossed wire shows.
    struct Named;

    macro_rules! named {
        (runtime { $($r:ident($rq:ident) -> $rs:ident,)* } image { $($i:ident($iq:ident) -> $is:ident,)* }) => {
            #[async_trait::async_trait]
            impl Cri for Named {
                $(async fn $r(&self, _: v1::$rq) -> Result<v1::$rs, Status> { Err(Status::not_found(stringify!($r))) })*
                $(async fn $i(&self, _: v1::$iq) -> Result<v1::$is, Status> { Err(Status::not_found(stringify!($i))) })*
                async fn events(&self) -> Result<Events, Status> {
                    let event = v1::ContainerEventResponse { container_id: "c1".to_owned(), ..Default::default() };
                    Ok(Box::pin(stream::iter([Ok(event)])))
                }
            }

            async fn check_every_call(remote: &Remote) {
                $(check(stringify!($r), remote.$r(v1::$rq::default()).await);)*
                $(check(stringify!($i), remote.$i(v1::$iq::default()).await);)*
            }
        };
    }
    with_calls!(named);

    #[track_caller]
    fn check<T>(name: &str, answer: Result<T, Status>) {
        let status = answer.err().expect(name);
        assert_eq!((status.code(), status.message()), (tonic::Code::NotFound, name));
    }

    #[tokio::test]
    async fn each_call_crosses_the_socket_to_its_own_method() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("cri.sock");
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve_unix(UnixListener::bind(&path)?, Arc::new(Named), async {
            stopped.await.ok();
        }));
        let remote = Remote::connect(&format!("unix://{}", path.display())).await?;
        check_every_call(&remote).await;
        let events: Vec<_> = remote.events().await?.collect().await;
        assert_eq!(events.len(), 1);
        assert_eq!(events.into_iter().next().ok_or("no event")??.container_id, "c1");
        drop((stop, remote));
        server.await??;
        Ok(())
    }
}
