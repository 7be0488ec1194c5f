//! `cargo xtask bench NAME`: builds the benches and what they measure as they are shipped, and runs one.

use std::process::Command;

use anyhow::{Result, ensure};

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    // The API's bench starts the binary that is built beside it.
    if arguments.first() == Some(&"api") {
        cargo(&["build", "--release", "--quiet", "--package", "ferry"], &[])?;
    }
    cargo(&["run", "--release", "--quiet", "--package", "benches", "--"], arguments)
}

fn cargo(command: &[&str], arguments: &[&str]) -> Result<()> {
    let status = Command::new(env!("CARGO")).args(command).args(arguments).current_dir(crate::root()?).status()?;
    ensure!(status.success(), "cargo {} failed", command.join(" "));
    Ok(())
}
