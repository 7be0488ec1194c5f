//! Our side: the embedded engine under etcd's API, as `ferry store` runs it, without the rest of the binary.

use std::{path::Path, process::Command, sync::Arc};

use anyhow::{Context as _, Result};
use store::{
    Embedded, Options,
    etcd::{Listener, serve as serve_etcd},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::process::{Process, free_url};

pub(super) fn version() -> String {
    format!("ferry {}", env!("CARGO_PKG_VERSION"))
}

pub(super) async fn start(dir: &Path) -> Result<Process> {
    let url = free_url()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve-store").arg(dir).arg(&url);
    Process::start(command, url).await
}

/// Serves until killed.
pub(crate) async fn serve(dir: &Path, url: &str) -> Result<()> {
    let address = url.strip_prefix("http://").context("the url is http://HOST:PORT")?;
    let listener = Listener::Tcp(TcpListener::bind(address).await?);
    let store = Arc::new(Embedded::open(dir, Options::default())?);
    serve_etcd(store, vec![listener], CancellationToken::new()).await?;
    Ok(())
}
