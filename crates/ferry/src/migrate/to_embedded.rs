//! From etcd to the embedded store: everything at one revision, as a store that goes on from there.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use store::snapshot::adopt;
use store::{Embedded, Options, Store};

use super::{Picture, say};

pub(super) async fn run(etcd: &dyn Store, dir: &Path) -> Result<()> {
    let picture = Picture::take(etcd, 0, &[]).await?;
    ensure!(
        picture.servers.is_empty(),
        "API servers still run on this etcd ({}): stop them first; one that was killed is forgotten after 15 s",
        picture.servers.join(", ")
    );
    say(&format!("Read {} keys from etcd at revision {}", picture.keys.len(), picture.revision));
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    adopt(dir, picture.revision, picture.leases(), picture.keys.iter().cloned())?;
    let written = verify(&picture, dir).await;
    if let Err(error) = written {
        // It is of this run alone: `adopt` refuses a directory that holds anything.
        std::fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        return Err(error.context("nothing was left behind; run it again"));
    }
    say(&format!("{} holds the same, by hash. `ferry up` runs on it", dir.display()));
    Ok(())
}

async fn verify(picture: &Picture, dir: &Path) -> Result<()> {
    let store = Embedded::open(dir, Options::default())?;
    let written = Picture::take(&store, 0, &[]).await;
    store.close().await;
    let (found, expected) = (written?.hash(), picture.hash());
    if found != expected {
        bail!("what was written has the hash {found}, what was read {expected}");
    }
    Ok(())
}
