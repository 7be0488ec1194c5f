//! Faults below the engine: short writes, failed syncs, a full disk, flipped bits, power cuts.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use store::{
    disk::{Disk, DiskFile, RealDisk, Space},
    *,
};

/// Real files that fail when told to, and know what a power cut would leave of them.
#[derive(Clone, Default)]
pub(crate) struct FaultyDisk(Arc<Mutex<Faults>>);

#[derive(Default)]
struct Faults {
    /// Appends and syncs until the plan strikes.
    countdown: Option<usize>,
    plan: Plan,
    /// Once struck every further write fails, as on a dying disk.
    struck: bool,
    lengths: HashMap<PathBuf, Arc<Mutex<Lengths>>>,
}

#[derive(Clone, Copy, Default)]
struct Lengths {
    written: u64,
    synced: u64,
    /// With the zeros behind what is written.
    prepared: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Plan {
    /// Half of the data is written, then an I/O error.
    #[default]
    ShortWrite,
    /// The data is written, and the sync fails.
    FailedSync,
    /// Nothing more can be allocated: no space left.
    NoSpace,
    /// The same, noticed only in the middle of a write, as where a file system copies on write.
    LateNoSpace,
}

impl FaultyDisk {
    /// The `after`th write or sync from now on that fits the plan fails.
    pub(crate) fn strike(&self, after: usize, plan: Plan) {
        let mut faults = self.0.lock().unwrap();
        (faults.countdown, faults.plan) = (Some(after), plan);
    }

    /// Cuts each file somewhere between what was synced and what was written: `share` of 256 of the difference stays.
    pub(crate) fn cut_power(&self, share: u8) {
        for (path, lengths) in &self.0.lock().unwrap().lengths {
            let lengths = *lengths.lock().unwrap();
            if let Ok(file) = fs::OpenOptions::new().write(true).open(path) {
                let kept = (lengths.written - lengths.synced) * u64::from(share) / 256;
                file.set_len(lengths.synced + kept).unwrap();
                // Where zeros were, zeros are.
                file.set_len(lengths.prepared.max(lengths.synced + kept)).unwrap();
            }
        }
    }

    /// Frees the disk that was full.
    pub(crate) fn free_space(&self) {
        let mut faults = self.0.lock().unwrap();
        if matches!(faults.plan, Plan::NoSpace | Plan::LateNoSpace) {
            (faults.struck, faults.countdown) = (false, None);
        }
    }

    fn is_full(&self) -> bool {
        let faults = self.0.lock().unwrap();
        faults.struck && matches!(faults.plan, Plan::NoSpace | Plan::LateNoSpace)
    }

    /// Whether this operation is to fail.
    fn fails(&self, plans: &[Plan]) -> Option<Plan> {
        let mut faults = self.0.lock().unwrap();
        if faults.struck {
            return Some(faults.plan);
        }
        if !plans.contains(&faults.plan) {
            return None;
        }
        faults.countdown = faults.countdown?.checked_sub(1);
        faults.struck = faults.countdown.is_none();
        faults.struck.then_some(faults.plan)
    }

    fn wrap(&self, path: &Path, file: io::Result<Box<dyn DiskFile>>, len: u64) -> io::Result<Box<dyn DiskFile>> {
        let file = file?;
        let lengths = Lengths { written: len, synced: len, prepared: file.prepared() };
        let lengths = Arc::new(Mutex::new(lengths));
        self.0.lock().unwrap().lengths.insert(path.to_owned(), lengths.clone());
        Ok(Box::new(FaultyFile { disk: self.clone(), lengths, file }))
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    /// What the disk knows of this file, whatever its name is by now.
    lengths: Arc<Mutex<Lengths>>,
    file: Box<dyn DiskFile>,
}

impl DiskFile for FaultyFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        let lengths = *self.lengths.lock().unwrap();
        let fits = lengths.written + data.len() as u64 <= lengths.prepared;
        let (len, result) = match self.disk.fails(&[Plan::ShortWrite, Plan::NoSpace, Plan::LateNoSpace]) {
            None => (data.len(), Ok(())),
            Some(Plan::NoSpace) if fits => (data.len(), Ok(())),
            Some(Plan::NoSpace) => (0, Err(io::ErrorKind::StorageFull.into())),
            Some(Plan::LateNoSpace) => (data.len() / 2, Err(io::ErrorKind::StorageFull.into())),
            Some(_) => (data.len() / 2, Err(io::Error::other("short write"))),
        };
        self.file.append(&data[..len])?;
        self.lengths.lock().unwrap().written += len as u64;
        result
    }

