//! `cargo xtask test`: everything that must hold, in the order that fails fastest, with a summary at the end.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::{fuzz, packages, tidy};

/// A step's name, and what it does: the usual, or the long version.
type Step = (&'static str, fn(Length) -> Result<()>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    Usual,
    Long,
}

const STEPS: [Step; 7] = [
    ("packages", |_| packages::install()),
    ("fmt", |length| cargo(&["fmt", "--all", "--check"], length)),
    ("tidy", |_| tidy::run()),
    ("clippy", |length| cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], length)),
    // Tests of networks and containers share the machine's namespaces and cgroups.
    ("unit", |length| cargo(&["test", "--workspace", "--exclude", "e2e", "--quiet"], length)),
    ("fuzz", |length| fuzz::run(if length == Length::Long { &["--seconds=300"] } else { &[] })),
    ("end-to-end", end_to_end),
];

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let length = if arguments.contains(&"--long") { Length::Long } else { Length::Usual };
    let only: Vec<&str> = arguments.iter().copied().filter(|name| *name != "--long").collect();
    for name in &only {
        ensure!(STEPS.iter().any(|(known, _)| known == name), "there is no step {name:?}");
    }
    let is_wanted = |name: &str| only.is_empty() || only.contains(&name);
    let mut results: Vec<(&str, bool, Duration)> = Vec::new();
    let mut ahead = None;
    for (name, step) in STEPS.iter().filter(|(name, _)| is_wanted(name)) {
        // Linking the release takes one processor for minutes, and nothing before the last step needs it. What is wrong with it,
        // that step says.
        if ahead.is_none() && *name != "packages" && is_wanted("end-to-end") {
            let quiet = command(&RELEASE, length)?.arg("--quiet").stderr(Stdio::null()).spawn();
            ahead = Some(quiet?);
        }
        say(&format!("── {name}"));
        let begun = Instant::now();
        let outcome = step(length);
        if let Err(error) = &outcome {
            say(&format!("{error:#}"));
        }
        results.push((name, outcome.is_ok(), begun.elapsed()));
    }
    if let Some(mut ahead) = ahead {
        ahead.wait()?;
    }
    say("");
    for (name, passed, took) in &results {
        say(&format!("  {} {name:<12} {:>7.1} s", if *passed { "✔" } else { "✘" }, took.as_secs_f64()));
    }
    let failed = results.iter().filter(|(_, passed, _)| !passed).count();
    say(&format!("\n{} passed, {failed} failed", results.len() - failed));
    if failed > 0 { bail!("{failed} of {} steps failed", results.len()) } else { Ok(()) }
}

const RELEASE: [&str; 4] = ["build", "--release", "--package", "ferry"];

/// The release binary with the real kubectl, one test at a time: they share the machine's network.
fn end_to_end(length: Length) -> Result<()> {
    cargo(&RELEASE, length)?;
    cargo(&["test", "--package", "e2e", "--", "--test-threads=1", "--nocapture"], length)
}

fn cargo(arguments: &[&str], length: Length) -> Result<()> {
    let status = command(arguments, length)?.status()?;
    ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

fn command(arguments: &[&str], length: Length) -> Result<Command> {
    let mut command = crate::cargo(arguments)?;
    // A failed test says why in its own words; a backtrace only buries them. What the first step installed is not to be
    // found missing.
    command.env("RUST_BACKTRACE", "0").env("FERRY_REQUIRE_ETCD", "1");
    command.env("FERRY_LONG", if length == Length::Long { "1" } else { "0" });
    Ok(command)
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
