//! Containers that do all they can to stay: the runtime still serves its other calls, ends them and removes every trace.

mod support;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cri::Cri;
use cri::v1::*;
use support::*;

/// The shim of this test's only sandbox.
fn shim_of(bed: &Bed, sandbox: &str) -> Result<nix::unistd::Pid> {
    let directory = bed.directory.path().join("sandboxes").join(sandbox).display().to_string();
    let shim = processes_of_now(&directory).into_iter().next().context("no shim")?;
    Ok(nix::unistd::Pid::from_raw(shim))
}

fn send(shim: nix::unistd::Pid, signal: nix::sys::signal::Signal) -> Result<()> {
    Ok(nix::sys::signal::kill(shim, signal)?)
}

async fn stop(bed: &Bed, id: &str, timeout: i64) -> Result<Duration> {
    let begun = Instant::now();
    bed.runtime.stop_container(StopContainerRequest { container_id: id.to_owned(), timeout }).await?;
    Ok(begun.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_never_stops_writing_is_served_and_stopped() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("flood").await?;
    let id = bed.run(&sandbox, &["flood"]).await?;
    let status = bed.status(&id).await?;
    let begun = Instant::now();
    let answer = bed.exec(&id, &["/helper", "echo", "still", "here"]).await?;
    assert_eq!(answer.stdout, b"still here\n");
    std::fs::remove_file(&status.log_path)?;
    bed.runtime.reopen_container_log(ReopenContainerLogRequest { container_id: id.clone() }).await?;
    assert!(std::path::Path::new(&status.log_path).exists());
    assert!(begun.elapsed() < Duration::from_secs(5), "exec and reopen took {:?}", begun.elapsed());
    let took = stop(&bed, &id, 1).await?;
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(bed.status(&id).await?.exit_code, 137);
    bed.finish().await
}

/// Until somebody rotates it, a log does not grow beyond twice the size from which it is rotated; then it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_waits_for_its_log_to_be_rotated() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("flood").await?;
    let mut config = container("main", &["flood"]);
    config.annotations.insert(cri::LOG_MAX_SIZE.to_owned(), (1 << 20).to_string());
    let id = bed.run_with(&sandbox, config).await?;
    let log = bed.status(&id).await?.log_path;
    let size = || std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    for round in 0..3 {
        let full = async {
            while size() < 2 << 20 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), full)
            .await
            .with_context(|| format!("round {round}: {}", size()))?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(size() < 4 << 20, "round {round}: {}", size());
        assert_eq!(bed.exec(&id, &["/helper", "echo", "hi"]).await?.stdout, b"hi\n");
        std::fs::rename(&log, format!("{log}.{round}"))?;
        bed.runtime.reopen_container_log(ReopenContainerLogRequest { container_id: id.clone() }).await?;
    }
    assert!(stop(&bed, &id, 1).await? < Duration::from_secs(4));
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_is_killed_whole() -> Result<()> {
    let bed = Bed::start().await?;
    // Processes of a shared pid namespace do not die with the container's first one.
    let options = NamespaceOption { pid: NamespaceMode::Pod.into(), ..Default::default() };
    let mut pod = bed.pod("bomb");
    let linux = pod.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().namespace_options = Some(options.clone());
    let sandbox = bed.sandbox_with(pod).await?;
    let mut config = container("main", &["breed"]);
    security(&mut config).namespace_options = Some(options);
    let id = bed.create(&sandbox, config).await?;
    bed.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await?;
    for hierarchy in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
        let group = std::path::Path::new(hierarchy).join(bed.group.trim_start_matches('/'));
        let _ = std::fs::write(group.join("pids.max"), "2000");
    }
    logged(&bed.status(&id).await?, "breeding").await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let took = stop(&bed, &id, 0).await?;
    assert!(took < Duration::from_secs(15), "{took:?}");
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_shim_is_stopped_is_killed_through_its_cgroup() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("stuck").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    let pid = bed.pid(&id).await?;
    send(shim_of(&bed, &sandbox)?, nix::sys::signal::Signal::SIGSTOP)?;
    let took = stop(&bed, &id, 1).await?;
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(!std::path::Path::new(&format!("/proc/{pid}/root")).exists(), "the container runs still");
    assert_eq!(bed.status(&id).await?.state(), ContainerState::ContainerExited);
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_containers_of_a_dead_shim_have_exited_for_the_next_runtime_too() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("orphan").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    send(shim_of(&bed, &sandbox)?, nix::sys::signal::Signal::SIGKILL)?;
    assert_eq!(bed.ended(&id).await?.exit_code, 255);
    let second = runtime::Runtime::open(config(bed.directory.path())).await?;
    let seen = status(second.as_ref(), &id).await?;
    assert_eq!((seen.state(), seen.exit_code), (ContainerState::ContainerExited, 255));
    second.stop_container(StopContainerRequest { container_id: id.clone(), timeout: 1 }).await?;
    second.remove_container(RemoveContainerRequest { container_id: id }).await?;
    remove_all(second.as_ref()).await?;
    check_clean(bed.directory.path(), &bed.group)
}
