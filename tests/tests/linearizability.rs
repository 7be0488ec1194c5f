//! Concurrent clients of three API servers on three etcd members, while servers and members are killed and paused: what the
//! clients saw of each object can be put in one order.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{EtcdCluster, Server, start_servers};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use testkit::linearizability::{Action, Expected, Operation, Outcome, Sighting, Version, check, check_revisions};
use testkit::{Random, long};

const CLIENTS: usize = 6;
const KEYS: u64 = 3;
/// Of one client on the objects of one round, so that no history is longer than its check is quick.
const OPERATIONS: usize = 150;
/// An answer that takes longer is not waited for: its outcome is unknown.
const PATIENCE: Duration = Duration::from_secs(8);
/// After a failure, and then at another server.
const PAUSE: Duration = Duration::from_millis(300);

/// What all clients of a run share.
struct Run {
    begun: Instant,
    until: Instant,
    values: AtomicU64,
}

type Histories = BTreeMap<String, Vec<Operation>>;

struct Caller {
    id: usize,
    servers: Vec<Api<ConfigMap>>,
    /// The server it asks, modulo their number.
    turn: usize,
    run: Arc<Run>,
    random: Random,
    seen: BTreeMap<String, Version>,
    histories: Histories,
}

impl Caller {
    async fn work(mut self, round: usize) -> Histories {
        for _ in 0..OPERATIONS {
            if Instant::now() > self.run.until {
                break;
            }
            let name = format!("key-{round}-{}", self.random.below(KEYS));
            let called = self.now();
            let action = match self.random.below(10) {
                0..4 => self.read(&name).await,
                4 => self.delete(&name).await,
                _ => self.write(&name).await,
            };
            let Some(action) = action else { continue };
            let (Action::Write { outcome, .. } | Action::Delete { outcome, .. }) = action else {
                self.note(name, called, true, action);
                continue;
            };
            let known = outcome != Outcome::Unknown;
            self.note(name, called, known, action);
            if !known {
                self.go_elsewhere().await;
            }
        }
        self.histories
    }

    fn now(&self) -> u64 {
        u64::try_from(self.run.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn note(&mut self, name: String, called: u64, known: bool, action: Action) {
        let answered = known.then(|| self.now());
        self.histories.entry(name).or_default().push(Operation { client: self.id, called, answered, action });
    }

    fn api(&self) -> &Api<ConfigMap> {
        &self.servers[self.turn % self.servers.len()]
    }

    async fn go_elsewhere(&mut self) {
        self.turn += 1;
        tokio::time::sleep(PAUSE).await;
    }

    /// A read that failed says nothing.
    async fn read(&mut self, name: &str) -> Option<Action> {
        match tokio::time::timeout(PATIENCE, self.api().get_opt(name)).await {
            Ok(Ok(object)) => {
                let found = object.as_ref().and_then(version);
                self.seen.remove(name);
                self.seen.extend(found.map(|found| (name.to_owned(), found)));
                Some(Action::Read { found })
            }
            _ => {
                self.go_elsewhere().await;
                None
            }
        }
    }

    /// Creates what it last saw absent, replaces what it last saw.
    async fn write(&mut self, name: &str) -> Option<Action> {
        let value = self.run.values.fetch_add(1, Ordering::Relaxed);
        let seen = self.seen.remove(name);
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                resource_version: seen.map(|seen| seen.revision.to_string()),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([("value".to_owned(), value.to_string())])),
            ..ConfigMap::default()
        };
        let options = PostParams::default();
        let expected = seen.map_or(Expected::Absent, |seen| Expected::At(seen.revision));
        let answer = match seen {
            None => tokio::time::timeout(PATIENCE, self.api().create(&options, &object)).await,
            Some(_) => tokio::time::timeout(PATIENCE, self.api().replace(name, &options, &object)).await,
        };
        let outcome = match answer {
            Ok(Ok(written)) => {
                let written = version(&written)?;
                self.seen.insert(name.to_owned(), written);
                Outcome::Done(Some(written.revision))
            }
            Ok(Err(error)) => refusal(&error),
            Err(_) => Outcome::Unknown,
        };
        Some(Action::Write { expected, value, outcome })
    }

    /// Deletes what it last saw, if nobody changed it. The answer does not tell at which revision.
    async fn delete(&mut self, name: &str) -> Option<Action> {
        let seen = self.seen.remove(name)?;
        let condition = Preconditions { resource_version: Some(seen.revision.to_string()), uid: None };
        let options = DeleteParams { preconditions: Some(condition), ..DeleteParams::default() };
        let outcome = match tokio::time::timeout(PATIENCE, self.api().delete(name, &options)).await {
            Ok(Ok(_)) => Outcome::Done(None),
            Ok(Err(error)) => refusal(&error),
            Err(_) => Outcome::Unknown,
        };
        Some(Action::Delete { expected: Expected::At(seen.revision), outcome })
    }
}

