//! Debian packages the tests need beside a Rust toolchain and kubectl.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// A program the tests call, and the package that has it.
const NEEDED: [(&str, &str); 11] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("docker-registry", "docker-registry"),
    ("skopeo", "skopeo"),
    ("file", "file"),
    ("mkfs.ext4", "e2fsprogs"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    // The fuzzer is written in C++.
    ("g++", "g++"),
];

pub(crate) fn install() -> Result<()> {
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(program, _)| !is_present(program)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        apt(&["update", "-q"])?;
        let mut arguments = vec!["install", "-qy", "--no-install-recommends"];
        arguments.extend(&missing);
        apt(&arguments)?;
    }
    ensure!(is_present("kubectl"), "the end-to-end tests use the real kubectl: put one (1.32 or newer) on the PATH");
    Ok(())
}

fn is_present(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|dir| dir.join(program).is_file())
}

fn apt(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Packages start no services of their own here: tests start what they need.
        .env("RUNLEVEL", "1")
        .stdout(Stdio::null())
        .status()
        .context("apt-get: the tests install Debian packages")?;
    ensure!(status.success(), "apt-get {} failed", arguments.join(" "));
    Ok(())
}