    fn prepare(&mut self, len: u64) -> io::Result<()> {
        match self.disk.fails(&[Plan::NoSpace, Plan::LateNoSpace]) {
            None => {
                self.lengths.lock().unwrap().prepared = len;
                self.file.prepare(len)
            }
            Some(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn prepared(&self) -> u64 {
        self.file.prepared()
    }

    fn rewind(&mut self, len: u64) -> io::Result<()> {
        *self.lengths.lock().unwrap() = Lengths { written: len, synced: len, prepared: len };
        self.file.rewind(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        if matches!(self.disk.fails(&[Plan::FailedSync]), Some(Plan::FailedSync | Plan::ShortWrite)) {
            return Err(io::Error::other("failed sync"));
        }
        let mut lengths = self.lengths.lock().unwrap();
        lengths.synced = lengths.written;
        self.file.sync()
    }
}

impl Disk for FaultyDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn read(&self, path: &Path) -> io::Result<Box<dyn Read>> {
        RealDisk.read(path)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.wrap(path, RealDisk.create(path), 0)
    }
    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn DiskFile>> {
        self.wrap(path, RealDisk.reopen(path, len), len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)?;
        let mut faults = self.0.lock().unwrap();
        let lengths = faults.lengths.remove(from).unwrap_or_default();
        faults.lengths.insert(to.to_owned(), lengths);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.lock().unwrap().lengths.remove(path);
        RealDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        let space = RealDisk.space(dir)?;
        Ok(if self.is_full() { Space { free: 0, ..space } } else { space })
    }
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        if self.is_full() { Err(io::ErrorKind::StorageFull.into()) } else { RealDisk.reserve(path, bytes) }
    }
    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.wrap(path, RealDisk.overwrite(path), 0)
    }
}

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    Embedded::open(dir, Options::default())
}

async fn put(store: &Embedded, key: &str, value: &str) -> Result<TxnResult, StoreError> {
    let op = Op::put(key.to_owned(), value.to_owned());
    store.txn(Txn { success: vec![op], ..Txn::default() }).await
}

async fn get(store: &Embedded, key: &str) -> Option<String> {
    let result = store.range(Range::key(key.to_owned())).await.unwrap();
    result.kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
}

#[tokio::test]
async fn a_failed_write_poisons_the_store_but_not_its_reads() {
    for plan in [Plan::ShortWrite, Plan::FailedSync] {
        let dir = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::default();
        let store = Embedded::open(dir.path(), Options { disk: Arc::new(disk.clone()), ..Options::default() }).unwrap();
        put(&store, "a", "1").await.unwrap();
        let mut watch = store.watch("a".into(), None, 0).await.unwrap();
        disk.strike(0, plan);
        for value in ["2", "3"] {
            let error = put(&store, "a", value).await.unwrap_err();
            assert!(matches!(error, StoreError::Poisoned(_)), "{plan:?}: {error}");
        }
        assert!(matches!(store.lease_grant(5, 0).await, Err(StoreError::Poisoned(_))));
        assert_eq!(get(&store, "a").await.as_deref(), Some("1"), "{plan:?}");
        assert_eq!(store.revision().await.unwrap(), 2);
        let event = futures::FutureExt::now_or_never(futures::StreamExt::next(&mut watch));
        assert!(event.is_none(), "{plan:?}: nobody hears of a change that was refused");
        drop(store);

        disk.cut_power(128);
        let store = open(dir.path()).unwrap();
        assert_eq!(get(&store, "a").await.as_deref(), Some("1"), "{plan:?}");
        assert_eq!(put(&store, "a", "4").await.unwrap().revision, 3);
    }
}

