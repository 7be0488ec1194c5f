//! Snapshots: taken while writes go on, by us and by etcdctl; restored exactly, refused when they are not whole.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use store::{
    etcd::Listener,
    snapshot::{REVISION_BUMP, SnapshotError, Summary, restore, status},
    *,
};

use crate::etcd::{Etcd, Served, connect, tool};

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, Options::default()).unwrap()
}

async fn put(store: &dyn Store, key: String, value: Vec<u8>, lease: i64) -> Revision {
    let op = Op::Put { key: key.into(), value: value.into(), lease };
    store.txn(Txn { success: vec![op], ..Txn::default() }).await.unwrap().revision
}

async fn all(store: &dyn Store, revision: Revision) -> RangeResult {
    store.range(Range { revision, ..Range::prefix("") }).await.unwrap()
}

async fn save(store: &dyn Store, file: &Path) -> Revision {
    let snapshot = store.snapshot().await.unwrap();
    let chunks: Vec<_> = snapshot.chunks.try_collect().await.unwrap();
    let whole = chunks.concat();
    assert_eq!(whole.len() as u64, snapshot.bytes, "the size was told before");
    fs::write(file, whole).unwrap();
    snapshot.revision
}

/// Keys of all sizes, some overwritten, some deleted, some on a lease.
async fn fill(store: &Embedded) -> Lease {
    let lease = store.lease_grant(3600, 0).await.unwrap();
    for n in 0..500usize {
        put(
            store,
            format!("/registry/{:03}", n % 400),
            vec![b'v'; n * 37 % 3000],
            if n % 5 == 0 { lease.id } else { 0 },
        )
        .await;
    }
    put(store, "/registry/large".into(), vec![b'x'; 1 << 20], 0).await;
    store.txn(Txn { success: vec![Op::delete("/registry/007")], ..Txn::default() }).await.unwrap();
    lease
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_one_revision_while_writes_go_on_and_comes_back_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let source = Arc::new(open(&dir.path().join("source")));
    let lease = fill(&source).await;
    let writer = tokio::spawn({
        let source = source.clone();
        async move {
            for n in 0.. {
                put(source.as_ref(), format!("/registry/{:03}", n % 400), vec![b'w'; n % 3000], 0).await;
            }
        }
    });
    let file = dir.path().join("file");
    let revision = save(source.as_ref(), &file).await;
    writer.abort();
    let _ = writer.await;
    let then = all(source.as_ref(), revision).await;

    let told = status(&file).unwrap();
    assert_eq!((told.revision, told.keys, told.leases), (revision, then.count as u64, 1));
    assert_eq!(told.bytes, fs::metadata(&file).unwrap().len());
    assert_eq!(told.bytes % 512, 32, "what etcdctl checks");
    let target = dir.path().join("target");
    assert_eq!(restore(&file, &target, REVISION_BUMP).unwrap(), told);
    let restored = open(&target);
    assert_eq!(all(&restored, 0).await.kvs, then.kvs);
    assert_eq!(restored.leases().await.unwrap(), [lease.id]);
    assert_eq!(restored.lease_time_to_live(lease.id).await.unwrap().granted_ttl_seconds, 3600);
    check_goes_on(&restored, revision).await;
    restored.close().await;
    assert_eq!(all(&open(&target), 0).await.count, then.count + 1, "and again after a restart");
}

/// Revisions go on above the old ones; those who watch from before are told, those who watch from now miss nothing.
async fn check_goes_on(restored: &Embedded, saved: Revision) {
    let now = restored.revision().await.unwrap();
    assert_eq!(now, saved + REVISION_BUMP);
    for old in [2, saved, saved + 1, now - 1] {
        let watch = restored.watch("/".into(), Some("0".into()), old).await;
        assert!(matches!(watch, Err(StoreError::Compacted { oldest }) if oldest == now), "from {old}");
    }
    let mut watches = Vec::new();
    for from in [0, now, now + 1] {
        watches.push(restored.watch("/".into(), Some("0".into()), from).await.unwrap());
    }
    assert_eq!(put(restored, "/new".into(), vec![], 0).await, now + 1);
    watches.push(restored.watch("/".into(), Some("0".into()), now).await.unwrap());
    for mut watch in watches {
        assert_eq!(watch.next().await.unwrap().unwrap().revision, now + 1);
    }
}

#[tokio::test]
async fn an_empty_store_can_be_saved_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    assert_eq!(save(&open(&dir.path().join("source")), &file).await, 1);
    // An empty directory is as good as none.
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let summary = restore(&file, &target, 0).unwrap();
    assert_eq!((summary.keys, summary.revision), (0, 1));
    assert_eq!(open(&target).revision().await.unwrap(), 2);
}

