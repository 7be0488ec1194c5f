//! Opening where it cannot be, limits, and what the engine does on its own: leases end, history and segments go.

use std::{
    fs, io,
    path::Path,
    process::Command,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use futures::StreamExt;
use store::{
    disk::{Disk, DiskFile, RealDisk, Space},
    *,
};

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    Embedded::open(dir, Options::default())
}

async fn put(store: &Embedded, key: &str, value: Vec<u8>, lease: i64) -> Result<Revision, StoreError> {
    let op = Op::Put { key: key.to_owned().into(), value: value.into(), lease };
    Ok(store.txn(Txn { success: vec![op], ..Txn::default() }).await?.revision)
}

#[tokio::test]
async fn a_second_open_names_the_process_that_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let _store = open(dir.path()).unwrap();
    match open(dir.path()) {
        Err(OpenError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{:?}", other.map(|_| "opened")),
    }
}

/// Secrets are in it, and others could have been let in by an older release or a careless administrator.
#[tokio::test]
async fn other_users_cannot_enter_the_store() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let inside = dir.path().join("store");
    for path in [dir.path(), &inside] {
        drop(open(path).unwrap());
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
}

/// A file system of its own, unmounted at the end.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(options: &str) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(dir.path()).status();
        assert!(mounted.unwrap().success(), "mounting needs root");
        Mount(dir)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(self.0.path()).status().unwrap().success());
    }
}

#[test]
fn a_full_disk_is_refused_with_what_is_missing() {
    let mount = Mount::new("size=64k");
    std::fs::write(mount.0.path().join("ballast"), [1; 62 << 10]).unwrap();
    match open(mount.0.path()) {
        Err(OpenError::Full { free, needed, .. }) => assert!(free < needed),
        other => panic!("{:?}", other.map(|_| "opened")),
    }
}

#[test]
fn a_read_only_disk_is_refused() {
    let mount = Mount::new("size=64m,ro");
    for dir in [mount.0.path().to_owned(), mount.0.path().join("new")] {
        match open(&dir) {
            Err(OpenError::ReadOnly { path }) => assert!(path.starts_with(mount.0.path())),
            other => panic!("{:?}", other.map(|_| "opened")),
        }
    }
}

#[tokio::test]
async fn a_request_over_its_limits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    assert!(matches!(put(&store, "a", vec![0; 2 << 20], 0).await, Err(StoreError::TooLarge { .. })));
    assert!(matches!(put(&store, "", vec![], 0).await, Err(StoreError::EmptyKey)));
    let ops = (0..129).map(|n| Op::put(format!("{n}"), "")).collect();
    let txn = Txn { success: ops, ..Txn::default() };
    assert!(matches!(store.txn(txn).await, Err(StoreError::TooManyOps { count: 129, limit: 128 })));
    assert!(matches!(store.lease_grant(i64::MAX, 0).await, Err(StoreError::LeaseTooLong { .. })));
    assert_eq!(store.revision().await.unwrap(), 1);
}

#[tokio::test]
async fn a_lease_that_is_not_kept_alive_ends_with_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let short = store.lease_grant(1, 0).await.unwrap();
    let long = store.lease_grant(600, 0).await.unwrap();
    assert_ne!(short.id, long.id);
    put(&store, "a", vec![], short.id).await.unwrap();
    put(&store, "b", vec![], long.id).await.unwrap();
    let mut watch = store.watch("a".into(), None, 0).await.unwrap();
    let granted = std::time::Instant::now();
    let batch = watch.next().await.unwrap().unwrap();
    assert!(granted.elapsed() > Duration::from_millis(800), "ended after {:?}", granted.elapsed());
    assert_eq!(batch.events[0].kind, EventKind::Delete);
    assert_eq!(store.leases().await.unwrap(), [long.id]);
    assert_eq!(store.range(Range::prefix("")).await.unwrap().count, 1);
}

#[tokio::test]
async fn history_older_than_asked_for_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { history: Duration::from_millis(100), ..Options::default() };
    let store = Embedded::open(dir.path(), options).unwrap();
    for n in 0..10u8 {
        put(&store, "a", vec![n], 0).await.unwrap();
    }
    let at_two = || store.range(Range { revision: 2, ..Range::key("a") });
    // On a slow disk the first puts may be given up before the last are made.
    let gone = async {
        while !matches!(at_two().await, Err(StoreError::Compacted { oldest: 11 })) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("history is given up");
    assert_eq!(store.range(Range { revision: 11, ..Range::key("a") }).await.unwrap().kvs[0].value[..], [9]);
}

