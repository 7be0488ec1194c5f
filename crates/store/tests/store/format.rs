//! Files written by earlier versions are read by this one: `tests/fixtures/format-N` is a store's directory as format N wrote it, and
//! `expected.txt` what it holds.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use store::*;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Small, so that the fixture has several segments and a base.
fn options() -> Options {
    Options { segment_bytes: 600, history_bytes: 3000, ..Options::default() }
}

#[tokio::test]
async fn every_format_there_was_is_still_read() {
    let mut formats = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let fixture = entry.unwrap().path();
        let copy = tempfile::tempdir().unwrap();
        let mut kinds = Vec::new();
        for file in fs::read_dir(&fixture).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            fs::copy(file.path(), copy.path().join(&name)).unwrap();
            kinds.extend(name.split_once('-').map(|(kind, _)| kind.to_owned()));
        }
        assert!(kinds.contains(&"base".to_owned()) && kinds.contains(&"log".to_owned()), "{}", fixture.display());
        let expected = fs::read_to_string(fixture.join("expected.txt")).unwrap();
        // Once as it was written, once as this version leaves it.
        for _ in 0..2 {
            let store = Embedded::open(copy.path(), options()).unwrap();
            assert_eq!(dump(&store).await, expected, "{}", fixture.display());
            store.close().await;
        }
        let store = Embedded::open(copy.path(), options()).unwrap();
        let before = store.revision().await.unwrap();
        assert_eq!(put(&store, "new", "1", 0).await, before + 1);
        formats += 1;
    }
    assert!(formats > 0);
}

/// Everything that can be asked of a store: keys, leases and what is left of history.
async fn dump(store: &Embedded) -> String {
    let mut said = format!("revision {}\n", store.revision().await.unwrap());
    for kv in store.range(Range::prefix("")).await.unwrap().kvs {
        writeln!(said, "key {}", line(&kv)).unwrap();
    }
    for id in store.leases().await.unwrap() {
        let lease = store.lease_time_to_live(id).await.unwrap();
        writeln!(said, "lease {id} granted {} keys {:?}", lease.granted_ttl_seconds, lease.keys).unwrap();
    }
    let Err(StoreError::Compacted { oldest }) = store.range(Range { revision: 1, ..Range::key("x") }).await else {
        panic!("history from the start")
    };
    writeln!(said, "oldest {oldest}").unwrap();
    let Keys { start, end } = Keys::prefix("".into());
    let mut watch = store.watch(start, end, oldest).await.unwrap();
    while let Some(batch) = watch.next().now_or_never() {
        for event in batch.unwrap().unwrap().events.iter() {
            let prev = event.prev.as_deref().map_or("none".into(), line);
            writeln!(said, "event {:?} {} was {prev}", event.kind, line(&event.kv)).unwrap();
        }
    }
    said
}

fn line(kv: &KeyValue) -> String {
    let KeyValue { key, value, create_revision, mod_revision, version, lease } = kv;
    format!("{key:?}={value:?}@{create_revision}/{mod_revision}/{version}+{lease}")
}

async fn put(store: &Embedded, key: &str, value: &str, lease: i64) -> Revision {
    let op = Op::Put { key: key.to_owned().into(), value: value.to_owned().into(), lease };
    store.txn(Txn { success: vec![op], ..Txn::default() }).await.unwrap().revision
}

/// Run once when the format changes: `cargo test -p store -- --ignored writes_the_fixture`, then name the directory.
#[tokio::test]
#[ignore = "writes a fixture of the present format"]
async fn writes_the_fixture_of_the_present_format() {
    let dir = fixtures().join("format-new");
    let store = Embedded::open(&dir, options()).unwrap();
    store.lease_grant(3600, 7).await.unwrap();
    store.lease_grant(60, 8).await.unwrap();
    put(&store, "leased", "1", 7).await;
    put(&store, "kept from the start", "\0binary\u{ff}", 0).await;
    let has_base =
        || fs::read_dir(&dir).unwrap().any(|f| f.unwrap().file_name().to_string_lossy().starts_with("base-"));
    let mut round = 0;
    while !has_base() {
        put(&store, &format!("key-{}", round % 7), &"v".repeat(round % 90), 0).await;
        round += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.lease_revoke(8).await.unwrap();
    let both = vec![Op::put("together-1", "1"), Op::put("together-2", ""), Op::delete("key-3")];
    store.txn(Txn { success: both, ..Txn::default() }).await.unwrap();
    put(&store, "leased", "2", 7).await;
    store.compact(store.revision().await.unwrap() - 3).await.unwrap();
    let delete = Op::Delete { key: "key-4".into(), end: Some("key-6".into()) };
    store.txn(Txn { success: vec![delete], ..Txn::default() }).await.unwrap();
    fs::write(dir.join("expected.txt"), dump(&store).await).unwrap();
    store.close().await;
    fs::remove_file(dir.join("LOCK")).unwrap();
}