#[tokio::test]
async fn every_cut_and_every_flipped_byte_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&dir.path().join("source"));
    for n in 0..40 {
        put(&source, format!("{n}"), vec![b'v'; 50], 0).await;
    }
    let file = dir.path().join("file");
    save(&source, &file).await;
    let whole = fs::read(&file).unwrap();
    let target = dir.path().join("target");
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&file, bytes).unwrap();
        let error = restore(&file, &target, 1).expect_err(what);
        assert!(status(&file).is_err(), "{what}");
        assert!(!target.exists(), "{what}: {error}");
        error
    };
    for len in 0..whole.len() {
        let error = refused(&whole[..len], &format!("cut at {len}"));
        match len {
            16.. => {
                assert!(matches!(error, SnapshotError::Truncated { .. } | SnapshotError::Damaged { .. }), "{error}")
            }
            _ => assert!(matches!(error, SnapshotError::Foreign { .. } | SnapshotError::Truncated { .. }), "{error}"),
        }
    }
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let error = refused(&flipped, &format!("flipped at {at}"));
        match at {
            16.. => assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}"),
            15 => assert!(matches!(error, SnapshotError::Layout { .. }), "{error}"),
            _ => assert!(matches!(error, SnapshotError::Foreign { .. }), "{error}"),
        }
    }
    let longer = [whole.as_slice(), &[0; 512]].concat();
    assert!(matches!(refused(&longer, "longer"), SnapshotError::Damaged { .. }));
    fs::write(&file, &whole).unwrap();
    restore(&file, &target, 1).unwrap();
}

#[tokio::test]
async fn a_directory_in_use_is_refused_and_what_an_interrupted_restore_left_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let file = dir.path().join("file");
    save(&open(&source), &file).await;
    assert!(matches!(restore(&file, &source, 1), Err(SnapshotError::NotEmpty { .. })));
    let left = dir.path().join(".target.restoring");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("log-0000000000000007"), "half").unwrap();
    restore(&file, &dir.path().join("target"), 1).unwrap();
    assert!(!left.exists());
    open(&dir.path().join("target"));
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_saves_what_we_restore_and_a_snapshot_of_etcd_is_recognised() {
    let (Some(ctl), Some(etcd)) = (tool("etcdctl"), tool("etcd")) else { return };
    let dir = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let served = Served::with(dir.path(), Arc::new(open(&dir.path().join("data"))), Listener::Tcp(listener));
    fill(&served.store).await;
    let file = etcdctl_save(&ctl, &endpoint, &dir.path().join("ferry"));
    let told: Summary = status(&file).unwrap();
    assert_eq!(told.revision, served.store.revision().await.unwrap());
    let target = dir.path().join("target");
    restore(&file, &target, 1).unwrap();
    assert_eq!(all(&open(&target), 0).await.kvs, all(served.store.as_ref(), 0).await.kvs);
    // Through our own client it is the same, byte for byte but for the salt.
    let client = connect(vec![endpoint]).await;
    save(&client, &file).await;
    assert_eq!(status(&file).unwrap().keys, told.keys);
    served.stop().await;

    let member = Etcd::cluster(&etcd, &dir.path().join("members"), 1).remove(0);
    put(&connect(vec![member.endpoint.clone()]).await, "a".into(), vec![], 0).await;
    let file = etcdctl_save(&ctl, &member.endpoint, &dir.path().join("etcd"));
    assert!(matches!(status(&file), Err(SnapshotError::Etcd { .. })));
    fs::File::create(&file).unwrap().write_all(&[7; 1056]).unwrap();
    assert!(matches!(status(&file), Err(SnapshotError::Foreign { .. })));
}

fn etcdctl_save(ctl: &Path, endpoint: &str, file: &Path) -> PathBuf {
    let saved = Command::new(ctl).args(["--endpoints", endpoint, "snapshot", "save"]).arg(file).output().unwrap();
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    file.to_owned()
}

/// Kept as it was written: a later version must read it too.
#[tokio::test]
async fn a_snapshot_of_every_layout_so_far_is_read() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/layout-1");
    let dir = tempfile::tempdir().unwrap();
    let told = restore(&kept, &dir.path().join("store"), 1).unwrap();
    assert_eq!((told.revision, told.compacted_revision, told.keys, told.leases), (45, 30, 16, 1));
    let store = open(&dir.path().join("store"));
    let line = |kv: &Arc<KeyValue>| {
        let (key, first) = (String::from_utf8_lossy(&kv.key), kv.value.first().copied().unwrap_or(0));
        format!("{key}={first}@{}/{}/{}+{}", kv.create_revision, kv.mod_revision, kv.version, kv.lease)
    };
    let lines = all(&store, 0).await.kvs.iter().map(line).collect::<Vec<_>>().join(" ");
    let want = "empty=0@43/43/1+0 key-00=32@2/34/3+7 key-01=33@3/35/3+0 key-02=34@4/36/3+0 key-05=37@7/39/3+0 \
                key-06=38@8/40/3+0 key-07=39@9/41/3+0 key-08=24@10/26/2+7 key-09=25@11/27/2+0 key-10=26@12/28/2+0 \
                key-11=27@13/29/2+0 key-12=28@14/30/2+0 key-13=29@15/31/2+0 key-14=30@16/32/2+0 key-15=31@17/33/2+0 \
                last=111@45/45/1+0";
    assert_eq!(lines, want);
    assert_eq!(store.leases().await.unwrap(), [7]);
}
