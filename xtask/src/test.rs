//! `cargo xtask test`: everything that must hold, in the order that fails fastest, with a summary at the end.

use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::{packages, tidy};

type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 6] = [
    ("packages", packages::install),
    ("fmt", || cargo(&["fmt", "--all", "--check"])),
    ("tidy", tidy::run),
    ("clippy", || cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])),
    // Tests of networks and containers share the machine's namespaces and cgroups.
    ("unit", || cargo(&["test", "--workspace", "--exclude", "e2e", "--quiet"])),
    ("end-to-end", end_to_end),
];

pub(crate) fn run(only: &[&str]) -> Result<()> {
    for name in only {
        ensure!(STEPS.iter().any(|(known, _)| known == name), "there is no step {name:?}");
    }
    let mut results: Vec<(&str, bool, Duration)> = Vec::new();
    for (name, step) in STEPS.iter().filter(|(name, _)| only.is_empty() || only.contains(name)) {
        say(&format!("── {name}"));
        let begun = Instant::now();
        let outcome = step();
        if let Err(error) = &outcome {
            say(&format!("{error:#}"));
        }
        results.push((name, outcome.is_ok(), begun.elapsed()));
    }
    say("");
    for (name, passed, took) in &results {
        say(&format!("  {} {name:<12} {:>7.1} s", if *passed { "✔" } else { "✘" }, took.as_secs_f64()));
    }
    let failed = results.iter().filter(|(_, passed, _)| !passed).count();
    say(&format!("\n{} passed, {failed} failed", results.len() - failed));
    if failed > 0 { bail!("{failed} of {} steps failed", results.len()) } else { Ok(()) }
}

/// The release binary with the real kubectl, one test at a time: they share the machine's network.
fn end_to_end() -> Result<()> {
    cargo(&["build", "--release", "--package", "ferry"])?;
    cargo(&["test", "--package", "e2e", "--", "--test-threads=1", "--nocapture"])
}

fn cargo(arguments: &[&str]) -> Result<()> {
    // A failed test says why in its own words; a backtrace only buries them. What the first step installed is not to be
    // found missing.
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(crate::root()?)
        .env("RUST_BACKTRACE", "0")
        .env("FERRY_REQUIRE_ETCD", "1")
        .status()?;
    ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
