//! A runtime in a directory of its own, with the helper as its only image, and what is needed to see that nothing stays behind.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cri::Cri;
use cri::v1::*;
use runtime::{Config, NoNetwork, ProcessConfig, Runtime};

pub const IMAGE: &str = "ferry.local/helper:test";
pub const HELPER: &str = env!("CARGO_BIN_EXE_runtime-test-helper");

pub struct Bed {
    pub runtime: Arc<Runtime>,
    pub directory: Scratch,
    /// Every cgroup of this test is below it.
    pub group: String,
}

/// A directory, and the promise that nothing outlives it: a test that fails half-way is cleaned up after by force.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let root = self.path().display().to_string();
        for (pid, _) in processes_naming(&root) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_group(&hierarchy.path().join(group_for(self.path()).trim_start_matches('/')));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for point in
            mounts.lines().rev().filter_map(|line| line.split(' ').nth(4)).filter(|point| point.starts_with(&root))
        {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

fn remove_group(group: &Path) {
    for pid in
        std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines().filter_map(|l| l.parse().ok())
    {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
        remove_group(&entry.path());
    }
    let _ = std::fs::remove_dir(group);
}

pub fn config(root: &Path) -> Config {
    Config {
        root: root.to_owned(),
        shim: (HELPER.into(), vec!["shim".into()]),
        network: Arc::new(NoNetwork),
        registry_ca: None,
        image_limits: runtime::ImageLimits::default(),
    }
}

/// The helper as an image; its layer is a link, so this costs no copy.
pub async fn add_helper(runtime: &Runtime) -> Result<()> {
    let config = ProcessConfig { entrypoint: Some(vec!["/helper".to_owned()]), ..Default::default() };
    runtime.images().add_builtin("ferry.local/helper", "test", &[(HELPER.into(), "/helper".into())], config).await?;
    Ok(())
}

impl Bed {
    pub async fn start() -> Result<Self> {
        let directory = Scratch::new()?;
        let runtime = Runtime::open(config(directory.path())).await?;
        add_helper(&runtime).await?;
        let group = group_for(directory.path());
        Ok(Self { directory, runtime, group })
    }

    pub async fn sandbox(&self, name: &str) -> Result<String> {
        self.sandbox_with(self.pod(name)).await
    }

    pub async fn sandbox_with(&self, config: PodSandboxConfig) -> Result<String> {
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        Ok(self.runtime.run_pod_sandbox(request).await?.pod_sandbox_id)
    }

    pub fn pod(&self, name: &str) -> PodSandboxConfig {
        pod(name, &self.directory.path().join("logs"), &self.group)
    }

    pub async fn create(&self, sandbox: &str, config: ContainerConfig) -> Result<String> {
        create(self.runtime.as_ref(), sandbox, config).await
    }

    /// Creates and starts a container of the helper.
    pub async fn run(&self, sandbox: &str, args: &[&str]) -> Result<String> {
        self.run_with(sandbox, container("main", args)).await
    }

    pub async fn run_with(&self, sandbox: &str, config: ContainerConfig) -> Result<String> {
        let id = self.create(sandbox, config).await?;
        self.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await?;
        Ok(id)
    }

    pub async fn status(&self, id: &str) -> Result<ContainerStatus> {
        status(self.runtime.as_ref(), id).await
    }

    pub async fn ended(&self, id: &str) -> Result<ContainerStatus> {
        ended(self.runtime.as_ref(), id).await
    }

    /// Runs a command to its end and answers its log without the time stamps.
    pub async fn output(&self, sandbox: &str, args: &[&str]) -> Result<(i32, String)> {
        let id = self.run(sandbox, args).await?;
        let status = self.ended(&id).await?;
        Ok((status.exit_code, log(&status)?))
    }

    pub async fn exec(&self, id: &str, cmd: &[&str]) -> Result<ExecSyncResponse> {
        let cmd = cmd.iter().map(|s| (*s).to_owned()).collect();
        Ok(self.runtime.exec_sync(ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: 10 }).await?)
    }

    pub async fn pid(&self, id: &str) -> Result<i32> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        Ok(self.runtime.container_status(request).await?.info.get("pid").context("no pid")?.parse()?)
    }

    /// Removes every sandbox and checks that the machine is as before.
    pub async fn finish(self) -> Result<()> {
        remove_all(self.runtime.as_ref()).await?;
        check_clean(self.directory.path(), &self.group)
    }
}

pub fn group_for(directory: &Path) -> String {
    let name = directory.file_name().and_then(|n| n.to_str()).unwrap_or("test");
    format!("/ferry-test-{}", name.trim_start_matches('.'))
}

