//! Images from archives and registries.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Cluster, Process, eventually, ferry_binary, output, run};

const REGISTRY: &str = "127.0.0.1:15999";

/// A one-layer OCI archive with the ferry binary in it, made with what every Debian has.
fn archive(dir: &Path) -> Result<String> {
    let layout = dir.join("layout");
    std::fs::create_dir_all(layout.join("blobs/sha256"))?;
    let root = dir.join("root");
    std::fs::create_dir_all(&root)?;
    std::fs::copy(ferry_binary(), root.join("tool"))?;
    let layer = dir.join("layer.tar");
    run("tar", &["-C", &text(&root)?, "-cf", &text(&layer)?, "tool"])?;
    let blob = |path: &Path| -> Result<(String, u64)> {
        let sum = run("sha256sum", &[&text(path)?])?;
        let digest = sum.split(' ').next().context("sum")?.to_owned();
        let size = std::fs::metadata(path)?.len();
        std::fs::copy(path, layout.join("blobs/sha256").join(&digest))?;
        Ok((digest, size))
    };
    let (layer_digest, layer_size) = blob(&layer)?;
    let config = dir.join("config.json");
    std::fs::write(
        &config,
        format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"Entrypoint":["/tool"],"Cmd":["hello"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{layer_digest}"]}}}}"#
        ),
    )?;
    let (config_digest, config_size) = blob(&config)?;
    let manifest = dir.join("manifest.json");
    std::fs::write(
        &manifest,
        format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:{config_digest}","size":{config_size}}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:{layer_digest}","size":{layer_size}}}]}}"#
        ),
    )?;
    let (manifest_digest, manifest_size) = blob(&manifest)?;
    std::fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    std::fs::write(
        layout.join("index.json"),
        format!(
            r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:{manifest_digest}","size":{manifest_size},"annotations":{{"org.opencontainers.image.ref.name":"example.com/tool:1"}}}}]}}"#
        ),
    )?;
    let out = text(&dir.join("tool.tar"))?;
    run("tar", &["-C", &text(&layout)?, "-cf", &out, "."])?;
    Ok(out)
}

fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().context("UTF-8 path")?.to_owned())
}

#[test]
fn images_come_from_archives_and_registries() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let archive = archive(dir.path())?;
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
