//! `cargo xtask bench NAME`: builds the benches as they are shipped, and runs one.

use std::process::Command;

use anyhow::{Result, ensure};

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--release", "--quiet", "--package", "benches", "--"])
        .args(arguments)
        .current_dir(crate::root()?)
        .status()?;
    ensure!(status.success(), "the bench failed");
    Ok(())
}
