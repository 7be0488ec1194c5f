//! What happens to pods when the runtime's process is killed: nothing, and the next one takes them up.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use cri::v1::*;
use cri::{Cri, Remote};
use support::*;

/// A runtime in a process of its own.
struct Served {
    process: Child,
    cri: Remote,
}

impl Served {
    async fn start(root: &Path) -> Result<Self> {
        let mut process = Command::new(HELPER).arg("serve").arg(root).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no stdout")?).read_line(&mut line)?;
        anyhow::ensure!(line.trim() == "serving", "the runtime did not come up: {line:?}");
        let cri = Remote::connect(&format!("unix://{}", root.join("cri.sock").display())).await?;
        Ok(Self { process, cri })
    }

    fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    async fn run(&self, sandbox: &str, args: &[&str]) -> Result<String> {
        let id = create(&self.cri, sandbox, container("main", args)).await?;
        self.cri.start_container(StartContainerRequest { container_id: id.clone() }).await?;
        Ok(id)
    }

    async fn pid(&self, id: &str) -> Result<String> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        Ok(self.cri.container_status(request).await?.info.get("pid").context("no pid")?.clone())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_survive_a_killed_runtime_and_are_adopted_by_the_next() -> Result<()> {
    let directory = Scratch::new()?;
    let (root, group) = (directory.path(), group_for(directory.path()));
    // The image is put there by a runtime of this process, which is gone before the other starts.
    add_helper(runtime::Runtime::open(config(root)).await?.as_ref()).await?;
    let first = Served::start(root).await?;
    let mut running = Vec::new();
    for n in 0..10 {
        let request = RunPodSandboxRequest {
            config: Some(pod(&format!("pod-{n}"), &root.join("logs"), &group)),
            ..Default::default()
        };
        let sandbox = first.cri.run_pod_sandbox(request).await?.pod_sandbox_id;
        let id = first.run(&sandbox, &["sleep"]).await?;
        running.push((sandbox, id.clone(), first.pid(&id).await?));
    }
    let ending = first.run(&running[0].0, &["exit-after", "300", "42"]).await?;
    let chatty = first.run(&running[1].0, &["on-term", "5"]).await?;
    logged(&status(&first.cri, &chatty).await?, "ready").await?;
    first.kill()?;

    let second = Served::start(root).await?;
    for (sandbox, id, pid) in &running {
        assert_eq!(second.pid(id).await?, *pid);
        assert_eq!(status(&second.cri, id).await?.state(), ContainerState::ContainerRunning);
        assert!(Path::new("/proc").join(pid).exists());
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
        let found = second.cri.pod_sandbox_status(request).await?.status.context("no status")?;
        assert_eq!(found.state(), PodSandboxState::SandboxReady);
    }
    // The exit that nobody watched, or that happens just now, has its true code.
    assert_eq!(ended(&second.cri, &ending).await?.exit_code, 42);
    // Logs and control go on.
    second.cri.stop_container(StopContainerRequest { container_id: chatty.clone(), timeout: 10 }).await?;
    let stopped = status(&second.cri, &chatty).await?;
    assert_eq!(stopped.exit_code, 5);
    assert!(log(&stopped)?.ends_with("stdout F terminating"));
    let exec = ExecSyncRequest {
        container_id: running[0].1.clone(),
        cmd: vec!["/helper".to_owned(), "exit".to_owned(), "4".to_owned()],
        timeout: 10,
    };
    assert_eq!(second.cri.exec_sync(exec).await?.exit_code, 4);
    remove_all(&second.cri).await?;
    second.kill()?;
    check_clean(root, &group)
}

/// What a power cut or a bad disk may leave of a record.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Empty,
    Half,
    Garbage,
    Newer,
}