#[tokio::test]
async fn a_torn_tail_is_cut_wherever_it_was_torn() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    put(&store, "a", "1").await.unwrap();
    drop(store);
    let log = dir.path().join("log-0000000000000001");
    let whole = fs::read(&log).unwrap();
    let store = open(dir.path()).unwrap();
    put(&store, "a", "2").await.unwrap();
    drop(store);
    let longer = fs::read(&log).unwrap();
    for len in whole.len()..longer.len() {
        fs::write(&log, &longer[..len]).unwrap();
        let store = open(dir.path()).unwrap();
        assert_eq!(get(&store, "a").await.as_deref(), Some("1"));
        drop(store);
        assert_eq!(fs::read(&log).unwrap(), whole, "cut at {len}");
    }
    // A tail of the right length whose blocks never reached the disk.
    fs::write(&log, [whole.as_slice(), &[0; 100]].concat()).unwrap();
    assert_eq!(get(&open(dir.path()).unwrap(), "a").await.as_deref(), Some("1"));
    // A segment whose first frame was never written whole.
    fs::write(&log, &whole[..11]).unwrap();
    assert_eq!(open(dir.path()).unwrap().revision().await.unwrap(), 1);
}

#[tokio::test]
async fn a_flipped_bit_before_the_last_frame_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    put(&store, "a", "1").await.unwrap();
    drop(store);
    let log = dir.path().join("log-0000000000000001");
    let first_two = fs::read(&log).unwrap().len();
    let store = open(dir.path()).unwrap();
    put(&store, "a", "2").await.unwrap();
    drop(store);
    let good = fs::read(&log).unwrap();
    for bit in 0..first_two * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(&log, &bad).unwrap();
        match open(dir.path()) {
            Err(OpenError::Corrupt { file, offset, .. }) => {
                assert_eq!(file, log);
                assert!(offset <= bit as u64 / 8, "bit {bit}: {offset}");
            }
            other => panic!("bit {bit}: {:?}", other.map(|_| "opened")),
        }
        assert_eq!(fs::read(&log).unwrap(), bad, "a refused file is left alone");
    }
}

#[tokio::test]
async fn zeros_end_a_segment_but_hide_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Options { segment_bytes: 100, ..Options::default() }).unwrap();
    for _ in 0..5 {
        put(&store, "a", &"x".repeat(60)).await.unwrap();
    }
    drop(store);
    let log = |seq: u64| dir.path().join(format!("log-{seq:016x}"));
    for seq in 1..=2 {
        let file = fs::OpenOptions::new().write(true).open(log(seq)).unwrap();
        file.set_len(file.metadata().unwrap().len() + 1000).unwrap();
    }
    let store = open(dir.path()).unwrap();
    assert_eq!(store.revision().await.unwrap(), 6);
    drop(store);

    let mut bytes = fs::read(log(1)).unwrap();
    *bytes.last_mut().unwrap() = 1;
    fs::write(log(1), bytes).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::Corrupt { file, .. }) if file == log(1)));
}

#[tokio::test]
async fn a_missing_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Options { segment_bytes: 100, ..Options::default() }).unwrap();
    for _ in 0..5 {
        put(&store, "a", &"x".repeat(60)).await.unwrap();
    }
    drop(store);
    fs::remove_file(dir.path().join("log-0000000000000002")).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::Corrupt { file, .. }) if file.ends_with("log-0000000000000002")));
}

/// A store on a disk that can be filled, with one key in it.
async fn on_faulty_disk() -> (tempfile::TempDir, FaultyDisk, Embedded) {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let store = Embedded::open(dir.path(), Options { disk: Arc::new(disk.clone()), ..Options::default() }).unwrap();
    put(&store, "a", &"x".repeat(1000)).await.unwrap();
    (dir, disk, store)
}

