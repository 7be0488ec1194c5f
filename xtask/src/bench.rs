//! `cargo xtask bench NAME`: builds the benches and what they measure as they are shipped, and runs one.

use anyhow::{Result, ensure};

use crate::cargo;

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    // The API's bench starts the binary that is built beside it.
    if arguments.first() == Some(&"api") {
        run_cargo(&["build", "--release", "--quiet", "--package", "ferry"], &[])?;
    }
    run_cargo(&["run", "--release", "--quiet", "--package", "benches", "--"], arguments)
}

fn run_cargo(command: &[&str], arguments: &[&str]) -> Result<()> {
    let status = cargo(command)?.args(arguments).status()?;
    ensure!(status.success(), "cargo {} failed", command.join(" "));
    Ok(())
}