/// Ten times the live data is written again and again; the disk never holds more than a few times of it.
#[tokio::test]
async fn overwritten_data_gives_its_disk_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options { segment_bytes: 64 << 10, history_bytes: 64 << 10, reserve_bytes: 4096, ..Options::default() };
    let store = Embedded::open(dir.path(), options.clone()).unwrap();
    let mut largest = 0;
    for round in 0..40u8 {
        for key in 0..64 {
            put(&store, &format!("key-{key:02}"), vec![round; 1000], 0).await.unwrap();
        }
        largest = largest.max(disk_usage(dir.path()));
    }
    assert!(largest < 12 * 64 * 1000, "{largest} bytes for {} of live data", 64 * 1000);
    store.close().await;
    assert!(
        fs::read_dir(dir.path()).unwrap().any(|file| file.unwrap().file_name().to_string_lossy().starts_with("base-"))
    );
    let store = Embedded::open(dir.path(), options).unwrap();
    let all = store.range(Range::prefix("key-")).await.unwrap();
    assert_eq!((all.count, all.revision), (64, 1 + 40 * 64));
    assert!(all.kvs.iter().all(|kv| kv.value[..] == [39; 1000] && kv.version == 40));
}

/// Real files, except that what is written to a base's draft waits until it is let through.
#[derive(Clone, Default)]
struct SlowBase(Arc<(Mutex<Progress>, Condvar)>);

#[derive(Default)]
struct Progress {
    begun: bool,
    released: bool,
}

impl SlowBase {
    fn begun(&self) -> bool {
        self.0.0.lock().unwrap().begun
    }

    fn release(&self) {
        self.0.0.lock().unwrap().released = true;
        self.0.1.notify_all();
    }
}

struct Released(SlowBase);

impl Drop for Released {
    fn drop(&mut self) {
        self.0.release();
    }
}

struct SlowFile {
    file: Box<dyn DiskFile>,
    disk: SlowBase,
}

impl DiskFile for SlowFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        let (progress, changed) = &*self.disk.0;
        let mut progress = progress.lock().unwrap();
        progress.begun = true;
        drop(changed.wait_while(progress, |progress| !progress.released).unwrap());
        self.file.append(data)
    }

    fn prepare(&mut self, len: u64) -> io::Result<()> {
        self.file.prepare(len)
    }

    fn prepared(&self) -> u64 {
        self.file.prepared()
    }

    fn rewind(&mut self, len: u64) -> io::Result<()> {
        self.file.rewind(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

impl Disk for SlowBase {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn read(&self, path: &Path) -> io::Result<Box<dyn io::Read>> {
        RealDisk.read(path)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = RealDisk.create(path)?;
        match path.extension().is_some_and(|extension| extension == "tmp") {
            true => Ok(Box::new(SlowFile { file, disk: self.clone() })),
            false => Ok(file),
        }
    }
    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.reopen(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        RealDisk.space(dir)
    }
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        RealDisk.reserve(path, bytes)
    }
    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.overwrite(path)
    }
}

#[tokio::test]
async fn while_a_base_is_written_writers_compaction_and_leases_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SlowBase::default();
    let options = Options {
        segment_bytes: 16 << 10,
        history_bytes: 16 << 10,
        disk: Arc::new(disk.clone()),
        ..Options::default()
    };
    let store = Embedded::open(dir.path(), options).unwrap();
    // A test that fails must not leave it standing.
    let _released = Released(disk.clone());
    let mut puts = 0;
    while !disk.begun() {
        put(&store, "a", vec![0; 1000], 0).await.unwrap();
        puts += 1;
        assert!(puts < 1000, "no base is ever begun");
    }
    // It stands still now. More than a whole round of segments is written, and a lease ends in time.
    let lease = store.lease_grant(3, 0).await.unwrap();
    put(&store, "leased", vec![], lease.id).await.unwrap();
    for _ in 0..100 {
        put(&store, "a", vec![1; 1000], 0).await.unwrap();
    }
    let revision = store.revision().await.unwrap();
    match store.compact(revision).await {
        Ok(()) | Err(StoreError::Compacted { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    // So little history is kept that only a watch from here on is sure to see the end.
    let leased = store.range(Range::key("leased")).await.unwrap();
    if !leased.kvs.is_empty() {
        let mut ended = store.watch("leased".into(), None, leased.revision + 1).await.unwrap();
        let gone = tokio::time::timeout(Duration::from_secs(30), ended.next()).await.expect("the lease ends");
        assert_eq!(gone.unwrap().unwrap().events[0].kind, EventKind::Delete);
    }
    disk.release();
    store.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!(store.range(Range::key("a")).await.unwrap().kvs[0].value[..], [1; 1000]);
}

fn disk_usage(dir: &Path) -> u64 {
    // A segment may be removed while it is looked at.
    fs::read_dir(dir).unwrap().filter_map(|file| file.unwrap().metadata().ok()).map(|data| data.len()).sum()
}
