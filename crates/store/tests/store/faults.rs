//! Faults below the engine: short writes, failed syncs, a full disk, flipped bits, power cuts.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use store::{
    disk::{Disk, DiskFile, RealDisk},
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
    lengths: HashMap<PathBuf, Lengths>,
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
    /// Nothing is written: no space left.
    NoSpace,
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
            if let Ok(file) = fs::OpenOptions::new().write(true).open(path) {
                let kept = (lengths.written - lengths.synced) * u64::from(share) / 256;
                file.set_len(lengths.synced + kept).unwrap();
                // Where zeros were, zeros are.
                file.set_len(lengths.prepared.max(lengths.synced + kept)).unwrap();
            }
        }
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

    fn lengths(&self, path: &Path, change: impl FnOnce(&mut Lengths)) {
        change(self.0.lock().unwrap().lengths.entry(path.to_owned()).or_default());
    }

    fn wrap(&self, path: &Path, file: io::Result<Box<dyn DiskFile>>, len: u64) -> io::Result<Box<dyn DiskFile>> {
        self.lengths(path, |lengths| *lengths = Lengths { written: len, synced: len, prepared: len });
        Ok(Box::new(FaultyFile { disk: self.clone(), path: path.to_owned(), file: file? }))
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl DiskFile for FaultyFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        let (len, result) = match self.disk.fails(&[Plan::ShortWrite, Plan::NoSpace]) {
            None => (data.len(), Ok(())),
            Some(Plan::NoSpace) => (0, Err(io::ErrorKind::StorageFull.into())),
            Some(_) => (data.len() / 2, Err(io::Error::other("short write"))),
        };
        self.file.append(&data[..len])?;
        self.disk.lengths(&self.path, |lengths| lengths.written += len as u64);
        result
    }

    fn prepare(&mut self, bytes: usize) -> io::Result<()> {
        match self.disk.fails(&[Plan::NoSpace]) {
            None => {
                self.disk.lengths(&self.path, |lengths| lengths.prepared = lengths.written + bytes as u64);
                self.file.prepare(bytes)
            }
            Some(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.disk.fails(&[Plan::FailedSync]).is_some() {
            return Err(io::Error::other("failed sync"));
        }
        self.disk.lengths(&self.path, |lengths| lengths.synced = lengths.written);
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
    fn free(&self, dir: &Path) -> io::Result<u64> {
        RealDisk.free(dir)
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
    for plan in [Plan::ShortWrite, Plan::FailedSync, Plan::NoSpace] {
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
