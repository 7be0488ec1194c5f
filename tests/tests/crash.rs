//! Containers outlive ferry: `kill -9` and a new start find the same processes.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cluster, Leaks, eventually, hello_pids};

#[test]
fn ten_pods_survive_kill_9() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    let cluster = Cluster::start(dir.path())?;
    cluster.kubectl(&["create", "deployment", "hello", "--image=ferry.local/hello:0.1.0", "--replicas=10"])?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=60s"])?;
    // A container runs from the moment on at which it is let go; that it has become its program is seen a little later.
    let before = eventually("ten containers run", Duration::from_secs(5), || {
        let pids = hello_pids();
        Ok((pids.len() == 10).then_some(pids))
    })?;
    let uids = cluster.jsonpath("pods -l app=hello --sort-by=.metadata.name", "{.items[*].metadata.uid}")?;
    cluster.kill()?;
    ensure!(hello_pids() == before, "the containers must not notice");

    let cluster = Cluster::start(dir.path())?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "-l", "app=hello", "--timeout=30s"])?;
    ensure!(hello_pids() == before, "the same processes, none started twice: {before:?} {:?}", hello_pids());
    ensure!(uids == cluster.jsonpath("pods -l app=hello --sort-by=.metadata.name", "{.items[*].metadata.uid}")?);
    let restarts = cluster.jsonpath("pods -l app=hello", "{.items[*].status.containerStatuses[0].restartCount}")?;
    ensure!(restarts.split(' ').all(|count| count == "0"), "{restarts}");

    cluster.kubectl(&["delete", "deployment", "hello"])?;
    cluster.kubectl(&["wait", "--for=delete", "pod", "-l", "app=hello", "--timeout=60s"])?;
    eventually("no container is left", Duration::from_secs(5), || Ok(hello_pids().is_empty().then_some(())))?;
    cluster.stop()?;
    leaks.none_since()
}

/// `--keep-pods`: stopping ferry leaves the pods, the next start adopts them.
#[test]
fn kept_pods_are_adopted() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    let keep = e2e::Options { arguments: vec!["--keep-pods".into()] };
    let cluster = Cluster::start_with(dir.path(), &keep)?;
    cluster.kubectl(&["create", "deployment", "hello", "--image=ferry.local/hello:0.1.0"])?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=60s"])?;
    let before = eventually("a container runs", Duration::from_secs(5), || {
        let pids = hello_pids();
        Ok((pids.len() == 1).then_some(pids))
    })?;
    cluster.stop()?;
    ensure!(hello_pids() == before, "{before:?}");
    let cluster = Cluster::start(dir.path())?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "-l", "app=hello", "--timeout=30s"])?;
    ensure!(hello_pids() == before);
    cluster.stop()?;
    ensure!(hello_pids().is_empty(), "without --keep-pods the containers go with ferry");
    leaks.none_since()
}
