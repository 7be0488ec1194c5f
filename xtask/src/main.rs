//! Chores of the repository: `cargo xtask codegen|tidy|test|bench`.

mod codegen;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("codegen") => codegen::run(),
        other => bail!("usage: cargo xtask codegen|tidy|test|bench (got {})", other.unwrap_or("nothing")),
    }
}
