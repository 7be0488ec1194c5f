//! Pulling from a real registry on loopback: Debian's `docker-registry`, filled with `skopeo`.

#![allow(clippy::indexing_slicing)]

#[path = "support/archive.rs"]
mod archive;
mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use archive::{Layer, Packing};
use runtime::{Config, Credentials, ImageLimits, Runtime};
use serde_json::json;
use support::*;

/// User `user`, password `secret`, as `htpasswd -nbB` writes them.
const HTPASSWD: &str = "user:$2y$05$RPhFiiEUCcwKJ8aIjLTub.ESgjzZjrefMrvN25NkWRp96GsA9RUBW\n";

struct Registry {
    process: Child,
    address: String,
}

impl Registry {
    /// Starts a registry on a free port, with or without password.
    fn start(directory: &Path, htpasswd: Option<&str>) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let mut config = json!({
            "version": 0.1,
            "storage": { "filesystem": { "rootdirectory": directory.join("data") } },
            "http": { "addr": address },
        });
        if let Some(line) = htpasswd {
            std::fs::write(directory.join("htpasswd"), line)?;
            config["auth"] = json!({ "htpasswd": { "realm": "test", "path": directory.join("htpasswd") } });
        }
        let file = directory.join("registry.yml");
        std::fs::write(&file, config.to_string())?;
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("install docker-registry (apt-get install docker-registry skopeo)")?;
        let log = BufReader::new(process.stderr.take().context("no stderr")?);
        let mut lines = log.lines();
        let up = lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening on"));
        anyhow::ensure!(up, "docker-registry did not come up");
        // Its log must be read, or it stops when the pipe is full.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { process, address })
    }

    fn push(&self, archive: &Path, name: &str, credentials: Option<&str>) -> Result<()> {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]);
        if let Some(credentials) = credentials {
            skopeo.args(["--dest-creds", credentials]);
        }
        skopeo.arg(format!("docker-archive:{}", archive.display())).arg(format!("docker://{}/{name}", self.address));
        let pushed = skopeo.output().context("install skopeo (apt-get install docker-registry skopeo)")?;
        anyhow::ensure!(pushed.status.success(), "skopeo: {}", String::from_utf8_lossy(&pushed.stderr));
        Ok(())
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write_image(directory: &Path, text: &str) -> Result<std::path::PathBuf> {
    let base = Layer::new().file("base", 0o644, "base")?.pack(Packing::Plain)?;
    let top = Layer::new().file("text", 0o644, text)?.pack(Packing::Plain)?;
    let path = directory.join("image.tar");
    std::fs::write(&path, archive::docker("ignored:1", &[base, top], json!({ "Cmd": [text] }))?)?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_pulled_by_tag_and_digest() -> Result<()> {
    let directory = Scratch::new()?;
    let registry = Registry::start(directory.path(), None)?;
    registry.push(&write_image(directory.path(), "one")?, "team/app:v1", None)?;
    let runtime = Runtime::open(config(directory.path())).await?;
    let name = format!("{}/team/app", registry.address);
    let first = runtime.images().pull(&format!("{name}:v1"), None).await?;
    assert_eq!(first.config.cmd.as_deref(), Some(&["one".to_owned()][..]));
    let text = directory.path().join("images/layers").join(first.layers[1].hex()).join("fs/text");
    assert_eq!(std::fs::read_to_string(text)?, "one");
    // The tag moves; the digest still means the first.
    let by_digest = first.digests.first().context("no digest")?.clone();
    registry.push(&write_image(directory.path(), "two")?, "team/app:v1", None)?;
    let second = runtime.images().pull(&format!("{name}:v1"), None).await?;
    assert_ne!(first.id, second.id);
    assert_eq!(second.layers[0], first.layers[0], "the base is shared");
    assert_eq!(runtime.images().pull(&by_digest, None).await?.id, first.id);
    assert_eq!(runtime.images().find(&by_digest).context("not found")?.id, first.id);
    // Nothing is left of the transfer.
    assert_eq!(std::fs::read_dir(directory.path().join("images/tmp"))?.count(), 0);
    Ok(())
}

/// As a compressed blob by its descriptor, before it is fetched, and as files while it is unpacked.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_beyond_the_limit_is_not_pulled() -> Result<()> {
    let directory = Scratch::new()?;
    let registry = Registry::start(directory.path(), None)?;
    let text = "x".repeat(1 << 16);
    registry.push(&write_image(directory.path(), &text)?, "app:v1", None)?;
    for layer_max_bytes in [100, 1 << 14] {
        let image_limits = ImageLimits { layer_max_bytes, ..Default::default() };
        let root = directory.path().join(layer_max_bytes.to_string());
        let runtime = Runtime::open(Config { image_limits, ..config(&root) }).await?;
        let pulled = runtime.images().pull(&format!("{}/app:v1", registry.address), None).await;
        let refused = pulled.err().context("pulled")?.to_string();
        assert!(refused.contains("--image-layer-max-size"), "{refused}");
        assert_eq!(std::fs::read_dir(root.join("images/tmp"))?.count(), 0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_pulled_says_why() -> Result<()> {
    let directory = Scratch::new()?;
    let registry = Registry::start(directory.path(), None)?;
    let runtime = Runtime::open(config(directory.path())).await?;
    let check = async |name: &str, want: &str| -> Result<()> {
        let refused =
            runtime.images().pull(name, None).await.err().with_context(|| format!("{name} was pulled"))?.to_string();
        anyhow::ensure!(refused.contains(want), "{name}: {refused:?} does not say {want:?}");
        Ok(())
    };
    check(&format!("{}/nope:v1", registry.address), "not found").await?;
    let absent = runtime::Digest::of(b"absent");
    check(&format!("{}/nope@{absent}", registry.address), "not found").await?;
    check("127.0.0.1:1/closed:v1", "Connection refused").await?;
    check("Not/Valid", "invalid image reference").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_asked_for_and_checked() -> Result<()> {
    let directory = Scratch::new()?;
    let registry = Registry::start(directory.path(), Some(HTPASSWD))?;
    registry.push(&write_image(directory.path(), "private")?, "private:v1", Some("user:secret"))?;
    let runtime = Runtime::open(config(directory.path())).await?;
    let name = format!("{}/private:v1", registry.address);
    let refused = runtime.images().pull(&name, None).await.err().context("pulled without password")?;
    assert!(refused.to_string().contains("pull access denied"), "{refused}");
    let with = |password: &str| Credentials::Basic { username: "user".to_owned(), password: password.to_owned() };
    let refused =
        runtime.images().pull(&name, Some(&with("wrong"))).await.err().context("pulled with a wrong password")?;
    assert!(refused.to_string().contains("pull access denied"), "{refused}");
    assert_eq!(
        runtime.images().pull(&name, Some(&with("secret"))).await?.config.cmd.as_deref(),
        Some(&["private".to_owned()][..])
    );
    Ok(())
}
