//! Random histories with restarts and crashes: the engine must agree with the naive model after every step.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use proptest::prelude::*;
use store::*;

use crate::{
    faults::{FaultyDisk, Plan},
    model::Model,
};

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    Delete(u8, u8),
    /// Puts two keys if the first was last changed `ago` revisions ago.
    Swap(u8, u8, Revision),
    /// Puts a key on a lease, which is granted if it is not there.
    Lease(u8, i64),
    Revoke(i64),
    /// To so many revisions before now.
    Compact(Revision),
    Reopen,
    /// A disk that was full has space again.
    Free,
    /// The disk dies after so many operations; later a power cut keeps some of what was not synced.
    Crash(usize, Plan, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let plan =
        prop_oneof![Just(Plan::ShortWrite), Just(Plan::FailedSync), Just(Plan::NoSpace), Just(Plan::LateNoSpace)];
    let step = prop_oneof![
        10 => (0..8u8, 0..200usize).prop_map(|(key, len)| Step::Put(key, len)),
        3 => (0..8u8, 0..8u8).prop_map(|(from, to)| Step::Delete(from, to)),
        3 => (0..8u8, 0..8u8, 0..4i64).prop_map(|(a, b, ago)| Step::Swap(a, b, ago)),
        2 => (0..8u8, 1..4i64).prop_map(|(key, lease)| Step::Lease(key, lease)),
        1 => (1..4i64).prop_map(Step::Revoke),
        2 => (0..6i64).prop_map(Step::Compact),
        1 => Just(Step::Reopen),
        1 => Just(Step::Free),
        1 => (0..6usize, plan, any::<u8>()).prop_map(|(after, plan, share)| Step::Crash(after, plan, share)),
    ];
    proptest::collection::vec(step, 1..60)
}

fn key(index: u8) -> Bytes {
    Bytes::from(vec![b'a' + index])
}

fn txn_of(step: &Step, revision: Revision) -> Option<Txn> {
    Some(match step {
        Step::Put(index, len) => Txn { success: vec![Op::put(key(*index), vec![b'v'; *len])], ..Txn::default() },
        Step::Delete(from, to) => {
            Txn { success: vec![Op::Delete { key: key(*from), end: Some(key(*to)) }], ..Txn::default() }
        }
        Step::Swap(a, b, ago) => Txn {
            compares: vec![Compare::ModRevision { key: key(*a), is: revision - ago }],
            success: vec![Op::put(key(*a), "swapped"), Op::put(key(b.max(&(a + 1)) + 8), "swapped")],
            failure: vec![Op::Range(all(0))],
        },
        Step::Lease(index, lease) => {
            Txn { success: vec![Op::Put { key: key(*index), value: "leased".into(), lease: *lease }], ..Txn::default() }
        }
        _ => return None,
    })
}

fn all(revision: Revision) -> Range {
    Range { revision, ..Range::prefix("") }
}

/// Small segments, so that rolling and bases happen all the time.
fn open(dir: &Path, disk: &FaultyDisk) -> Embedded {
    let options =
        Options { segment_bytes: 600, reserve_bytes: 2000, disk: Arc::new(disk.clone()), ..Options::default() };
    Embedded::open(dir, options).unwrap()
}

struct Run<'a> {
    dir: &'a Path,
    disk: FaultyDisk,
    /// How much of what was not synced the next power cut leaves.
    share: u8,
    engine: Option<Embedded>,
    model: Model,
    /// The disk was full at some time: the engine then gives up history as it likes.
    was_full: bool,
}

