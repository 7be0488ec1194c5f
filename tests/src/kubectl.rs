//! The real kubectl, with a memory of its own for each cluster.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::processes::succeed;

/// kubectl as the user of a kubeconfig. What it remembers lies beside that file: kubectl files it by the address of the server, and
/// the next cluster at the same address has other resources.
pub fn kubectl(kubeconfig: &Path) -> Command {
    let mut command = Command::new("kubectl");
    let memory = kubeconfig.with_extension("cache");
    command.arg("--kubeconfig").arg(kubeconfig).arg("--cache-dir").arg(memory).stdin(Stdio::null());
    command
}

/// Runs it, which must succeed; answers what it printed.
pub fn run_kubectl(kubeconfig: &Path, arguments: &[&str]) -> Result<String> {
    succeed(kubectl(kubeconfig).args(arguments))
}
