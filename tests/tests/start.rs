//! A start that does not come to its end: whatever stopped it, nothing is left behind and the next one works.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::{Cluster, Leaks, ferry_binary};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn up(dir: &Path) -> Command {
    let mut command = Command::new(ferry_binary());
    command.arg("up").arg("--data-dir").arg(dir.join("data")).arg("--kubeconfig").arg(dir.join("kubeconfig"));
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn a_start_that_fails_late_leaves_nothing() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    std::fs::create_dir_all(dir.path().join("data"))?;
    // The container runtime opens after the store, the API server, the controllers and the pod network.
    let in_the_way = dir.path().join("data/runtime");
    std::fs::write(&in_the_way, "not a directory")?;
    let output = up(dir.path()).output()?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && told.contains("pod network"), "{told}");
    ensure!(told.contains(&in_the_way.display().to_string()), "{told}");
    leaks.none_since()?;
    ensure!(!dir.path().join("kubeconfig").exists(), "a cluster that did not start became the current one");
    std::fs::remove_file(&in_the_way)?;
    Cluster::start(dir.path())?.stop()?;
    leaks.none_since()
}

/// Ctrl-C at each line that a start prints.
#[test]
fn a_start_can_be_interrupted_at_any_point() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    let mut interrupted = Vec::new();
    for stop_at in ["store", "API server", "pod network", "container runtime", "node", "cluster DNS"] {
        let mut child = up(dir.path()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("stderr")?).lines();
        let seen = lines.by_ref().map_while(Result::ok).any(|line| line.contains(stop_at));
        ensure!(seen, "no line about {stop_at}");
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let status = child.wait()?;
        ensure!(status.success(), "interrupted after {stop_at}: {status}\n{}", rest.join("\n"));
        ensure!(rest.iter().any(|line| line.contains("stopped")), "after {stop_at}:\n{}", rest.join("\n"));
        leaks.none_since().with_context(|| format!("interrupted after {stop_at}"))?;
        interrupted.push(stop_at);
    }
    println!("interrupted after {interrupted:?}");
    Cluster::start(dir.path())?.stop()
}
