//! A server that tells who answered: the pod's name and address, and the request as it arrived.

use std::convert::Infallible;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;

use crate::cli::Hello;

/// How long connections that were on their way are still answered after the signal to stop.
const LINGER: Duration = Duration::from_millis(1500);

pub(crate) async fn run(options: Hello) -> Result<()> {
    let listener =
        TcpListener::bind(options.listen).await.with_context(|| format!("cannot listen on {}", options.listen))?;
    writeln!(std::io::stdout(), "listening on {}", options.listen)?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = async {
        terminate.recv().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::select! {
        () = serve(listener) => Ok(()),
        () = stop => Ok(()),
    }
}

async fn serve(listener: TcpListener) {
    while let Ok((stream, peer)) = listener.accept().await {
        let own = stream.local_addr().map(|address| address.ip().to_string()).unwrap_or_default();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let text = answer(&request, &own, &peer.to_string());
                async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text)))) }
            });
            // A client that hangs up is no failure of ours.
            let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(request: &Request<Incoming>, own: &str, peer: &str) -> String {
    let name = std::env::var("HOSTNAME").ok().or_else(|| nix::unistd::gethostname().ok()?.into_string().ok());
    let mut text = format!(
        "Hello from {}\naddress: {own}\nclient: {peer}\n\n{} {}\n",
        name.unwrap_or_default(),
        request.method(),
        request.uri()
    );
    for (key, value) in request.headers() {
        text.push_str(&format!("{key}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    text
}
