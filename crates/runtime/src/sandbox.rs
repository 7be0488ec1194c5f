//! The life of a pod's sandbox: its directory, shim, namespaces, network and cgroup, from run to removal and across restarts.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cri::v1::{ContainerEventType, DnsConfig, NamespaceMode, NamespaceOption, PodSandboxConfig};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::container::Container;
use crate::record::{self, Encoded, Kept, SandboxRecord, save};
use crate::shim::link::{Link, LinkError, Told};
use crate::shim::protocol::{ContainerState, PodSetup, Request, container_directory, read_json};
use crate::{NetworkError, Runtime, cgroup, disk};

/// A shim that was asked to end has only to kill and reap.
pub(crate) const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);
/// The sandbox's record in its directory.
pub(crate) const RECORD: &str = "sandbox.json";

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("{0}")]
    Invalid(&'static str),
    #[error("cannot prepare the sandbox directory: {0}")]
    Prepare(#[source] io::Error),
    #[error("cannot start the pod's shim: {0}")]
    Shim(String),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot set up the pod's network: {0}")]
    Network(#[from] NetworkError),
    #[error("cannot clean up after the sandbox: {0}")]
    CleanUp(#[source] io::Error),
}

pub(crate) struct Sandbox {
    pub directory: PathBuf,
    pub record: Kept<SandboxRecord>,
    link: Mutex<Option<Arc<Link>>>,
    /// Stop and remove are long and must not overlap.
    pub ending: tokio::sync::Mutex<()>,
}

impl Sandbox {
    pub(crate) fn new(directory: PathBuf, record: SandboxRecord) -> Arc<Self> {
        Arc::new(Self {
            record: Kept::new(record, directory.join(RECORD)),
            directory,
            link: Mutex::default(),
            ending: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn record(&self) -> SandboxRecord {
        self.record.get()
    }

    pub(crate) fn link(&self) -> Result<Arc<Link>, LinkError> {
        self.link.lock().clone().ok_or(LinkError::Gone)
    }

    pub(crate) fn netns(&self) -> PathBuf {
        self.directory.join("ns/net")
    }
}

pub(crate) fn namespace_options(config: &PodSandboxConfig) -> NamespaceOption {
    let security = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    security.and_then(|s| s.namespace_options.clone()).unwrap_or_default()
}

pub(crate) fn host_network(config: &PodSandboxConfig) -> bool {
    namespace_options(config).network() == NamespaceMode::Node
}

impl Runtime {
    pub(crate) async fn run_sandbox(&self, config: PodSandboxConfig, handler: String) -> Result<String, SandboxError> {
        if config.metadata.is_none() {
            return Err(SandboxError::Invalid("the sandbox has no metadata"));
        }
        if !handler.is_empty() {
            return Err(SandboxError::Invalid("no such runtime handler: only the default one exists"));
        }
        let id = new_id();
        let directory = self.config.root.join("sandboxes").join(&id);
        let asked = config.linux.as_ref().map(|l| l.cgroup_parent.trim_end_matches('/')).unwrap_or_default();
        let cgroup_parent = if asked.is_empty() { format!("/ferry/{id}") } else { asked.to_owned() };
        let record = SandboxRecord {
            id: id.clone(),
            created_at: now(),
            ready: false,
            ips: Vec::new(),
            runtime_handler: handler,
            owned_cgroups: cgroup::missing(&cgroup_parent),
            cgroup_parent,
            config: Encoded(config),
        };
        prepare(&directory, &record).map_err(SandboxError::Prepare)?;
        let sandbox = Sandbox::new(directory, record);
        match self.bring_up(&sandbox).await {
            Ok(()) => {
                self.pods.write().sandboxes.insert(id.clone(), sandbox);
                self.announce(&id, &id, ContainerEventType::ContainerCreatedEvent);
                self.announce(&id, &id, ContainerEventType::ContainerStartedEvent);
                Ok(id)
            }
            Err(error) => {
                // The first failure is the one worth telling.
                let mut cleaned = self.tear_down(&sandbox).await;
                if cleaned.is_ok() {
                    cleaned = self.clear_away(&sandbox).await;
                }
                if let Err(failed) = cleaned {
                    tracing::warn!(sandbox = id, error = %failed, "sandbox left traces");
                }
                Err(error)
            }
        }
    }

    async fn bring_up(&self, sandbox: &Arc<Sandbox>) -> Result<(), SandboxError> {
        self.start_shim(&sandbox.directory).await?;
        self.connect(sandbox)?;
        let record = sandbox.record();
        let mut ips = Vec::new();
        if !host_network(&record.config.0) {
            ips = self.config.network.attach(&record.id, &sandbox.netns(), &record.config.0).await?.ips;
        }
        let ready = |record: &mut SandboxRecord| {
            record.ips = ips;
            record.ready = true;
        };
        sandbox.record.update(ready).await.map_err(SandboxError::Prepare)
    }

    /// The started process forks the shim proper and ends when that one serves.
    async fn start_shim(&self, directory: &Path) -> Result<(), SandboxError> {
        let started = self
            .shim
            .command()
            .args(&self.config.shim.1)
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .await
            .map_err(|e| SandboxError::Shim(e.to_string()))?;
        match started.status.success() {
            true => Ok(()),
            false => Err(SandboxError::Shim(String::from_utf8_lossy(&started.stderr).trim().to_owned())),
        }
    }

    pub(crate) fn connect(&self, sandbox: &Arc<Sandbox>) -> Result<Arc<Link>, LinkError> {
        let (told, tell) = mpsc::unbounded_channel();
        let link = Link::connect(&sandbox.directory, told)?;
        *sandbox.link.lock() = Some(link.clone());
        tokio::spawn(follow(self.me.clone(), sandbox.clone(), tell));
        Ok(link)
    }

    /// Kills what runs, takes the pod off the network and ends its shim. Leaves the records. Safe to repeat.
    pub(crate) async fn stop_sandbox(&self, sandbox: &Arc<Sandbox>) -> Result<(), SandboxError> {
        let _one_at_a_time = sandbox.ending.lock().await;
        let was_ready = sandbox.record().ready;
        self.tear_down(sandbox).await?;
        sandbox.record.update(|record| record.ready = false).await.map_err(SandboxError::CleanUp)?;
        if was_ready {
            let id = sandbox.record().id;
            self.announce(&id, &id, ContainerEventType::ContainerStoppedEvent);
        }
        Ok(())
    }

    async fn tear_down(&self, sandbox: &Arc<Sandbox>) -> Result<(), SandboxError> {
        let record = sandbox.record();
        // A runtime that died while it made this sandbox may have left a shim that nobody is connected to.
        let known = sandbox.link.lock().take();
        let link = known.or_else(|| Link::connect(&sandbox.directory, mpsc::unbounded_channel().0).ok());
        if let Some(link) = link {
            let ended = tokio::time::timeout(SHUTDOWN_PATIENCE, link.tell(Request::Shutdown)).await;
            if !matches!(ended, Ok(Ok(()))) {
                link.kill_shim();
            }
        }
        self.bury(sandbox).await;
        if !host_network(&record.config.0) {
            self.config.network.detach(&record.id, &sandbox.netns()).await?;
        }
        unmount_below(&sandbox.directory).map_err(SandboxError::CleanUp)
    }

    /// Removes a sandbox, its containers and every trace of them.
    pub(crate) async fn remove_sandbox(&self, sandbox: &Arc<Sandbox>) -> Result<(), SandboxError> {
        self.stop_sandbox(sandbox).await?;
        let _one_at_a_time = sandbox.ending.lock().await;
        let id = sandbox.record().id;
        for container in self.containers_of(&id) {
            self.forget_container(&container);
        }
        self.clear_away(sandbox).await?;
        self.announce(&id, &id, ContainerEventType::ContainerDeletedEvent);
        self.pods.write().sandboxes.remove(&id);
        Ok(())
    }

    async fn clear_away(&self, sandbox: &Sandbox) -> Result<(), SandboxError> {
        let record = sandbox.record();
        for group in &record.owned_cgroups {
            if !cgroup::remove_if_empty(group) {
                self.hand_over(group, &record.id).await.map_err(SandboxError::CleanUp)?;
            }
        }
        disk::remove(&sandbox.directory).map_err(SandboxError::CleanUp)
    }

    /// A group this sandbox made is still in use by another pod, which must remove it in its turn.
    async fn hand_over(&self, group: &str, from: &str) -> io::Result<()> {
        let others: Vec<_> = self.pods.read().sandboxes.values().cloned().collect();
        let heir = others.into_iter().find(|other| {
            let record = other.record();
            record.id != from && Path::new(&record.cgroup_parent).starts_with(group)
        });
        match heir {
            Some(heir) => heir.record.update(|record| record.owned_cgroups.push(group.to_owned())).await,
            None => Ok(()),
        }
    }

    pub(crate) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        self.pods.read().containers.values().filter(|c| c.sandbox == sandbox).cloned().collect()
    }

    /// Ends the containers of a sandbox whose shim is gone: nothing may run without one. On disk as in memory, as after another
    /// restart nobody else could tell that they have exited.
    pub(crate) async fn bury(&self, sandbox: &Sandbox) {
        let id = sandbox.record().id;
        for container in self.containers_of(&id) {
            if container.state().has_ended() {
                continue;
            }
            cgroup::kill_async(&container.record().cgroup_path).await;
            // The shim may have written a last state that it could not send.
            let directory = container_directory(&sandbox.directory, &container.id);
            let known = read_json::<ContainerState>(&directory.join("state.json")).unwrap_or_default();
            let state = if known.has_ended() {
                known
            } else {
                let lost = ContainerState { pid: 0, started_at: known.started_at, ..ContainerState::lost(now()) };
                if let Err(error) = save(&directory, "state.json", &lost) {
                    tracing::error!(sandbox = id, container = container.id, %error, "cannot record the end of a container");
                }
                lost
            };
            if container.settle(state) {
                self.announce(&id, &container.id, ContainerEventType::ContainerStoppedEvent);
            }
        }
    }
}

/// Hears what a shim tells, as long as it and the runtime live.
async fn follow(runtime: std::sync::Weak<Runtime>, sandbox: Arc<Sandbox>, mut told: mpsc::UnboundedReceiver<Told>) {
    while let Some(told) = told.recv().await {
        let Some(runtime) = runtime.upgrade() else { return };
        let id = sandbox.record().id;
        match told {
            Told::Exited { container, state } => {
                if let Some(found) = runtime.container(&container)
                    && found.settle(state)
                {
                    runtime.announce(&id, &container, ContainerEventType::ContainerStoppedEvent);
                }
            }
            Told::Gone => {
                // An orderly end has already taken the link away.
                if sandbox.link.lock().take().is_some() {
                    tracing::warn!(sandbox = id, "the pod's shim died: its containers are ended");
                    if let Err(error) = sandbox.record.update(|record| record.ready = false).await {
                        tracing::error!(sandbox = id, %error, "cannot record the end of a sandbox");
                    }
                    runtime.bury(&sandbox).await;
                    runtime.announce(&id, &id, ContainerEventType::ContainerStoppedEvent);
                }
                return;
            }
        }
    }
}

fn prepare(directory: &Path, record: &SandboxRecord) -> io::Result<()> {
    std::fs::create_dir_all(directory.join("containers"))?;
    let config = &record.config.0;
    let options = namespace_options(config);
    let setup = PodSetup {
        hostname: config.hostname.clone(),
        host_network: options.network() == NamespaceMode::Node,
        host_ipc: options.ipc() == NamespaceMode::Node,
        share_pid: options.pid() == NamespaceMode::Pod,
        sysctls: config.linux.iter().flat_map(|l| l.sysctls.clone()).collect(),
    };
    let hostname = match setup.host_network {
        true => std::fs::read_to_string("/proc/sys/kernel/hostname")?,
        false => format!("{}\n", config.hostname),
    };
    std::fs::write(directory.join("hostname"), hostname)?;
    std::fs::write(directory.join("resolv.conf"), resolv_conf(config.dns_config.as_ref()))?;
    if !config.log_directory.is_empty() {
        std::fs::create_dir_all(&config.log_directory)?;
    }
    save(directory, "pod.json", &setup)?;
    // Durable once the sandbox is ready: before, there is nothing of it that outlives a reboot.
    disk::write_atomically(&directory.join(RECORD), &record::encode(record)?)
}

/// Nothing asked for means the host's own file.
fn resolv_conf(dns: Option<&DnsConfig>) -> String {
    let Some(dns) = dns.filter(|d| !(d.servers.is_empty() && d.searches.is_empty() && d.options.is_empty())) else {
        return std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    };
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        text.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    text
}

/// Unmounts everything at or below a directory, deepest first.
pub(crate) fn unmount_below(directory: &Path) -> io::Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| point.replace("\\040", " "));
    let mut points: Vec<String> = points.filter(|point| Path::new(point).starts_with(directory)).collect();
    points.reverse();
    for point in points {
        nix::mount::umount2(point.as_str(), nix::mount::MntFlags::MNT_DETACH)?;
    }
    Ok(())
}

/// 256 random bits, as every CRI runtime names things.
pub(crate) fn new_id() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}

pub(crate) fn now() -> i64 {
    jiff::Timestamp::now().as_nanosecond() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_written_in_the_usual_order() {
        let dns = DnsConfig {
            servers: vec!["10.96.0.10".to_owned()],
            searches: vec!["a.svc".to_owned(), "svc".to_owned()],
            options: vec!["ndots:5".to_owned()],
        };
        assert_eq!(resolv_conf(Some(&dns)), "search a.svc svc\nnameserver 10.96.0.10\noptions ndots:5\n");
    }
}
