//! The cluster's keys, shared by its servers through the store: the first server makes them, the others take them.
//!
//! They lie in the store under [`KEY`], encrypted with the cluster's token, so that whoever can read the store, or a
//! snapshot of it, does not hold the cluster's authority. Which server is first is decided by compare-and-set.

mod sealed;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use store::{Compare, Op, Range, Store, Txn};

use self::sealed::Sealed;
use crate::cli::Server;
use crate::pki::{self, Pki};

/// Beside `/registry`: it is none of the API's objects.
const KEY: &str = "/ferry/pki";
const FILES: [&str; 3] = ["ca.crt", "ca.key", "sa.key"];

/// File names with their content.
type Files = BTreeMap<String, String>;

/// Opens `dir` with the cluster's keys in it.
pub(crate) async fn open(store: &dyn Store, options: &Server, dir: &Path) -> Result<Pki> {
    let token_file = options.data_dir.join("token");
    let given = given_token(options, &token_file)?;
    let (token, files) = match stored(store).await? {
        Some(sealed) => taken(&sealed, given)?,
        None => {
            let token = given.unwrap_or_else(sealed::new_token);
            match publish(store, &token, made(dir)?).await? {
                Ok(files) => (token, files),
                // Another server was first.
                Err(sealed) => taken(&sealed, Some(token))?,
            }
        }
    };
    keep(dir, &files)?;
    pki::write(&token_file, &token)?;
    Pki::open(dir)
}

fn given_token(options: &Server, own: &Path) -> Result<Option<String>> {
    let path = match (&options.token, &options.token_file) {
        (Some(token), _) => return Ok(Some(token.trim().to_owned())),
        (None, Some(file)) => file.as_path(),
        (None, None) if own.exists() => own,
        (None, None) => return Ok(None),
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the token in {}", path.display()))?;
    Ok(Some(text.trim().to_owned()))
}

async fn stored(store: &dyn Store) -> Result<Option<Sealed>> {
    let found = store.range(Range::key(KEY)).await?.kvs.into_iter().next();
    found.map(|kv| Sealed::read(&kv.value)).transpose()
}

fn taken(sealed: &Sealed, token: Option<String>) -> Result<(String, Files)> {
    let Some(token) = token else {
        bail!("this store belongs to a cluster: give its --token, which its other servers have in DATA_DIR/token");
    };
    let files = sealed.open(&token).context("the token is not the one of the cluster in this store")?;
    Ok((token, files))
}

/// The keys already in `dir`, of a cluster that was moved here; or new ones, not yet in any place that counts.
fn made(dir: &Path) -> Result<Files> {
    let draft = dir.with_extension("new");
    let from = if dir.join("ca.crt").exists() { dir } else { &draft };
    let pki = Pki::open(from)?;
    pki.service_account_key()?;
    let files = read(from)?;
    if draft.exists() {
        std::fs::remove_dir_all(&draft).with_context(|| format!("cannot remove {}", draft.display()))?;
    }
    Ok(files)
}

fn read(dir: &Path) -> Result<Files> {
    let one = |name: &str| {
        let path = dir.join(name);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((name.to_owned(), text))
    };
    FILES.into_iter().map(one).collect()
}

/// Puts the keys into the store if there are none; otherwise answers those that are there.
async fn publish(store: &dyn Store, token: &str, files: Files) -> Result<Result<Files, Sealed>> {
    let value = Sealed::close(token, &files)?.write()?;
    let absent = Compare::ModRevision { key: KEY.into(), is: 0 };
    let txn = Txn { compares: vec![absent], success: vec![Op::put(KEY, value)], failure: vec![] };
    if store.txn(txn).await?.succeeded {
        return Ok(Ok(files));
    }
    let found = stored(store).await?.context("the cluster's keys were removed from the store just now")?;
    Ok(Err(found))
}

/// Writes the keys into `dir`. Others that are there already belong to another cluster.
fn keep(dir: &Path, files: &Files) -> Result<()> {
    pki::close_to_others(dir)?;
    for (name, text) in files {
        let path = dir.join(name);
        match std::fs::read_to_string(&path) {
            Ok(own) if own == *text => {}
            Ok(_) => bail!(
                "{} is not the one of the cluster in this store: move {} away to join it, or name another --data-dir",
                path.display(),
                dir.display()
            ),
            Err(_) => pki::write(&path, text)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use store::Embedded;

    use super::*;
    use crate::cli::{Cli, Command};

    fn options(dir: &Path, more: &[&str]) -> Server {
        let dir = dir.to_str().unwrap();
        let cli = Cli::parse_from([&["ferry", "server", "--data-dir", dir], more].concat());
        match cli.command {
            Command::Server(options) => options,
            _ => unreachable!(),
        }
    }

    async fn join(store: &Embedded, dir: &Path, more: &[&str]) -> Result<String> {
        let pki = open(store, &options(dir, more), &dir.join("pki")).await?;
        Ok(format!("{}{}", pki.ca.certificate, hex::encode(pki.service_account_key()?)))
    }

    #[tokio::test]
    async fn servers_that_start_together_share_the_keys_of_one_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(&dir.path().join("store"), store::Options::default()).unwrap();
        let dirs: Vec<_> = (0..3).map(|n| dir.path().join(n.to_string())).collect();
        let joined = futures::future::join_all(dirs.iter().map(|dir| join(&store, dir, &["--token", "secret"]))).await;
        let joined: Vec<String> = joined.into_iter().map(Result::unwrap).collect();
        assert!(joined.iter().all(|keys| *keys == joined[0]));
        // And again after a restart, by the token that is kept.
        assert_eq!(join(&store, &dirs[1], &[]).await.unwrap(), joined[0]);
        let stored = store.range(Range::key(KEY)).await.unwrap().kvs.remove(0);
        assert!(!String::from_utf8_lossy(&stored.value).contains("PRIVATE KEY"));
    }

    #[tokio::test]
    async fn strangers_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(&dir.path().join("store"), store::Options::default()).unwrap();
        join(&store, &dir.path().join("first"), &[]).await.unwrap();
        let token = std::fs::read_to_string(dir.path().join("first/token")).unwrap();
        let refusal = async |name: &str, more: &[&str]| {
            let error = join(&store, &dir.path().join(name), more).await.expect_err(name);
            format!("{error:#}")
        };
        assert!(refusal("none", &[]).await.contains("give its --token"));
        assert!(refusal("wrong", &["--token", "guess"]).await.contains("not the one of the cluster"));
        Pki::open(&dir.path().join("other/pki")).unwrap();
        assert!(refusal("other", &["--token", &token]).await.contains("move"));
        join(&store, &dir.path().join("right"), &["--token", &token]).await.unwrap();
    }

    #[tokio::test]
    async fn a_cluster_that_was_moved_keeps_its_keys() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(&dir.path().join("store"), store::Options::default()).unwrap();
        let before = Pki::open(&dir.path().join("a/pki")).unwrap();
        let token = ["--token", "secret"];
        assert!(join(&store, &dir.path().join("a"), &token).await.unwrap().starts_with(&before.ca.certificate));
        assert!(join(&store, &dir.path().join("b"), &token).await.unwrap().starts_with(&before.ca.certificate));
    }
}
