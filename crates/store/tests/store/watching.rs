//! Watches under load, and what becomes of slow ones.

use std::sync::Arc;

use futures::StreamExt;
use store::*;

async fn put(store: &Embedded, key: &str, value: Vec<u8>) -> Revision {
    let txn = Txn { success: vec![Op::put(key.to_owned(), value)], ..Txn::default() };
    store.txn(txn).await.unwrap().revision
}

#[tokio::test]
async fn a_watcher_that_falls_behind_is_ended_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Options { history_bytes: 64 << 10, ..Options::default() }).unwrap();
    let mut slow = store.watch("busy".into(), None, 0).await.unwrap();
    let mut quick = store.watch("busy".into(), None, 0).await.unwrap();
    let mut idle = store.watch("idle".into(), None, 0).await.unwrap();
    for _ in 0..200 {
        let revision = put(&store, "busy", vec![0; 1000]).await;
        assert_eq!(quick.next().await.unwrap().unwrap().revision, revision);
    }
    assert!(matches!(slow.next().await, Some(Err(StoreError::SlowWatcher))));
    assert!(slow.next().await.is_none());
    // Nothing happened to the idle one's key, so it missed nothing.
    let revision = put(&store, "idle", vec![]).await;
    assert_eq!(idle.next().await.unwrap().unwrap().revision, revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_sees_every_event_in_order_while_many_write() {
    const WRITERS: usize = 8;
    const PUTS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(dir.path(), Options::default()).unwrap());
    let from = 2;
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let Keys { start, end } = Keys::prefix("k/".into());
                let mut watch = store.watch(start, end, from).await.unwrap();
                let mut last = from - 1;
                for _ in 0..WRITERS * PUTS {
                    let revision = watch.next().await.unwrap().unwrap().revision;
                    assert_eq!(revision, last + 1);
                    last = revision;
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..PUTS {
                    put(&store, &format!("k/{writer}"), vec![1; 100]).await;
                }
            })
        })
        .collect();
    for task in writers.into_iter().chain(readers) {
        task.await.unwrap();
    }
    assert_eq!(store.revision().await.unwrap(), 1 + (WRITERS * PUTS) as i64);
}

#[tokio::test]
async fn closing_ends_watches_and_refuses_requests() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Options::default()).unwrap();
    let mut watch = store.watch("a".into(), None, 0).await.unwrap();
    let (item, ()) = futures::join!(watch.next(), store.close());
    assert!(matches!(item, Some(Err(StoreError::Closed))));
    assert!(matches!(store.revision().await, Err(StoreError::Closed)));
    assert!(matches!(store.compact(1).await, Err(StoreError::Closed)));
    assert!(matches!(store.watch("a".into(), None, 0).await, Err(StoreError::Closed)));
    Embedded::open(dir.path(), Options::default()).expect("the directory is free again");
}
