//! Known ways out of a container, tried on this runtime. Each test names the CVEs that it repeats.

#[path = "support/archive.rs"]
mod archive;
mod support;

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use archive::{Layer, Packing};
use cri::Cri;
use cri::v1::*;
use serde_json::json;
use support::*;

const HOSTILE: &str = "example.com/hostile:1";

/// Imports an image of the helper and what `add` puts beside it.
async fn import(bed: &Bed, process: serde_json::Value, add: impl FnOnce(Layer) -> Result<Layer>) -> Result<()> {
    let layer = add(Layer::new().copy("helper", HELPER.as_ref())?)?.pack(Packing::Plain)?;
    let path = bed.directory.path().join("image.tar");
    std::fs::write(&path, archive::oci(HOSTILE, &[layer], process)?)?;
    bed.runtime.images().import(&path).await?;
    Ok(())
}

fn hostile(args: &[&str]) -> ContainerConfig {
    let command = ["/helper"].iter().chain(args).map(|word| (*word).to_owned()).collect();
    let image = Some(ImageSpec { image: HOSTILE.to_owned(), ..Default::default() });
    ContainerConfig { image, command, ..container("main", &[]) }
}

async fn refusal(bed: &Bed, sandbox: &str, config: ContainerConfig) -> Result<String> {
    let id = bed.create(sandbox, config).await?;
    let started = bed.runtime.start_container(StartContainerRequest { container_id: id }).await;
    Ok(started.err().context("it started")?.message().to_owned())
}

/// CVE-2019-16884, CVE-2019-19921, CVE-2023-27561, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579: links of an image
/// decide where the runtime mounts `/proc`, `/sys` and `/dev`, and where it removes and makes device links.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_whose_proc_sys_or_dev_is_a_link_does_not_start() -> Result<()> {
    let bed = Bed::start().await?;
    let outside = bed.directory.path().join("outside");
    std::fs::create_dir(&outside)?;
    std::fs::write(outside.join("ptmx"), "")?;
    for name in ["proc", "sys", "dev"] {
        for to in [outside.to_str().context("UTF-8")?, "/etc", "somewhere"] {
            import(&bed, json!({}), |layer| layer.directory("etc/", 0o755)?.symlink(name, to)).await?;
            let sandbox = bed.sandbox(&format!("pod-{name}")).await?;
            let reason = refusal(&bed, &sandbox, hostile(&["echo", "hi"])).await?;
            assert!(reason.contains(&format!("the image's /{name} is a symbolic link")), "{name} -> {to}: {reason}");
            remove_all(bed.runtime.as_ref()).await?;
        }
    }
    let left: Vec<_> = std::fs::read_dir(&outside)?.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["ptmx"], "something was changed outside of the container");
    assert!(std::fs::symlink_metadata(outside.join("ptmx"))?.is_file());
    bed.finish().await
}

/// CVE-2019-19921, CVE-2023-28642: a volume over `/proc` takes the place of what the runtime masks and labels there.
#[tokio::test(flavor = "multi_thread")]
async fn no_volume_is_mounted_over_proc() -> Result<()> {
    let bed = Bed::start().await?;
    import(&bed, json!({}), |layer| layer.symlink("data", "/proc/sys/kernel")).await?;
    let volume = bed.directory.path().join("volume");
    std::fs::create_dir(&volume)?;
    for path in ["/proc", "/proc/self", "/proc/sys", "/data", "/data/below"] {
        let sandbox = bed.sandbox("pod").await?;
        let host_path = volume.display().to_string();
        let mount = Mount { container_path: path.to_owned(), host_path, ..Default::default() };
        let config = ContainerConfig { mounts: vec![mount], ..hostile(&["echo", "hi"]) };
        let reason = refusal(&bed, &sandbox, config).await?;
        assert!(reason.contains("only files that report figures may be replaced in /proc"), "{path}: {reason}");
        remove_all(bed.runtime.as_ref()).await?;
    }
    bed.finish().await
}

/// CVE-2019-5736: a process of the container makes one that enters it execute `/proc/self/exe`, and writes to what that is.
#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_program_cannot_be_overwritten_from_a_container() -> Result<()> {
    let bed = Bed::start().await?;
    import(&bed, json!({}), |layer| layer.symlink("trap", "/proc/self/exe")).await?;
    let sandbox = bed.sandbox("pod").await?;
    let id = bed.run_with(&sandbox, hostile(&["sleep"])).await?;
    for program in ["/trap", "/proc/self/exe"] {
        let answer = bed.exec(&id, &[program, "overwrite", "/proc/self/exe"]).await?;
        assert_eq!(String::from_utf8(answer.stdout)?, "ReadOnlyFilesystem\n", "{program}");
    }
    let directory = bed.directory.path().join("sandboxes").join(&sandbox).display().to_string();
    for pid in processes_of_now(&directory) {
        let opened = std::fs::OpenOptions::new().write(true).truncate(true).open(format!("/proc/{pid}/exe"));
        assert_eq!(opened.map(drop).map_err(|error| error.kind()), Err(std::io::ErrorKind::ReadOnlyFilesystem));
    }
    bed.finish().await
}

