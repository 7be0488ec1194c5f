//! Images from archives and registries.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cluster, Process, archive, eventually, ferry_binary, output, run, text};

const REGISTRY: &str = "127.0.0.1:15999";

#[test]
fn images_come_from_archives_and_registries() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let archive = archive(dir.path(), "example.com/tool:1", &["hello"])?;
    let cluster = Cluster::start(dir.path())?;
    let data = text(&cluster.dir.join("data"))?;
    let ferry = text(&ferry_binary())?;

    let said = run(&ferry, &["image", "--data-dir", &data, "import", &archive])?;
    ensure!(said.contains("example.com/tool:1"), "{said}");
    let listed = run(&ferry, &["image", "--data-dir", &data, "list"])?;
    ensure!(listed.contains("example.com/tool:1") && listed.contains("ferry.local/hello:latest"), "{listed}");
    cluster.kubectl(&["run", "imported", "--image=example.com/tool:1"])?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/imported", "--timeout=20s"])?;
    let broken = output(&ferry, &["image", "--data-dir", &data, "import", "/etc/passwd"])?;
    ensure!(!broken.status.success(), "a file that is no archive must be refused");

    let config = dir.path().join("registry.yml");
    let storage = text(&dir.path().join("registry"))?;
    std::fs::write(
        &config,
        format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {storage}}}}}\nhttp: {{addr: \"{REGISTRY}\"}}\n"
        ),
    )?;
    let mut registry = Process::start(
        Path::new("/usr/bin/docker-registry"),
        &["serve", &text(&config)?],
        &dir.path().join("registry.log"),
    )?;
    eventually("the registry listens", Duration::from_secs(10), || {
        registry.is_running()?;
        Ok(std::net::TcpStream::connect(REGISTRY).ok().map(|_| ()))
    })?;
    let target = format!("docker://{REGISTRY}/tool:1");
    run("skopeo", &["copy", "--dest-tls-verify=false", &format!("oci-archive:{archive}"), &target])?;
    let digest = run("skopeo", &["inspect", "--tls-verify=false", "--format={{.Digest}}", &target])?;
    for (name, image) in
        [("by-tag", format!("{REGISTRY}/tool:1")), ("by-digest", format!("{REGISTRY}/tool@{}", digest.trim()))]
    {
        cluster.kubectl(&["run", name, "--image", &image])?;
        cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=20s"])?;
    }
    let events = cluster.kubectl(&["describe", "pod", "by-tag"])?;
    ensure!(events.contains("Successfully pulled image"), "{events}");
    cluster.kubectl(&["delete", "pod", "--all", "--timeout=60s"])?;
    run(&ferry, &["image", "--data-dir", &data, "remove", &format!("{REGISTRY}/tool:1")])?;
    let listed = run(&ferry, &["image", "--data-dir", &data, "list"])?;
    ensure!(!listed.contains(&format!("{REGISTRY}/tool:1")), "{listed}");
    cluster.stop()
}
