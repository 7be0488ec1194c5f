//! A process that is killed under load loses nothing it acknowledged, and leaves nothing half done.
//!
//! Every change of the child is one transaction of one writer: it counts up in two keys of its own. So the parent can say exactly
//! what must be there: each writer's count is the last one acknowledged or the one after it, both keys agree, and the store's revision
//! is the sum of all counts.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use store::*;
use testkit::{Random, long};

const DIR: &str = "FERRY_STORE_CRASH_DIR";
const KIND: &str = "FERRY_STORE_CRASH_KIND";

/// How the store is opened, and by how many it is written to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Small segments, so that a kill also hits rolling.
    Usual,
    /// History is given up at once, so that a kill also hits compaction and bases.
    Forgetful,
    /// As a cluster opens it, with many writers.
    Crowded,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Usual, Kind::Forgetful, Kind::Crowded];

    pub(crate) fn options(self) -> Options {
        let options = Options { segment_bytes: 64 << 10, ..Options::default() };
        match self {
            Kind::Usual => options,
            Kind::Forgetful => Options { history_bytes: 128 << 10, history: Duration::from_millis(20), ..options },
            Kind::Crowded => Options::default(),
        }
    }

    pub(crate) fn writers(self) -> usize {
        if self == Kind::Crowded { 32 } else { 8 }
    }
}

fn everything() -> Keys {
    Keys::prefix("".into())
}

/// Not a test but the process that is killed.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let named = std::env::var(KIND).unwrap();
        let kind = *Kind::ALL.iter().find(|kind| format!("{kind:?}") == named).unwrap();
        let store = Arc::new(Embedded::open(Path::new(&dir), kind.options()).unwrap());
        let mut tasks: Vec<_> =
            (0..kind.writers()).map(|writer| tokio::spawn(count(store.clone(), writer, kind))).collect();
        tasks.push(tokio::spawn(follow(store.clone())));
        for task in tasks {
            task.await.unwrap();
        }
    });
}