/// CVE-2024-21626, CVE-2016-9962: a descriptor of the host that a container inherits leads out, as does a working directory below it.
#[tokio::test(flavor = "multi_thread")]
async fn no_descriptor_of_the_host_reaches_a_container() -> Result<()> {
    let bed = Bed::start().await?;
    import(&bed, json!({}), Ok).await?;
    let sandbox = bed.sandbox("pod").await?;
    let id = bed.run_with(&sandbox, hostile(&["sleep"])).await?;
    let answer = bed.exec(&id, &["/helper", "list", "/proc/1/fd"]).await?;
    assert_eq!(String::from_utf8(answer.stdout)?.trim(), "0 1 2");
    let answer = bed.exec(&id, &["/helper", "list", "/proc/self/fd"]).await?;
    // The fourth is the directory that is being listed.
    assert_eq!(String::from_utf8(answer.stdout)?.trim(), "0 1 2 3");
    for fd in 3..12 {
        let working_dir = format!("/proc/self/fd/{fd}");
        let config = ContainerConfig { working_dir, ..hostile(&["list", "."]) };
        let id = bed.create(&sandbox, config).await?;
        let started = bed.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await;
        if started.is_ok() {
            let seen = log(&bed.ended(&id).await?)?;
            assert!(!seen.contains("containers") && !seen.contains("helper"), "descriptor {fd} leads to {seen}");
        }
    }
    bed.finish().await
}

/// CVE-2022-24769, CVE-2022-29162, CVE-2022-0532: inheritable capabilities let an unprivileged process gain them from files.
#[tokio::test(flavor = "multi_thread")]
async fn no_capability_is_inheritable() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("pod").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    let of_main = std::fs::read_to_string(format!("/proc/{}/status", bed.pid(&id).await?))?;
    let of_exec = String::from_utf8(bed.exec(&id, &["/helper", "read", "/proc/self/status"]).await?.stdout)?;
    for status in [of_main, of_exec] {
        let mask = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        assert_eq!((mask("CapInh:"), mask("CapAmb:")), (Some("0000000000000000"), Some("0000000000000000")));
        assert_ne!(mask("CapEff:"), Some("0000000000000000"));
    }
    bed.finish().await
}

/// CVE-2020-15257, CVE-2021-41103, CVE-2024-25621: other users of the node reach setuid programs of images, sockets and volumes.
#[tokio::test(flavor = "multi_thread")]
async fn other_users_of_the_node_reach_no_state_and_no_socket() -> Result<()> {
    let directory = Scratch::new()?;
    let mode = |path: &std::path::Path| std::fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
    for name in ["images", "sandboxes"] {
        // As an older release left it.
        std::fs::create_dir(directory.path().join(name))?;
        std::fs::set_permissions(directory.path().join(name), std::fs::Permissions::from_mode(0o755))?;
    }
    let runtime = runtime::Runtime::open(config(directory.path())).await?;
    for name in ["images", "sandboxes"] {
        assert_eq!(mode(&directory.path().join(name))?, 0o700, "{name}");
    }
    let group = group_for(directory.path());
    let request =
        RunPodSandboxRequest { config: Some(pod("pod", &directory.path().join("logs"), &group)), ..Default::default() };
    let id = runtime.run_pod_sandbox(request).await?.pod_sandbox_id;
    assert_eq!(mode(&directory.path().join("sandboxes").join(id).join("shim.sock"))?, 0o600);
    remove_all(runtime.as_ref()).await?;
    check_clean(directory.path(), &group)
}

/// CVE-2020-8557 and what is like it: files that the runtime makes for a pod fill the node's disk, outside of every limit.
#[tokio::test(flavor = "multi_thread")]
async fn the_files_a_pod_may_write_are_bounded() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("pod").await?;
    for file in ["/etc/resolv.conf", "/etc/hostname"] {
        let (_, output) = bed.output(&sandbox, &["fill", file]).await?;
        assert!(output.ends_with("StorageFull))"), "{file}: {output}");
    }
    bed.finish().await
}