pub fn pod(name: &str, logs: &Path, group: &str) -> PodSandboxConfig {
    let options = NamespaceOption { pid: NamespaceMode::Container.into(), ..Default::default() };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: logs.join(name).display().to_string(),
        labels: [("app".to_owned(), name.to_owned())].into(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("{group}/{name}"),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(options),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub fn container(name: &str, args: &[&str]) -> ContainerConfig {
    let options = NamespaceOption { pid: NamespaceMode::Container.into(), ..Default::default() };
    let security = LinuxContainerSecurityContext { namespace_options: Some(options), ..Default::default() };
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(ImageSpec { image: IMAGE.to_owned(), ..Default::default() }),
        args: args.iter().map(|s| (*s).to_owned()).collect(),
        log_path: format!("{name}-{}.log", uuid::Uuid::new_v4().simple()),
        linux: Some(LinuxContainerConfig { security_context: Some(security), ..Default::default() }),
        ..Default::default()
    }
}

pub fn security(config: &mut ContainerConfig) -> &mut LinuxContainerSecurityContext {
    config.linux.get_or_insert_default().security_context.get_or_insert_default()
}

pub async fn create(cri: &dyn Cri, sandbox: &str, config: ContainerConfig) -> Result<String> {
    let request =
        CreateContainerRequest { pod_sandbox_id: sandbox.to_owned(), config: Some(config), sandbox_config: None };
    Ok(cri.create_container(request).await?.container_id)
}

pub async fn status(cri: &dyn Cri, id: &str) -> Result<ContainerStatus> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    cri.container_status(request).await?.status.context("no status")
}

/// Waits for a container's end by the runtime's own events.
pub async fn ended(cri: &dyn Cri, id: &str) -> Result<ContainerStatus> {
    use futures::StreamExt;
    let mut events = cri.events().await?;
    let wait = async {
        loop {
            let now = status(cri, id).await?;
            if now.state() == ContainerState::ContainerExited {
                return Ok(now);
            }
            events.next().await.context("events ended")??;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.context("the container did not end")?
}

/// Log lines as `stream tag text`.
pub fn log(status: &ContainerStatus) -> Result<String> {
    let text = std::fs::read_to_string(&status.log_path)?;
    let mut lines = Vec::new();
    for line in text.lines() {
        let (time, rest) = line.split_once(' ').context("a log line without time")?;
        if !time.ends_with('Z') || !time.contains('T') {
            bail!("{time} is not an RFC 3339 time");
        }
        lines.push(rest.to_owned());
    }
    Ok(lines.join("\n"))
}

/// Waits until a container has written a line, by watching its log.
pub async fn logged(status: &ContainerStatus, text: &str) -> Result<()> {
    let path = PathBuf::from(&status.log_path);
    let wait = async {
        while !std::fs::read_to_string(&path).unwrap_or_default().contains(text) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.with_context(|| format!("{text:?} was not logged"))
}

pub async fn remove_all(cri: &dyn Cri) -> Result<()> {
    for sandbox in cri.list_pod_sandbox(ListPodSandboxRequest::default()).await?.items {
        cri.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() }).await?;
        cri.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: sandbox.id }).await?;
    }
    Ok(())
}

/// No mount, process, cgroup or directory of this test is left.
pub fn check_clean(root: &Path, group: &str) -> Result<()> {
    let root_text = root.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let left: Vec<_> = mounts.lines().filter(|line| line.contains(&root_text)).collect();
    anyhow::ensure!(left.is_empty(), "mounts left: {left:?}");
    let processes = processes_of(root)?;
    anyhow::ensure!(processes.is_empty(), "processes left: {processes:?}");
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup")?.flatten() {
        let path = hierarchy.path().join(group.trim_start_matches('/'));
        anyhow::ensure!(!path.exists(), "cgroup left: {}", path.display());
    }
    let sandboxes: Vec<_> = std::fs::read_dir(root.join("sandboxes"))?.flatten().map(|e| e.path()).collect();
    anyhow::ensure!(sandboxes.is_empty(), "directories left: {sandboxes:?}");
    Ok(())
}

/// Shims (and anything else) whose command line names this test's directory. A shim that was told to end may still be exiting.
pub fn processes_of(root: &Path) -> Result<Vec<String>> {
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    loop {
        let found = processes_naming(&root.display().to_string());
        if found.is_empty() || std::time::Instant::now() > deadline {
            return Ok(found.into_iter().map(|(pid, line)| format!("{pid} {line}")).collect());
        }
        std::thread::yield_now();
    }
}

/// The processes whose command line names `text` at this moment.
pub fn processes_of_now(text: &str) -> Vec<i32> {
    processes_naming(text).into_iter().map(|(pid, _)| pid).collect()
}

fn processes_naming(text: &str) -> Vec<(i32, String)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let described = processes.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    described.filter(|(_, line)| line.contains(text)).collect()
}
