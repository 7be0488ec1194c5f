//! `cargo xtask fuzz`: every target of `fuzz/` for a while, guided by what the bytes reach in our own crates.
//!
//! Only these are compiled for it: cargo calls this program in place of the compiler for the workspace's crates, and it adds what tells
//! a fuzzer where it has been. That needs no other toolchain than the one of the house.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

const TARGETS: [&str; 18] = [
    "json",
    "protobuf",
    "patch",
    "selectors",
    "quantities",
    "yaml",
    "spdy",
    "websocket",
    "cel",
    "requests",
    "auth_files",
    "layers",
    "manifests",
    "shim",
    "request_path",
    "dns",
    "cni",
    "cri",
];
/// What is followed, beside the targets themselves.
const FOLLOWED: [&str; 8] = ["api", "apiserver", "cel", "cri", "dns", "network", "runtime", "spdy"];
const FLAGS: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Copt-level=1",
];
const STATIC: &str = "target-feature=+crt-static";
const DYNAMIC: &str = "target-feature=-crt-static";
/// Set where this program is called in place of the compiler.
pub(crate) const AS_COMPILER: &str = "FERRY_XTASK_AS_COMPILER";
/// How long each runs unless told otherwise.
const SECONDS: u32 = 4;

/// Runs `only` these targets, or all, for so many seconds each.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let seconds = arguments.iter().find_map(|argument| argument.strip_prefix("--seconds="));
    let seconds: u32 = seconds.map_or(Ok(SECONDS), str::parse).context("--seconds=NUMBER")?;
    let only: Vec<&str> = arguments.iter().copied().filter(|argument| !argument.starts_with("--")).collect();
    for name in &only {
        ensure!(TARGETS.contains(name), "there is no target {name:?}; there are {TARGETS:?}");
    }
    let root = crate::root()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--package", "fuzz", "--bins", "--quiet"]).current_dir(&root);
    build.env("RUSTC_WORKSPACE_WRAPPER", std::env::current_exe()?).env("CARGO_INCREMENTAL", "0");
    build.env(AS_COMPILER, "1");
    ensure!(build.status()?.success(), "the fuzz targets cannot be built");
    for name in TARGETS.into_iter().filter(|name| only.is_empty() || only.contains(name)) {
        fuzz(&root, &target, name, seconds)?;
    }
    Ok(())
}

fn fuzz(root: &Path, target: &Path, name: &str, seconds: u32) -> Result<()> {
    let corpus = target.join("fuzz/corpus").join(name);
    let found = target.join("fuzz/found").join(name);
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&found)?;
    let program = [target.join("debug"), target.join("x86_64-unknown-linux-gnu/debug")]
        .map(|dir| dir.join(name))
        .into_iter()
        .find(|path| path.exists())
        .with_context(|| format!("{name} was not built"))?;
    let run = Command::new(program)
        .arg(format!("-max_total_time={seconds}"))
        .args(["-max_len=4096", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args([&corpus, &root.join("fuzz/seeds").join(name)])
        .output()?;
    let said = String::from_utf8_lossy(&run.stderr);
    let runs = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")).unwrap_or(" none");
    ensure!(run.status.success(), "{name}: {said}");
    let _ = writeln!(std::io::stdout(), "  {name:<12} {} runs", runs.trim());
    Ok(())
}

/// Called by cargo in place of the compiler: `xtask RUSTC ARGUMENTS…`.
pub(crate) fn compile(mut arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let compiler = arguments.next().context("no compiler")?;
    let arguments: Vec<OsString> = arguments.collect();
    let name =
        arguments.iter().skip_while(|argument| *argument != "--crate-name").nth(1).and_then(|name| name.to_str());
    let is_followed = name.is_some_and(|name| FOLLOWED.contains(&name) || TARGETS.contains(&name));
    let mut command = Command::new(compiler);
    if is_followed {
        // The fuzzer looks for functions by their names while it runs, which a static program cannot do.
        command.args(
            arguments.iter().map(|argument| if argument == STATIC { DYNAMIC.as_ref() } else { argument.as_os_str() }),
        );
        command.args(FLAGS);
    } else {
        command.args(&arguments);
    }
    ensure!(command.status()?.success(), "{} cannot be compiled", name.unwrap_or("it"));
    Ok(())
}
