//! Concurrent clients on few keys, and whether what they saw can be put in one order: the embedded engine, our server
//! in front of it, and real etcd while its members die.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use store::*;
use testkit::{
    Random, etcd_survives_kills,
    linearizability::{Action, Expected, Operation, Outcome, Sighting, Version, check, check_revisions},
    long,
};

use crate::etcd::{Etcd, Served, connect, tool};

const CLIENTS: usize = 6;
const KEYS: u64 = 4;
/// So that no key's history is longer than its check is quick.
const OPERATIONS: u64 = 400;

/// What all clients of a run share.
struct Run {
    begun: Instant,
    values: AtomicU64,
}

impl Run {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}

/// A key's history, by key.
type Histories = BTreeMap<String, Vec<Operation>>;

struct Client {
    id: usize,
    store: Arc<dyn Store>,
    run: Arc<Run>,
    random: Random,
    round: u64,
    /// What it last saw of each key.
    seen: BTreeMap<String, Version>,
    histories: Histories,
}

impl Client {
    async fn work(mut self, operations: u64) -> Histories {
        for _ in 0..operations {
            let key = format!("{}/{}", self.round, self.random.below(KEYS));
            let called = self.run.now();
            let action = match self.random.below(10) {
                0..4 => self.read(&key).await,
                4 => self.change(&key, None).await,
                _ => {
                    let value = self.run.values.fetch_add(1, Ordering::Relaxed);
                    self.change(&key, Some(value)).await
                }
            };
            let Some(action) = action else { continue };
            let unknown = matches!(
                action,
                Action::Write { outcome: Outcome::Unknown, .. } | Action::Delete { outcome: Outcome::Unknown, .. }
            );
            let answered = (!unknown).then(|| self.run.now());
            self.histories.entry(key).or_default().push(Operation { client: self.id, called, answered, action });
        }
        self.histories
    }

    /// A read that failed says nothing.
    async fn read(&mut self, key: &str) -> Option<Action> {
        let result = self.store.range(Range::key(key.to_owned())).await.ok()?;
        let found = result.kvs.first().map(|kv| version(kv));
        self.seen.remove(key);
        self.seen.extend(found.map(|found| (key.to_owned(), found)));
        Some(Action::Read { found })
    }

    /// Compare and set by what it last saw; without a value, compare and delete.
    async fn change(&mut self, key: &str, value: Option<u64>) -> Option<Action> {
        let seen = self.seen.get(key).copied();
        let expected = seen.map_or(Expected::Absent, |seen| Expected::At(seen.revision));
        let op = match value {
            Some(value) => Op::put(key.to_owned(), value.to_string()),
            None if seen.is_none() => return None,
            None => Op::delete(key.to_owned()),
        };
        let compare = Compare::ModRevision { key: key.to_owned().into(), is: seen.map_or(0, |seen| seen.revision) };
        let txn =
            Txn { compares: vec![compare], success: vec![op], failure: vec![Op::Range(Range::key(key.to_owned()))] };
        let outcome = match self.store.txn(txn).await {
            Ok(done) if done.succeeded => Outcome::Done(Some(done.revision)),
            Ok(_) => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        };
        self.seen.remove(key);
        if let (Outcome::Done(Some(revision)), Some(value)) = (outcome, value) {
            self.seen.insert(key.to_owned(), Version { value, revision });
        }
        Some(match value {
            Some(value) => Action::Write { expected, value, outcome },
            None => Action::Delete { expected, outcome },
        })
    }
}

fn version(kv: &KeyValue) -> Version {
    Version { value: String::from_utf8_lossy(&kv.value).parse().unwrap(), revision: kv.mod_revision }
}

/// Lets clients loose on their stores, on keys of their own in each round, and judges what they saw.
async fn run(stores: Vec<Arc<dyn Store>>, rounds: u64) {
    let mut random = Random::from_environment();
    eprintln!("FERRY_SEED={}", random.seed());
    let run = Arc::new(Run { begun: Instant::now(), values: AtomicU64::new(1) });
    let (mut operations, mut unknown) = (0, 0);
    let mut sightings = Vec::new();
    for round in 0..rounds {
        let client = |id: usize| Client {
            id,
            store: stores[id % stores.len()].clone(),
            run: run.clone(),
            random: random.split(),
            round,
            seen: BTreeMap::new(),
            histories: Histories::new(),
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).map(|client| tokio::spawn(client.work(OPERATIONS))).collect();
        let mut histories = Histories::new();
        for client in clients {
            for (key, operations) in client.await.unwrap() {
                histories.entry(key).or_default().extend(operations);
            }
        }
        for (key, history) in histories {
            check(&history).unwrap_or_else(|violation| panic!("{key}: {violation}"));
            operations += history.len();
            unknown += history.iter().filter(|operation| operation.answered.is_none()).count();
            sightings.extend(history.iter().filter_map(Sighting::of));
        }
    }
    check_revisions(&sightings).unwrap_or_else(|(earlier, later)| panic!("{later:?} after {earlier:?}"));
    eprintln!("{operations} operations in {rounds} rounds, {unknown} of unknown outcome: linearizable");
    assert!(operations > rounds as usize * 100, "too little was done to tell");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_engine_is_linearizable() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(dir.path(), Options::default()).unwrap());
    run(vec![store], if long() { 200 } else { 5 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_server_is_linearizable() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path());
    let mut clients: Vec<Arc<dyn Store>> = vec![served.store.clone()];
    for _ in 0..2 {
        clients.push(Arc::new(connect(vec![served.endpoint()]).await));
    }
    run(clients, if long() { 50 } else { 3 }).await;
    served.stop().await;
}

/// Each client starts at another member, so that there is always one whose member just died.
#[tokio::test(flavor = "multi_thread")]
async fn the_client_is_linearizable_while_members_die() {
    let Some(binary) = tool("etcd") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut members = Etcd::cluster(&binary, dir.path(), 3);
    let mut endpoints: Vec<String> = members.iter().map(|member| member.endpoint.clone()).collect();
    let mut clients: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..3 {
        endpoints.rotate_left(1);
        clients.push(Arc::new(connect(endpoints.clone()).await));
    }
    let survives = etcd_survives_kills(&binary);
    eprintln!("members are {}", if survives { "killed" } else { "paused: this etcd forgets when it is killed" });
    let ended = Arc::new(AtomicBool::new(false));
    let killer = std::thread::spawn({
        let ended = ended.clone();
        move || {
            for index in (0..members.len()).cycle() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                if survives {
                    members[index].kill();
                    std::thread::sleep(Duration::from_millis(500));
                    members[index].start();
                } else {
                    members[index].pause();
                    std::thread::sleep(Duration::from_millis(500));
                    members[index].resume();
                }
                std::thread::sleep(Duration::from_millis(1500));
            }
        }
    });
    run(clients, if long() { 50 } else { 2 }).await;
    ended.store(true, Ordering::Relaxed);
    killer.join().unwrap();
}
