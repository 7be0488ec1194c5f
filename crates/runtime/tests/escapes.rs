//! Known ways out of a container, tried on this runtime. Each test names the CVEs that it repeats.

#[path = "support/archive.rs"]
mod archive;
mod support;

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
