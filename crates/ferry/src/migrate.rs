//! `ferry migrate`: a cluster's state from the embedded store to etcd, and back, object for object.
//!
//! The source is only read. The target must be empty, gets everything, and is compared with the source by a hash at the end.

mod picture;
mod to_embedded;
mod to_etcd;

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};

use self::picture::Picture;
use crate::cli::state::{Engine, Migrate};
use crate::etcd;

pub(crate) async fn run(options: Migrate) -> Result<()> {
    ensure!(!options.etcd.etcd_servers.is_empty(), "name the etcd with --etcd-servers");
    let etcd = etcd::client(&options.etcd).await?;
    let dir = options.data_dir.join("store");
    match options.to {
        Engine::Etcd => to_etcd::run(&dir, &etcd).await.context(
            "not finished: the embedded store is unchanged. Run the same command again, and it goes on where it stopped",
        ),
        Engine::Embedded => to_embedded::run(&etcd, &dir).await,
    }
}

/// What is done, as it is done.
fn say(text: &str) {
    // A closed terminal is no reason to stop half-way.
    let _ = writeln!(std::io::stdout(), "{text}");
}
