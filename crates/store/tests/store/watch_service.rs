//! The Watch service, message by message: what `etcdctl` does not show.

use std::path::Path;

use store::{
    Op, Store, Txn,
    etcd::proto::{
        etcdserverpb::{
            WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchResponse, watch_request::RequestUnion,
        },
        mvccpb::event::Type,
    },
};

use crate::{etcd::Served, session::Session};

fn on(key: &'static str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.into(), ..Default::default() }
}

async fn put(served: &Served, key: &'static str, value: Vec<u8>) -> i64 {
    let txn = Txn { success: vec![Op::put(key, value)], ..Txn::default() };
    served.store.txn(txn).await.unwrap().revision
}

fn events(response: &WatchResponse) -> Vec<(Type, String)> {
    let key = |event: &store::etcd::proto::mvccpb::Event| {
        String::from_utf8_lossy(&event.kv.as_ref().unwrap().key).into_owned()
    };
    response.events.iter().map(|event| (event.r#type(), key(event))).collect()
}

async fn with<F: Future<Output = ()>>(test: impl FnOnce(Served, Session) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let path: &Path = dir.path();
    let served = Served::start(path);
    let session = Session::start(served.channel().await);
    test(served, session).await;
}

#[tokio::test]
async fn many_watches_share_a_stream_and_end_apart() {
    with(|served, mut session| async move {
        let (a, b) = (session.create(on("a")).await, session.create(on("b")).await);
        assert_eq!((a.watch_id, a.created, b.watch_id, b.created), (0, true, 1, true));
        assert_eq!(session.create(WatchCreateRequest { watch_id: 7, ..on("a") }).await.watch_id, 7);
        let twice = session.create(WatchCreateRequest { watch_id: 7, ..on("a") }).await;
        assert_eq!((twice.watch_id, twice.created, twice.canceled), (-1, true, true));
        assert!(twice.cancel_reason.contains("duplicate watch ID"));
        let empty = session.create(WatchCreateRequest { range_end: "a".into(), ..on("b") }).await;
        assert_eq!((empty.watch_id, empty.canceled), (-1, true));
        put(&served, "b", vec![]).await;
        assert_eq!(session.next().await.watch_id, 1);
        session.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 1 })).await;
        let cancelled = session.next().await;
        assert_eq!((cancelled.watch_id, cancelled.canceled), (1, true));
        put(&served, "b", vec![]).await;
        put(&served, "a", vec![]).await;
        let mut ids = [session.next().await.watch_id, session.next().await.watch_id];
        ids.sort_unstable();
        assert_eq!(ids, [0, 7]);
        served.stop().await;
        let end = session.message().await.unwrap_err();
        assert_eq!((end.code(), end.message()), (tonic::Code::Unavailable, "etcdserver: server stopped"));
    })
    .await;
}

/// The API server serves reads from its cache on the strength of this.
#[tokio::test]
async fn progress_is_told_only_after_everything_up_to_it() {
    with(|served, mut session| async move {
        let mut last = 1;
        for round in 0..50u8 {
            for _ in 0..20 {
                last = put(&served, "a", vec![round]).await;
            }
            put(&served, "other", vec![]).await;
            if round == 0 {
                // One that waits for the future holds nobody up.
                session.create(WatchCreateRequest { start_revision: 1_000_000, ..on("a") }).await;
                session.create(WatchCreateRequest { start_revision: 2, ..on("a") }).await;
            }
            session.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
            let mut seen = 0;
            let progress = loop {
                let response = session.next().await;
                match response.events.last() {
                    Some(event) => seen = event.kv.as_ref().unwrap().mod_revision,
                    None => break response,
                }
            };
            assert_eq!((progress.watch_id, seen), (-1, last));
            assert_eq!(progress.header.unwrap().revision, last + 1);
        }
    })
    .await;
}

/// While every revision is one of the watched key, no progress may run ahead of the events, however close the race.
#[tokio::test(flavor = "multi_thread")]
async fn progress_never_runs_ahead_of_a_busy_writer() {
    with(|served, mut session| async move {
        session.create(on("a")).await;
        let store = served.store.clone();
        let writer = tokio::spawn(async move {
            loop {
                let txn = Txn { success: vec![Op::put("a", "")], ..Txn::default() };
                store.txn(txn).await.unwrap();
            }
        });
        let mut seen = 1;
        for _ in 0..500 {
            session.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
            let told = loop {
                let response = session.next().await;
                match response.events.last() {
                    Some(event) => seen = event.kv.as_ref().unwrap().mod_revision,
                    None => break response.header.unwrap().revision,
                }
            };
            assert!(told <= seen, "told of {told}, seen {seen}");
        }
        writer.abort();
    })
    .await;
}

#[tokio::test]
async fn a_large_revision_comes_in_fragments_to_those_who_ask() {
    with(|served, mut session| async move {
        let range = WatchCreateRequest { range_end: "z".into(), prev_kv: true, ..on("a") };
        let txn = |byte: u8| Txn {
            success: ["a", "b"].map(|key| Op::put(key, vec![byte; 700 << 10])).into(),
            ..Txn::default()
        };
        served.store.txn(txn(1)).await.unwrap();
        session.create(WatchCreateRequest { fragment: true, ..range.clone() }).await;
        served.store.txn(txn(2)).await.unwrap();
        let (first, second) = (session.next().await, session.next().await);
        assert_eq!((first.fragment, second.fragment), (true, false));
        assert_eq!([events(&first), events(&second)].concat(), [(Type::Put, "a".into()), (Type::Put, "b".into())]);
        let mut whole = Session::start(served.channel().await);
        whole.create(WatchCreateRequest { start_revision: 3, ..range }).await;
        assert_eq!(whole.next().await.events.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_compacted_start_is_cancelled_with_the_oldest_revision() {
    with(|served, mut session| async move {
        for _ in 0..5 {
            put(&served, "a", vec![]).await;
        }
        served.store.compact(4).await.unwrap();
        let created = session.create(WatchCreateRequest { start_revision: 2, ..on("a") }).await;
        assert_eq!((created.created, created.canceled), (true, false));
        let cancelled = session.next().await;
        assert_eq!((cancelled.watch_id, cancelled.canceled, cancelled.compact_revision), (created.watch_id, true, 4));
    })
    .await;
}
