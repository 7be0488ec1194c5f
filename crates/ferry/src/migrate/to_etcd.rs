//! From the embedded store to etcd. A key of ours marks a move that is under way, so that one that was interrupted can
//! be taken up again, and is not mistaken for somebody else's data.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use store::{Compare, Embedded, KeyValue, Op, Options, Range, Revision, Store, StoreError, Txn};

use super::{Picture, say};

const MARKER: &[u8] = b"/ferry/migration";
/// Below etcd's limits of 128 operations and 1.5 MB.
const BATCH_KEYS: usize = 100;
const BATCH_BYTES: usize = 512 << 10;
/// Requests under way at once: etcd syncs them together.
const IN_FLIGHT: usize = 8;
const RAISING_IN_FLIGHT: usize = 256;

pub(super) async fn run(dir: &Path, etcd: &dyn Store) -> Result<()> {
    ensure!(dir.is_dir(), "there is no store in {}: name the cluster with --data-dir", dir.display());
    let store = Embedded::open(dir, Options::default())?;
    let picture = Picture::take(&store, 0, &[]).await;
    store.close().await;
    let picture = picture?;
    let hash = picture.hash();
    claim(etcd, &hash).await?;
    raise(etcd, picture.revision).await?;
    let last = copy(etcd, &picture).await?;
    let found = Picture::take(etcd, last, MARKER).await?.hash();
    ensure!(found == hash, "etcd holds the hash {found}, the embedded store {hash}: did something else write to it?");
    put(etcd, vec![Op::delete(MARKER)]).await?;
    if let Err(error) = etcd.compact(last).await {
        tracing::debug!(%error, "not compacted");
    }
    say(&format!("Moved {} keys to etcd; it holds the same, by hash", picture.keys.len()));
    say(
        "`ferry server --etcd-servers …` with this --data-dir runs on it; keep the embedded store until you have seen it",
    );
    Ok(())
}

/// Only an etcd that is empty, or holds the first part of this very move, is written to.
async fn claim(etcd: &dyn Store, hash: &str) -> Result<()> {
    let value: Bytes = hash.to_owned().into();
    let count = etcd.range(Range { count_only: true, ..Range::prefix("") }).await?.count;
    let marker = etcd.range(Range::key(MARKER)).await?.kvs.into_iter().next();
    match marker {
        Some(marker) if marker.value == value => {
            say("Going on with a move that was interrupted");
            return Ok(());
        }
        Some(_) => bail!(
            "this etcd holds a part of another state, of a move that was interrupted: empty it with `etcdctl del \"\" --prefix` \
             and start again"
        ),
        None => ensure!(count == 0, "this etcd is not empty ({count} keys): a cluster is only moved into an empty one"),
    }
    let absent = Compare::ModRevision { key: MARKER.into(), is: 0 };
    let claimed = Txn { compares: vec![absent], success: vec![Op::put(MARKER, value)], failure: vec![] };
    ensure!(etcd.txn(claimed).await?.succeeded, "somebody else is moving a cluster into this etcd");
    Ok(())
}

/// Lifts etcd's revision above the store's, so that no object's resource version ever goes back. Only writes do that.
async fn raise(etcd: &dyn Store, above: Revision) -> Result<()> {
    let now = etcd.revision().await?;
    if now < above {
        say(&format!("Raising etcd's revision from {now} to {above}"));
    }
    let same = Op::Update { key: MARKER.into(), value: None, lease: None };
    let raising = stream::iter(now..above).map(|_| put(etcd, vec![same.clone()])).buffer_unordered(RAISING_IN_FLIGHT);
    raising.try_for_each(|_| async { Ok(()) }).await?;
    Ok(())
}

/// Copies what is not there yet; answers a revision at which all of it is. What hangs on leases comes last, the shortest
/// at the end, so that it lives to be compared.
async fn copy(etcd: &dyn Store, picture: &Picture) -> Result<Revision> {
    let there = etcd.range(Range { keys_only: true, ..Range::prefix("") }).await?.kvs;
    let there: HashSet<&Bytes> = there.iter().map(|kv| &kv.key).collect();
    let missing = picture.keys.iter().filter(|kv| !there.contains(&kv.key));
    let (leased, plain): (Vec<_>, Vec<_>) = missing.cloned().partition(|kv| kv.lease != 0);
    say(&format!("Copying {} keys", plain.len() + leased.len()));
    let copying = stream::iter(batches(&plain)).map(|batch| put(etcd, batch)).buffer_unordered(IN_FLIGHT);
    copying.try_for_each(|_| async { Ok(()) }).await?;
    let mut leases: Vec<_> = picture.leases().collect();
    leases.sort_by_key(|lease| std::cmp::Reverse(lease.ttl_seconds));
    for lease in leases {
        match etcd.lease_grant(lease.ttl_seconds, lease.id).await {
            Ok(_) | Err(StoreError::LeaseExists(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let keys: Vec<_> = leased.iter().filter(|kv| kv.lease == lease.id).cloned().collect();
        for batch in batches(&keys) {
            put(etcd, batch).await?;
        }
    }
    Ok(etcd.revision().await?)
}

fn batches(keys: &[Arc<KeyValue>]) -> Vec<Vec<Op>> {
    let mut batches: Vec<Vec<Op>> = Vec::new();
    let mut bytes = 0;
    for kv in keys {
        bytes += kv.key.len() + kv.value.len();
        let op = Op::Put { key: kv.key.clone(), value: kv.value.clone(), lease: kv.lease };
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH_KEYS && bytes <= BATCH_BYTES => batch.push(op),
            _ => {
                bytes = kv.key.len() + kv.value.len();
                batches.push(vec![op]);
            }
        }
    }
    batches
}

async fn put(etcd: &dyn Store, ops: Vec<Op>) -> Result<Revision> {
    Ok(etcd.txn(Txn { success: ops, ..Txn::default() }).await?.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_stay_below_etcds_limits() {
        check(&[], "");
        check(&[10; 250], "100 100 50");
        check(&[400_000, 100_000, 100_000, 1_400_000, 1], "2 1 1 1");
    }

    #[track_caller]
    fn check(sizes: &[usize], want: &str) {
        let keys: Vec<_> = sizes
            .iter()
            .map(|size| Arc::new(KeyValue { key: "k".into(), value: vec![0; *size].into(), ..KeyValue::default() }))
            .collect();
        let lengths: Vec<String> = batches(&keys).iter().map(|batch| batch.len().to_string()).collect();
        assert_eq!(lengths.join(" "), want);
    }
}