/// Only a plain "no" is one. Anything else may have happened.
fn refusal(error: &kube::Error) -> Outcome {
    match error {
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

fn version(object: &ConfigMap) -> Option<Version> {
    let value = object.data.as_ref()?.get("value")?.parse().ok()?;
    Some(Version { value, revision: object.metadata.resource_version.as_ref()?.parse().ok()? })
}

async fn api(server: &Server) -> Result<Api<ConfigMap>> {
    let file = Kubeconfig::read_from(server.dir.join("admin.conf"))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    // A request that is sent twice without our knowing may do its work and then be refused.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(2));
    Ok(Api::default_namespaced(Client::try_from(config)?))
}

/// Kills and pauses servers and members, one at a time, until told to stop.
fn torment(mut etcd: EtcdCluster, mut servers: Vec<Server>, mut random: Random, ended: &AtomicBool) -> Result<usize> {
    let mut faults = 0;
    while !ended.load(Ordering::Relaxed) {
        let index = usize::try_from(random.below(3))?;
        let pause = Duration::from_millis(500 + random.below(3500));
        let running = || "it runs".to_owned();
        match random.below(4) {
            0 if etcd.members[index].survives_kills() => {
                etcd.members[index].process.take().with_context(running)?.kill()?;
                std::thread::sleep(pause);
                etcd.members[index].start()?;
                etcd.members[index].healthy()?;
            }
            0 | 1 => {
                etcd.members[index].process.as_mut().with_context(running)?.pause()?;
                std::thread::sleep(pause);
                etcd.members[index].process.as_mut().with_context(running)?.resume()?;
                etcd.members[index].healthy()?;
            }
            2 => {
                servers[index].process.take().with_context(running)?.kill()?;
                std::thread::sleep(pause);
                servers[index].start()?;
                servers[index].ready()?;
            }
            _ => {
                servers[index].process.as_mut().with_context(running)?.pause()?;
                std::thread::sleep(pause);
                servers[index].process.as_mut().with_context(running)?.resume()?;
            }
        }
        faults += 1;
    }
    Ok(faults)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_linearizable_through_three_servers_while_parts_die() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let mut random = Random::from_environment();
    eprintln!("FERRY_SEED={}", random.seed());
    let etcd = EtcdCluster::start(dir.path(), 3)?;
    let servers = start_servers(dir.path(), 3, &etcd.urls(), &[])?;
    let mut apis = Vec::new();
    for server in &servers {
        apis.push(api(server).await?);
    }
    let begun = Instant::now();
    let until = begun + Duration::from_secs(if long() { 600 } else { 40 });
    let run = Arc::new(Run { begun, until, values: AtomicU64::new(1) });
    let ended = Arc::new(AtomicBool::new(false));
    let tormentor = std::thread::spawn({
        let (random, ended) = (random.split(), ended.clone());
        move || torment(etcd, servers, random, &ended)
    });
    let judged = judge(&run, &apis, &mut random).await;
    ended.store(true, Ordering::Relaxed);
    let Ok(faults) = tormentor.join() else { bail!("the tormentor panicked") };
    eprintln!("{} while {} parts were killed or paused: linearizable", judged?, faults?);
    Ok(())
}

/// Rounds of clients until the time is over; answers what they did.
async fn judge(run: &Arc<Run>, apis: &[Api<ConfigMap>], random: &mut Random) -> Result<String> {
    let (mut operations, mut unknown, mut rounds) = (0, 0, 0);
    let mut sightings = Vec::new();
    while Instant::now() < run.until {
        let caller = |id: usize| Caller {
            id,
            servers: apis.to_vec(),
            turn: id,
            run: run.clone(),
            random: random.split(),
            seen: BTreeMap::new(),
            histories: Histories::new(),
        };
        let callers: Vec<_> = (0..CLIENTS).map(caller).map(|caller| tokio::spawn(caller.work(rounds))).collect();
        let mut histories = Histories::new();
        for caller in callers {
            for (name, operations) in caller.await? {
                histories.entry(name).or_default().extend(operations);
            }
        }
        for (name, history) in histories {
            if let Err(violation) = check(&history) {
                bail!("{name}: {violation}");
            }
            operations += history.len();
            unknown += history.iter().filter(|operation| operation.answered.is_none()).count();
            sightings.extend(history.iter().filter_map(Sighting::of));
        }
        rounds += 1;
    }
    if let Err((earlier, later)) = check_revisions(&sightings) {
        bail!("{later:?} after {earlier:?}");
    }
    ensure!(operations > 200, "too little was done to tell: {operations} operations");
    Ok(format!("{operations} operations in {rounds} rounds, {unknown} of unknown outcome,"))
}