/// Fills the disk, and creates keys until one is refused.
async fn fill(disk: &FaultyDisk, store: &Embedded, plan: Plan) -> Revision {
    disk.strike(0, plan);
    for index in 0.. {
        match put(store, &format!("filler-{index}"), &"x".repeat(100 << 10)).await {
            Ok(_) => assert!(index < 100, "a full disk takes no keys without end"),
            Err(StoreError::Full) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    store.revision().await.unwrap()
}

#[tokio::test]
async fn a_full_disk_refuses_new_keys_and_lets_old_ones_change_and_go() {
    let (dir, disk, store) = on_faulty_disk().await;
    let revision = fill(&disk, &store, Plan::NoSpace).await;
    assert!(matches!(put(&store, "b", "1").await, Err(StoreError::Full)));
    assert!(matches!(store.lease_grant(5, 0).await, Err(StoreError::Full)));
    assert!(matches!(put(&store, "a", &"x".repeat(9000)).await, Err(StoreError::Full)), "it grows too much");
    put(&store, "a", &"x".repeat(1200)).await.unwrap();
    let delete = Txn { success: vec![Op::delete("filler-0")], ..Txn::default() };
    assert_eq!(store.txn(delete.clone()).await.unwrap().revision, revision + 2);
    drop(store);

    // A restart on a disk that is still full finds all of that, and deletes on.
    disk.cut_power(0);
    let store = Embedded::open(dir.path(), Options { disk: Arc::new(disk.clone()), ..Options::default() }).unwrap();
    assert_eq!(store.revision().await.unwrap(), revision + 2);
    assert_eq!(get(&store, "a").await.map(|value| value.len()), Some(1200));
    assert!(get(&store, "filler-0").await.is_none());
    assert!(matches!(put(&store, "b", "1").await, Err(StoreError::Full)));
}

#[tokio::test]
async fn updates_leave_half_of_the_reserve_to_deletions() {
    let (_dir, disk, store) = on_faulty_disk().await;
    fill(&disk, &store, Plan::NoSpace).await;
    let mut updates = 0;
    while put(&store, "filler-0", &format!("{updates}{}", "x".repeat(100 << 10))).await.is_ok() {
        updates += 1;
        assert!(updates < 100);
    }
    assert!(updates > 20, "{updates}");
    for index in 0..2 {
        store.txn(Txn { success: vec![Op::delete(format!("filler-{index}"))], ..Txn::default() }).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_writes_again_once_its_disk_has_space() {
    for plan in [Plan::NoSpace, Plan::LateNoSpace] {
        let (dir, disk, store) = on_faulty_disk().await;
        let revision = fill(&disk, &store, plan).await;
        disk.free_space();
        let begun = std::time::Instant::now();
        while let Err(error) = put(&store, "b", "1").await {
            assert!(matches!(error, StoreError::Full), "{plan:?}: {error}");
            assert!(begun.elapsed().as_secs() < 5, "{plan:?}");
            tokio::task::yield_now().await;
        }
        assert_eq!(store.revision().await.unwrap(), revision + 1, "{plan:?}: nothing that was refused is there");
        drop(store);
        let store = open(dir.path()).unwrap();
        assert_eq!(store.revision().await.unwrap(), revision + 1, "{plan:?}");
    }
}

#[tokio::test]
async fn a_lease_that_a_full_disk_did_not_end_lasts_once_more() {
    let (_dir, disk, store) = on_faulty_disk().await;
    let lease = store.lease_grant(3600, 7).await.unwrap();
    disk.strike(0, Plan::LateNoSpace);
    assert!(matches!(store.lease_revoke(lease.id).await, Err(StoreError::Full)));
    assert!(store.lease_time_to_live(lease.id).await.unwrap().remaining_seconds > 3000);
    disk.free_space();
    store.lease_revoke(lease.id).await.unwrap();
    assert!(store.leases().await.unwrap().is_empty());
}
