//! A `kube::Client` that calls a handler in this process, with no TCP and no TLS in between.

use std::convert::Infallible;
use std::future::Future;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tower::BoxError;

/// The body of a request as the in-process handler gets it.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Every request carries `user` in its extensions: the identity is vouched for by the process, no credential is sent.
pub fn in_process<H, F, B>(handler: H, user: api::UserInfo) -> kube::Client
where
    H: Fn(http::Request<Body>) -> F + Send + Sync + 'static,
    F: Future<Output = http::Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let mut request = request.map(|body| body.map_err(BoxError::from).boxed_unsync());
        request.extensions_mut().insert(user.clone());
        let response = handler(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    kube::Client::new(service, "default")
}