/// CVE-2022-0811, CVE-2022-0532: what a pod sets as a sysctl, or calls one, changes the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_sysctl_changes_nothing_but_the_pods_own() -> Result<()> {
    let bed = Bed::start().await?;
    let seen = |name: &str| std::fs::read_to_string(format!("/proc/sys/{name}"));
    let nodes = ["kernel/core_pattern", "kernel/shm_rmid_forced", "vm/swappiness"];
    let before: Vec<_> = nodes.iter().map(|name| seen(name)).collect::<Result<_, _>>()?;
    for (name, value) in [
        ("kernel.shm_rmid_forced", "1+kernel.core_pattern=|/evil"),
        ("kernel.core_pattern", "|/evil"),
        ("kernel/core_pattern", "|/evil"),
        ("kernel.shm/../core_pattern", "|/evil"),
        ("net.../kernel.core_pattern", "|/evil"),
        ("vm.swappiness", "1"),
    ] {
        let mut pod = bed.pod("pod");
        pod.linux.get_or_insert_default().sysctls.insert(name.to_owned(), value.to_owned());
        assert!(bed.sandbox_with(pod).await.is_err(), "{name}={value}");
    }
    let mut pod = bed.pod("pod");
    pod.linux.get_or_insert_default().sysctls.insert("kernel.shm_rmid_forced".to_owned(), "1".to_owned());
    let sandbox = bed.sandbox_with(pod).await?;
    let (_, own) = bed.output(&sandbox, &["read", "/proc/sys/kernel/shm_rmid_forced"]).await?;
    assert!(own.ends_with('1'), "{own}");
    let after: Vec<_> = nodes.iter().map(|name| seen(name)).collect::<Result<_, _>>()?;
    assert_eq!(after, before);
    bed.finish().await
}

/// CVE-2023-25173, CVE-2022-2995: without its primary group among the supplementary ones, a process gets past permissions that deny it.
#[tokio::test(flavor = "multi_thread")]
async fn the_primary_group_is_a_supplementary_one_too() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("pod").await?;
    let mut config = container("main", &["read", "/proc/self/status"]);
    let security = security(&mut config);
    security.run_as_user = Some(Int64Value { value: 1000 });
    security.run_as_group = Some(Int64Value { value: 2000 });
    security.supplemental_groups = vec![3000];
    let id = bed.run_with(&sandbox, config).await?;
    let seen = log(&bed.ended(&id).await?)?;
    assert!(seen.lines().any(|line| line.trim_end().ends_with("Groups:\t2000 3000")), "{seen}");
    bed.finish().await
}

/// CVE-2021-21334: of two containers of an image, started at once, one got the environment of the other.
#[tokio::test(flavor = "multi_thread")]
async fn containers_of_one_image_share_no_environment() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("pod").await?;
    let run = async |name: &str| -> Result<String> {
        let secret = KeyValue { key: "SECRET".to_owned(), value: name.as_bytes().to_vec() };
        let id = bed.run_with(&sandbox, ContainerConfig { envs: vec![secret], ..container(name, &["env"]) }).await?;
        log(&bed.ended(&id).await?)
    };
    let (first, second) = tokio::try_join!(run("first"), run("second"))?;
    assert!(first.contains("SECRET=first") && !first.contains("second"), "{first}");
    assert!(second.contains("SECRET=second") && !second.contains("first"), "{second}");
    bed.finish().await
}

/// CVE-2022-31030, CVE-2022-1708: an exec that writes without end took the runtime's memory.
#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_an_exec_is_bounded() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("pod").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    let answer = bed.exec(&id, &["/helper", "lines", "200000"]).await?;
    assert_eq!(answer.stdout.len(), 256 << 10);
    bed.finish().await
}

/// CVE-2025-4437, CVE-2026-47262: files of an image were read whole into memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_user_file_of_an_image_is_not_read_whole() -> Result<()> {
    let bed = Bed::start().await?;
    let line = "x:x:1:1:::\n";
    let passwd = line.repeat((8 << 20) / line.len()) + "late:x:7:7:::\n";
    import(&bed, json!({ "User": "late" }), |layer| layer.file("etc/passwd", 0o644, &passwd)).await?;
    let sandbox = bed.sandbox("pod").await?;
    let failed = bed.create(&sandbox, hostile(&["echo"])).await.err().context("the end of the file was read")?;
    assert!(format!("{failed:#}").contains("no matching entries in passwd file"), "{failed:#}");
    bed.finish().await
}

/// CVE-2020-15257: a container on the node's network reached the runtime through an abstract socket.
#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_has_no_abstract_socket() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("pod").await?;
    bed.run(&sandbox, &["sleep"]).await?;
    let root = bed.directory.path().display().to_string();
    let sockets = std::fs::read_to_string("/proc/self/net/unix")?;
    let named: Vec<_> = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)).collect();
    assert!(named.iter().any(|name| name.ends_with("shim.sock")), "the shim's socket is not in the list");
    assert!(!named.iter().any(|name| name.starts_with('@') && name.contains(&root)));
    bed.finish().await
}