impl Run<'_> {
    fn engine(&self) -> &Embedded {
        self.engine.as_ref().unwrap()
    }

    async fn step(&mut self, step: &Step) {
        let revision = self.model.revision().await.unwrap();
        match step {
            Step::Reopen => {
                self.engine().close().await;
                self.reopen();
            }
            Step::Crash(after, plan, share) => {
                self.share = *share;
                self.was_full |= matches!(plan, Plan::NoSpace | Plan::LateNoSpace);
                self.disk.strike(*after, *plan);
                return;
            }
            Step::Free => {
                self.disk.free_space();
                return;
            }
            Step::Compact(ago) => {
                let to = revision - ago;
                match self.engine().compact(to).await {
                    // Nothing happened, which is what the comparison at the end looks for.
                    Err(StoreError::Full) => {}
                    Err(StoreError::Poisoned(_)) => {
                        self.reopen();
                        // Whether it was compacted is told by whether the revision before can still be read.
                        if matches!(self.engine().range(all(to - 1)).await, Err(StoreError::Compacted { oldest }) if oldest == to)
                        {
                            let _ = self.model.compact(to).await;
                        }
                    }
                    result => {
                        let model = self.model.compact(to).await;
                        assert!(self.was_full || format!("{result:?}") == format!("{model:?}"), "{result:?} {model:?}");
                    }
                }
            }
            Step::Revoke(lease) => match self.engine().lease_revoke(*lease).await {
                Err(StoreError::Full) => {}
                Err(StoreError::Poisoned(_)) => {
                    self.reopen();
                    if !self.engine().leases().await.unwrap().contains(lease) {
                        let _ = self.model.lease_revoke(*lease).await;
                    }
                }
                result => assert_eq!(format!("{result:?}"), format!("{:?}", self.model.lease_revoke(*lease).await)),
            },
            _ => {
                if let Step::Lease(_, lease) = step {
                    self.grant(*lease).await;
                }
                let txn = txn_of(step, revision).unwrap();
                match self.engine().txn(txn.clone()).await {
                    Err(StoreError::Full) => {}
                    Err(StoreError::Poisoned(_)) => {
                        self.reopen();
                        if self.engine().revision().await.unwrap() > revision {
                            self.model.txn(txn).await.unwrap();
                        }
                    }
                    result => assert_eq!(format!("{result:?}"), format!("{:?}", self.model.txn(txn).await)),
                }
            }
        }
        self.agree().await;
    }

    /// Long enough that it does not end by itself.
    async fn grant(&mut self, lease: i64) {
        match self.engine().lease_grant(3600, lease).await {
            Err(StoreError::Full) => {}
            Err(StoreError::Poisoned(_)) => {
                self.reopen();
                // The disk is healthy again; whether the first try arrived does not matter.
                let _ = self.engine().lease_grant(3600, lease).await;
                let _ = self.model.lease_grant(3600, lease).await;
            }
            result => assert_eq!(format!("{result:?}"), format!("{:?}", self.model.lease_grant(3600, lease).await)),
        }
    }

    /// A crash: what was not synced may be lost, then everything starts again on a healthy disk.
    fn reopen(&mut self) {
        self.engine = None;
        self.disk.cut_power(self.share);
        self.disk = FaultyDisk::default();
        self.engine = Some(open(self.dir, &self.disk));
    }

    /// Every revision that is held reads the same, and a watch tells the same story.
    async fn agree(&self) {
        let (engine, model) = (self.engine(), &self.model);
        let revision = model.revision().await.unwrap();
        assert_eq!(engine.revision().await.unwrap(), revision);
        assert_eq!(engine.leases().await.unwrap(), model.leases().await.unwrap());
        if self.was_full {
            assert_eq!(engine.range(all(0)).await.unwrap(), model.range(all(0)).await.unwrap());
            return;
        }
        let mut oldest = None;
        for at in (1..=revision).rev().take(30) {
            match (engine.range(all(at)).await, model.range(all(at)).await) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "at {at}"),
                (got, want) => {
                    assert_eq!(format!("{got:?}"), format!("{want:?}"));
                    break;
                }
            }
            oldest = Some(at);
        }
        let from = oldest.unwrap();
        let (start, end) = (Bytes::from_static(b"\0"), Some(Bytes::from_static(b"\0")));
        let mut got = engine.watch(start.clone(), end.clone(), from).await.unwrap();
        let mut want = model.watch(start, end, from).await.unwrap();
        for _ in from.max(2)..=revision {
            assert_eq!(got.next().await.unwrap().unwrap(), want.next().await.unwrap().unwrap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if testkit::long() { 10_000 } else { 250 }, ..ProptestConfig::default() })]
    #[test]
    fn the_engine_agrees_with_the_model_through_restarts_and_crashes(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let disk = FaultyDisk::default();
            let engine = Some(open(dir.path(), &disk));
            let mut run = Run { dir: dir.path(), disk, share: 0, engine, model: Model::default(), was_full: false };
            for step in &steps {
                run.step(step).await;
            }
        });
    }
}
