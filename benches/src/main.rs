//! What Ferry is measured by, each against its peer, in one run on one machine: `cargo xtask bench NAME`.
//!
//! A bench is a module with a `run`; it fills a [`report::Report`], which prints a line per bar and fails if one is missed.

mod api;
mod http2;
mod report;
mod rounds;
mod store;

use std::{io::Write as _, path::Path, process::ExitCode};

use anyhow::{Result, bail};

/// The one of the `ferry` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["api", only @ ..] => api::run(only).await,
        ["store", only @ ..] => store::run(only).await,
        // The store's other half: a process of its own, so that its memory and its rest can be measured.
        ["serve-store", dir, url] => store::ours::serve(Path::new(dir), url).await,
        other => bail!(
            "usage: cargo xtask bench store [puts|objects|watchers|idle…] or api [writes|lists|watches|admission|definitions|hostile|fairness…]   (got {other:?})"
        ),
    }
}