impl Damage {
    fn apply(self, file: &Path) -> Result<()> {
        let whole = std::fs::read(file).with_context(|| file.display().to_string())?;
        let damaged = match self {
            Self::Empty => Vec::new(),
            Self::Half => whole.split_at(whole.len() / 2).0.to_vec(),
            Self::Garbage => vec![0; whole.len()],
            Self::Newer => br#"{"version":4000000000}"#.to_vec(),
        };
        Ok(std::fs::write(file, damaged)?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_is_moved_aside_and_everything_else_starts() -> Result<()> {
    for damage in [Damage::Empty, Damage::Half, Damage::Garbage, Damage::Newer] {
        recover_from(damage).await.with_context(|| format!("{damage:?}"))?;
    }
    Ok(())
}

async fn recover_from(damage: Damage) -> Result<()> {
    let directory = Scratch::new()?;
    let (root, group) = (directory.path(), group_for(directory.path()));
    add_helper(runtime::Runtime::open(config(root)).await?.as_ref()).await?;
    let first = Served::start(root).await?;
    let mut pods = Vec::new();
    for name in ["healthy", "sandbox", "container", "state", "lost"] {
        let request =
            RunPodSandboxRequest { config: Some(pod(name, &root.join("logs"), &group)), ..Default::default() };
        let sandbox = first.cri.run_pod_sandbox(request).await?.pod_sandbox_id;
        let id = first.run(&sandbox, &["sleep"]).await?;
        let pid = first.pid(&id).await?;
        pods.push((sandbox, id, pid));
    }
    let [healthy, sandbox, container, state, lost] = &pods[..] else { anyhow::bail!("five pods") };
    let sibling = first.run(&container.0, &["sleep"]).await?;
    let sibling_pid = first.pid(&sibling).await?;
    first.kill()?;
    let of =
        |(sandbox, id, _): &(String, String, String)| root.join("sandboxes").join(sandbox).join("containers").join(id);
    damage.apply(&root.join("sandboxes").join(&sandbox.0).join("sandbox.json"))?;
    damage.apply(&of(container).join("container.json"))?;
    damage.apply(&of(state).join("state.json"))?;
    damage.apply(&of(lost).join("state.json"))?;
    for shim in processes_of_now(&root.join("sandboxes").join(&lost.0).display().to_string()) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::Signal::SIGKILL)?;
    }

    let second = Served::start(root).await?;
    for (id, pid) in [(&healthy.1, &healthy.2), (&sibling, &sibling_pid), (&state.1, &state.2)] {
        assert_eq!(second.pid(id).await?, *pid);
        assert_eq!(status(&second.cri, id).await?.state(), ContainerState::ContainerRunning);
    }
    let ended = status(&second.cri, &lost.1).await?;
    assert_eq!((ended.exit_code, ended.state()), (255, ContainerState::ContainerExited));
    let listed = second.cri.list_pod_sandbox(ListPodSandboxRequest::default()).await?.items;
    assert_eq!(listed.len(), 4);
    assert!(listed.iter().all(|item| item.id != sandbox.0));
    for (sandbox, id, pid) in [sandbox, container] {
        assert!(status(&second.cri, id).await.is_err(), "it has no record");
        // Dead: a process that is not reaped yet has no command line.
        assert!(std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty());
        assert!(!root.join("sandboxes").join(sandbox).join("containers").join(id).exists());
    }
    let aside = std::fs::read_dir(root.join("damaged"))?.count();
    assert_eq!(aside, 4);
    // The pod whose container was lost gets another.
    let again = second.run(&container.0, &["sleep"]).await?;
    assert_eq!(status(&second.cri, &again).await?.state(), ContainerState::ContainerRunning);
    remove_all(&second.cri).await?;
    second.kill()?;
    check_clean(root, &group)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_and_a_dead_shim_while_nobody_watched_are_both_told() -> Result<()> {
    let directory = Scratch::new()?;
    let (root, group) = (directory.path(), group_for(directory.path()));
    add_helper(runtime::Runtime::open(config(root)).await?.as_ref()).await?;
    let first = Served::start(root).await?;
    let mut sandboxes = Vec::new();
    for name in ["a", "b"] {
        let request =
            RunPodSandboxRequest { config: Some(pod(name, &root.join("logs"), &group)), ..Default::default() };
        sandboxes.push(first.cri.run_pod_sandbox(request).await?.pod_sandbox_id);
    }
    let orderly = first.run(&sandboxes[0], &["on-term", "42"]).await?;
    logged(&status(&first.cri, &orderly).await?, "ready").await?;
    let orphan = first.run(&sandboxes[1], &["sleep"]).await?;
    let (orderly_pid, orphan_pid) = (first.pid(&orderly).await?, first.pid(&orphan).await?);
    let stat = std::fs::read_to_string(format!("/proc/{orphan_pid}/stat"))?;
    let shim = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).context("no parent")?.to_owned();
    first.kill()?;
    let signal = |pid: &str, signal| -> Result<()> {
        Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.parse()?), signal)?)
    };
    signal(&orderly_pid, nix::sys::signal::Signal::SIGTERM)?;
    signal(&shim, nix::sys::signal::Signal::SIGKILL)?;
    let state = root.join("sandboxes").join(&sandboxes[0]).join("containers").join(&orderly).join("state.json");
    while !std::fs::read_to_string(&state)?.contains("\"exit_code\":42") {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }

    let second = Served::start(root).await?;
    assert_eq!(status(&second.cri, &orderly).await?.exit_code, 42);
    let lost = status(&second.cri, &orphan).await?;
    assert_eq!((lost.exit_code, lost.state()), (255, ContainerState::ContainerExited));
    remove_all(&second.cri).await?;
    // Its new parent may not have reaped it yet, but it is dead: it has no command line any more.
    let left = std::fs::read(format!("/proc/{orphan_pid}/cmdline")).unwrap_or_default();
    assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
    second.kill()?;
    check_clean(root, &group)
}
