//! Several `ferry server`s on one etcd, each on a loopback address of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::{Process, eventually, free_ports, run_kubectl};

pub const READY_LIMIT: Duration = Duration::from_secs(60);

pub struct Server {
    pub dir: PathBuf,
    /// Where it listens; what it advertises is [`Server::advertised`].
    pub address: String,
    /// As the endpoints name it: addresses for documentation, because loopback is not allowed there.
    pub advertised: String,
    arguments: Vec<String>,
    starts: usize,
    /// `None` while it is killed.
    pub process: Option<Process>,
}

/// Starts `size` servers at once and waits until all are ready. Without an etcd, one keeps its state itself.
pub fn start_servers(dir: &Path, size: usize, etcd: &str, more: &[&str]) -> Result<Vec<Server>> {
    // All servers of a cluster have the same port.
    let addresses: Vec<String> = (0..size).map(address).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let port = free_ports(&addresses, 1)?.remove(0).to_string();
    let mut servers = Vec::new();
    for index in 0..size {
        let (address, advertised) = (address(index), format!("192.0.2.{}", index + 11));
        let dir = dir.join(format!("server-{index}"));
        std::fs::create_dir_all(&dir)?;
        let data = dir.display().to_string();
        let mut flags = vec!["server", "--v", "2", "--data-dir", &data, "--token", "of the test"];
        flags.extend(["--bind-address", &address, "--secure-port", &port, "--advertise-address", &advertised]);
        if !etcd.is_empty() {
            flags.extend(["--etcd-servers", etcd]);
        }
        let arguments = flags.iter().chain(more);
        let arguments = arguments.map(ToString::to_string).collect();
        let mut server = Server { dir, address, advertised, arguments, starts: 0, process: None };
        server.start()?;
        servers.push(server);
    }
    for server in &mut servers {
        server.ready()?;
    }
    Ok(servers)
}

fn address(index: usize) -> String {
    format!("127.0.0.{}", index + 11)
}

impl Server {
    pub fn start(&mut self) -> Result<()> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.starts += 1;
        self.process = Some(Process::ferry(&arguments, &self.dir.join(format!("log-{}", self.starts)))?);
        Ok(())
    }

    pub fn ready(&mut self) -> Result<()> {
        let process = self.process.as_mut().context("it was killed")?;
        let config = self.dir.join("admin.conf");
        eventually("the server is ready", READY_LIMIT, || {
            process.is_running()?;
            Ok(run_kubectl(&config, &["get", "--raw", "/readyz"]).ok())
        })?;
        Ok(())
    }

    /// Runs kubectl against this server, which must succeed; answers what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        run_kubectl(&self.dir.join("admin.conf"), &[&["--request-timeout=20s"], arguments].concat())
    }

    /// `kubectl apply` of a manifest in a file of its own.
    pub fn apply(&self, name: &str, manifest: &str) -> Result<String> {
        let file = self.dir.join(format!("{name}.yaml"));
        // Without the marker kubectl would take YAML in braces for JSON.
        std::fs::write(&file, format!("---\n{manifest}"))?;
        self.kubectl(&["apply", "-f", &file.display().to_string()])
    }

    /// Whether this text is in the log since the last start.
    pub fn said(&self, text: &str) -> bool {
        std::fs::read_to_string(self.dir.join(format!("log-{}", self.starts))).unwrap_or_default().contains(text)
    }
}
