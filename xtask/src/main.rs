//! Chores of the repository: `cargo xtask codegen|tidy|test|fuzz|bench`.

mod bench;
mod codegen;
mod fuzz;
mod packages;
mod test;
mod tidy;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if std::env::var_os(fuzz::AS_COMPILER).is_some() {
        return fuzz::compile(std::env::args_os().skip(1));
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["codegen"] => codegen::run(),
        ["tidy"] => tidy::run(),
        ["test", only @ ..] => test::run(only),
        ["fuzz", which @ ..] => fuzz::run(which),
        ["bench", which @ ..] => bench::run(which),
        other => bail!(
            "usage: cargo xtask codegen    write the schema tables\n       \
             cargo xtask tidy       check the rules of the house\n       \
             cargo xtask test [--long] [STEP…]  install what tests need, then run fmt, clippy, tidy, unit and end-to-end \
             tests; the long version crashes and races for an hour\n       \
             cargo xtask fuzz [--seconds=N] [NAME…]  give every decoder bytes nobody meant\n       \
             cargo xtask bench NAME    measure against the peer, side by side (store)\n\
             (got {other:?})"
        ),
    }
}

/// Where this runs, which need not be where it was compiled: clones share a build cache.
fn root() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask`")?;
    Ok(Path::new(&here).parent().context("xtask has a parent folder")?.to_owned())
}

/// cargo, as if nobody had run it through cargo: what it tells of the package it runs, here xtask, a build script (ring's) takes
/// for its own and builds everything anew.
fn cargo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(root()?);
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    Ok(command)
}