async fn count(store: Arc<Embedded>, writer: usize, kind: Kind) {
    let mut next = found(&store, writer).await.map_or(0, |found| found.count) + 1;
    loop {
        let value = |extra: usize| format!("{next} {}", "x".repeat(next * 31 % extra));
        let mut success = vec![Op::put(key(writer, "a"), value(700)), Op::put(key(writer, "b"), value(90))];
        // One that comes and goes, so that deletions are replayed too.
        success.push(match next % 3 {
            0 => Op::delete(key(writer, "c")),
            _ => Op::put(key(writer, "c"), "here"),
        });
        let revision = match store.txn(Txn { success, ..Txn::default() }).await {
            Ok(result) => result.revision,
            Err(StoreError::Full) => {
                writeln!(std::io::stdout(), "full").unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        writeln!(std::io::stdout(), "acked {writer} {next} {revision}").unwrap();
        if kind == Kind::Forgetful && next % 97 == 0 {
            let _ = store.compact(revision - 40).await;
        }
        next += 1;
    }
}

/// While it lives, a watcher sees every revision once; or is told that it is too slow.
async fn follow(store: Arc<Embedded>) {
    loop {
        let Keys { start, end } = everything();
        let mut last = store.revision().await.unwrap();
        let mut watch = store.watch(start, end, last + 1).await.unwrap();
        while let Some(batch) = watch.next().await {
            match batch {
                Ok(batch) => assert_eq!(batch.revision, last + 1, "a gap, or a repeat"),
                Err(StoreError::SlowWatcher | StoreError::Compacted { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            last += 1;
        }
    }
}

fn key(writer: usize, name: &str) -> String {
    format!("writer-{writer}/{name}")
}

/// A writer's keys as they are; `None` if it has written nothing.
struct Found {
    count: usize,
    revision: Revision,
}

async fn found(store: &Embedded, writer: usize) -> Option<Found> {
    let keys = store.range(Range::prefix(key(writer, ""))).await.unwrap().kvs;
    let text = |kv: &KeyValue| String::from_utf8_lossy(&kv.value).into_owned();
    let count = |kv: &KeyValue| text(kv).split(' ').next().unwrap().parse::<usize>().unwrap();
    let (first, rest) = keys.split_first()?;
    let found = Found { count: count(first), revision: first.mod_revision };
    assert_eq!(rest.len(), if found.count.is_multiple_of(3) { 1 } else { 2 }, "half a transaction of writer {writer}");
    assert_eq!((count(&rest[0]), rest[0].mod_revision), (found.count, found.revision), "half a transaction");
    assert_eq!((first.version, first.create_revision.min(found.revision)), (found.count as i64, first.create_revision));
    Some(found)
}

/// What the parent knows from what it was told.
#[derive(Default)]
pub(crate) struct Known {
    /// By revision: which writer reached which count.
    acked: BTreeMap<Revision, (usize, usize)>,
    counts: Vec<usize>,
    revision: Revision,
    /// A watcher that outlives the crashes has seen everything up to here.
    watched: Revision,
    watched_through: usize,
    compacted: usize,
}

/// A line of the child's.
#[derive(PartialEq)]
pub(crate) enum Said {
    Acked,
    Full,
}

impl Known {
    pub(crate) fn new(kind: Kind) -> Known {
        Known { revision: 1, counts: vec![0; kind.writers()], ..Known::default() }
    }

    /// Runs a child until it has acknowledged `acks` changes, then `-9`; reads all it said.
    fn run_and_kill(&mut self, dir: &Path, acks: u64, delay: Duration, kind: Kind) {
        let mut seen = 0;
        self.run(dir, kind, |said| {
            seen += u64::from(said == Said::Acked);
            let is_due = said == Said::Acked && seen == acks;
            if is_due {
                // Somewhere inside what it does next.
                std::thread::sleep(delay);
            }
            is_due
        });
    }

    /// Runs a child, and kills it with `-9` once `is_over` says so of a line; reads all it said.
    pub(crate) fn run(&mut self, dir: &Path, kind: Kind, mut is_over: impl FnMut(Said) -> bool) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crash::child", "--nocapture"]).stdout(Stdio::piped());
        let mut child = command.env(DIR, dir).env(KIND, format!("{kind:?}")).spawn().unwrap();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            let words: Vec<&str> = line.rsplit("acked ").next().unwrap().split(' ').collect();
            let said = match words[..] {
                [writer, count, revision] => {
                    let (Ok(writer), Ok(count)) = (writer.parse::<usize>(), count.parse()) else { continue };
                    let before = self.acked.insert(revision.parse().unwrap(), (writer, count));
                    assert_eq!(before, None, "revision {revision} was given twice");
                    self.counts[writer] = self.counts[writer].max(count);
                    Said::Acked
                }
                ["full"] => Said::Full,
                _ => continue,
            };
            if is_over(said) {
                child.kill().unwrap();
            }
        }
        assert_eq!(child.wait().unwrap().signal(), Some(9), "the child ended by itself");
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) async fn check(&mut self, store: &Embedded) {
        let revision = store.revision().await.unwrap();
        assert!(revision >= self.revision, "revisions went back from {} to {revision}", self.revision);
        assert!(self.acked.last_key_value().is_none_or(|(last, _)| *last <= revision));
        let mut sum = 0;
        for (writer, acked) in self.counts.iter_mut().enumerate() {
            let Some(found) = found(store, writer).await else {
                assert_eq!(*acked, 0, "writer {writer} lost all");
                continue;
            };
            assert!(
                found.count == *acked || found.count == *acked + 1,
                "{writer} acked {acked}, found {}",
                found.count
            );
            if found.count == *acked {
                assert_eq!(self.acked.get(&found.revision), Some(&(writer, found.count)), "at another revision");
            }
            // It is durable now, acknowledged or not.
            self.acked.insert(found.revision, (writer, found.count));
            *acked = found.count;
            sum += found.count;
        }
        assert_eq!(revision, 1 + sum as Revision, "every revision is one change of one writer");
        self.resume_watch(store, revision).await;
        self.revision = revision;
    }

    /// The watcher goes on where it was before the crash.
    async fn resume_watch(&mut self, store: &Embedded, revision: Revision) {
        let Keys { start, end } = everything();
        let mut watch = match store.watch(start, end, self.watched + 1).await {
            Ok(watch) => watch,
            Err(StoreError::Compacted { oldest }) => {
                assert!(oldest > self.watched + 1 && oldest <= revision);
                self.compacted += 1;
                self.watched = revision;
                return;
            }
            Err(error) => panic!("{error}"),
        };
        while self.watched < revision {
            let batch = watch.next().await.unwrap().unwrap();
            assert_eq!(batch.revision, self.watched.max(1) + 1, "a gap, or a repeat");
            let event = &batch.events[0].kv;
            let told = String::from_utf8_lossy(&event.value).split(' ').next().unwrap().parse().unwrap();
            let (writer, count) = self.acked.get(&batch.revision).copied().unwrap_or_else(|| panic!("{event:?}"));
            assert_eq!((event.key.clone(), told), (key(writer, "a").into(), count), "at {}", batch.revision);
            self.watched = batch.revision;
            self.watched_through += 1;
        }
    }
}

#[test]
fn an_acknowledged_write_survives_kill_9() {
    let rounds = if long() { 500 } else { 20 };
    let mut random = Random::from_environment();
    eprintln!("FERRY_SEED={} {rounds} rounds", random.seed());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut known = Known::new(Kind::Usual);
    for round in 0..rounds {
        let kind = if round % 4 == 3 { Kind::Forgetful } else { Kind::Usual };
        let delay = Duration::from_micros(random.below(5000));
        known.run_and_kill(dir.path(), 1 + random.below(600), delay, kind);
        let store = Embedded::open(dir.path(), kind.options()).unwrap();
        runtime.block_on(known.check(&store));
    }
    eprintln!(
        "{rounds} kills, {} changes, {} watched through crashes, {} times told of compaction",
        known.revision - 1,
        known.watched_through,
        known.compacted
    );
    assert!(known.watched_through > 0 && known.compacted > 0, "both were to be tested");
}
