//! Hostile pods: each takes from its node all it can get. The node stays Ready, the API answers as fast as before, within a factor
//! of two, the cluster's process stays small, and the pod can be deleted.
//!
//! The cluster lives on a small disk of its own, and its pods share a part of memory, so that what is starved is theirs. Needs root.

// What is measured is printed, and an object without the wanted field fails the test.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{Cluster, Leaks, Options, archive_of, eventually, ferry_binary, run, text};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::Value;
use testkit::SmallDisk;

const IMAGE: &str = "example.com/hostile:1";
const DISK: u64 = 4 << 30;
const INODES: u64 = 100_000;
/// What all pods share.
const PODS_MEMORY: u64 = 1 << 30;
/// The cluster's process, whatever its pods do.
const MAX_PSS_KIB: u64 = 300 << 10;
const SLOWER_AT_MOST: u32 = 2;
/// How long a pod may do its worst while the cluster is watched.
const ATTACK: Duration = Duration::from_secs(6);
/// When the store writes again after its disk was full.
const WRITABLE_AGAIN: Duration = Duration::from_secs(10);
const REQUESTS: usize = 100;
/// Measurements before requests count as slow: writes wait for the disk, which others use, too.
const TRIES: usize = 5;

/// How a hostile pod is known to have done its worst.
enum Worst {
    /// It has run for a while.
    Runs,
    /// It is Evicted, with a message that has this text.
    Evicted(&'static str),
    /// Its container has ended, and this is in its status.
    Ended(&'static str),
    /// It never runs; this is in its status or one of its events, in lower case.
    Waits(&'static str),
}

struct Case {
    name: &'static str,
    /// The pod's spec but for what all have in common: fields of the container, then of the pod.
    container: String,
    pod: &'static str,
    worst: Worst,
}

fn case(name: &'static str, command: &[&str], worst: Worst) -> Case {
    Case { name, container: format!("args: {command:?}"), pod: "", worst }
}

impl Case {
    fn container(mut self, fields: &str) -> Self {
        self.container = format!("{}, {fields}", self.container);
        self
    }

    fn pod(mut self, fields: &'static str) -> Self {
        self.pod = fields;
        self
    }

    fn manifest(&self) -> String {
        let Self { name, container, pod, .. } = self;
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, {pod} \
             containers: [{{name: main, image: \"{IMAGE}\", imagePullPolicy: Never, {container}}}]}}}}"
        )
    }
}

fn cases() -> Vec<Case> {
    let volume = |source: &str| format!("volumes: [{{name: data, emptyDir: {source}}}],");
    let mounted = "volumeMounts: [{name: data, mountPath: /data}]";
    let limited: &'static str = volume("{sizeLimit: 50Mi}").leak();
    let memory: &'static str = volume("{medium: Memory}").leak();
    let probe = |path: &str| {
        format!(
            "livenessProbe: {{httpGet: {{path: {path}, port: 8080}}, periodSeconds: 1, failureThreshold: 1000}}, \
             readinessProbe: {{exec: {{command: [/hostile, flood]}}, periodSeconds: 1, timeoutSeconds: 1}}"
        )
    };
    let many = |item: &dyn Fn(usize) -> String| (0..1000).map(item).collect::<Vec<_>>().join(", ");
    let from = many(&|n| format!("{{prefix: P{n}, configMapRef: {{name: large}}}}"));
    let doubled: Vec<String> = (1..40).map(|n| format!("{{name: V{n}, value: $(V{0})$(V{0})}}", n - 1)).collect();
    let files = many(&|n| format!("{{key: key, path: f{n}}}"));
    let files: &'static str =
        format!("volumes: [{{name: data, configMap: {{name: large, items: [{files}]}}}}],").leak();
    vec![
        case("log-flood", &["flood"], Worst::Runs),
        case("log-line", &["one-line"], Worst::Runs),
        case("fork-bomb", &["breed"], Worst::Runs),
        case("memory", &["eat-memory"], Worst::Ended("OOMKilled")),
        case("probed-body", &["serve-without-end", "8080"], Worst::Runs).container(&probe("/")),
        case("probed-headers", &["serve-without-end", "8080"], Worst::Runs).container(&probe("/headers")),
        case("kubelet-connections", &["hold-connections", "10.244.0.1:10250"], Worst::Runs),
        case("api-connections", &["hold-connections", "10.96.0.1:443"], Worst::Runs),
        case("dns-connections", &["hold-connections", "10.96.0.10:53"], Worst::Runs),
        case("dns-flood", &["flood-dns", "10.96.0.10:53"], Worst::Runs),
        case("environment", &["sleep"], Worst::Waits("argument list too long"))
            .container(&format!("envFrom: [{from}]")),
        case("doubled-variables", &["sleep"], Worst::Waits("argument list too long"))
            .container(&format!("env: [{{name: V0, value: xxxxxxxx}}, {}]", doubled.join(", "))),
        case("config-files", &["sleep"], Worst::Waits("take more than 32 mib")).container(mounted).pod(files),
        case("sparse-message", &["sparse", "/dev/termination-log", "12884901888"], Worst::Ended("Error")),
        case("loud-crash", &["crash-loudly"], Worst::Ended("!!!!"))
            .container("terminationMessagePolicy: FallbackToLogsOnError"),
        case("limited-volume", &["fill", "/data/x"], Worst::Evicted("exceeds the limit \"50Mi\""))
            .container(mounted)
            .pod(limited),
        case("limited-layer", &["fill", "/x"], Worst::Evicted("usage exceeds the total limit of containers 100Mi"))
            .container("resources: {limits: {ephemeral-storage: 100Mi}}"),
        case("memory-volume", &["fill", "/data/x"], Worst::Evicted("The node was low on resource: memory"))
            .container(mounted)
            .pod(memory),
        case("inodes", &["make-files", "/"], Worst::Evicted("The node was low on resource: inodes")),
        case("layer", &["fill", "/x"], Worst::Evicted("The node was low on resource: ephemeral-storage")),
        case("message-file", &["fill", "/dev/termination-log"], Worst::Evicted("The node was low on resource")),
        case("hosts-file", &["fill", "/etc/hosts"], Worst::Evicted("The node was low on resource")),
    ]
}

#[test]
fn hostile_pods_leave_the_node_as_it_was() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let disk = SmallDisk::new(dir.path(), DISK, Some(INODES))?;
    let leaks = Leaks::watch(disk.path());
    let bed = Bed::start(disk.path(), dir.path())?;
    let only = std::env::var("FERRY_HOSTILE").unwrap_or_default();
    for case in cases().iter().filter(|case| only.is_empty() || case.name == only) {
        bed.attack(case).with_context(|| case.name)?;
    }
    if only.is_empty() {
        bed.image_bomb(dir.path()).context("image bomb")?;
        bed.endless_exec_and_logs().context("endless exec and logs")?;
        bed.many_events().context("many events")?;
    }
    bed.finish()?;
    leaks.none_since()
}

struct Bed {
    disk: PathBuf,
    cluster: Cluster,
    api: Answers,
    calm: Duration,
    memory: Memory,
}

impl Bed {
    fn start(disk: &Path, dir: &Path) -> Result<Self> {
        let archive = archive_of(dir, IMAGE, Path::new(env!("CARGO_BIN_EXE_hostile-pod")), "hostile", &["sleep"])?;
        let reserved = memory_total()?.saturating_sub(PODS_MEMORY);
        let arguments = vec![
            format!("--system-reserved=memory={reserved}"),
            "--eviction-pressure-transition-period=1s".to_owned(),
            "--image-layer-max-size=256Mi".to_owned(),
        ];
        let cluster = Cluster::start_with(disk, &Options { arguments })?;
        let data = text(&disk.join("data"))?;
        run(&text(&ferry_binary())?, &["image", "--data-dir", &data, "import", &archive])?;
        let api = Answers::new(&disk.join("kubeconfig"))?;
        api.create_large_map()?;
        api.median()?;
        let calm = api.median()?;
        println!("calm: {calm:?}");
        let memory = Memory::watch(cluster.pid());
        Ok(Self { disk: disk.to_owned(), cluster, api, calm, memory })
    }

    fn attack(&self, case: &Case) -> Result<()> {
        let begun = Instant::now();
        let applied = self.cluster.apply(&case.manifest())?;
        ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        let limit = Duration::from_secs(90);
        let pod = format!("pod {}", case.name);
        let status = || -> Result<Value> { Ok(self.cluster.json(&["get", "pod", case.name])?["status"].clone()) };
        match case.worst {
            Worst::Runs => {
                self.cluster.kubectl(&[
                    "wait",
                    "--for=jsonpath={.status.phase}=Running",
                    "pod",
                    case.name,
                    "--timeout=60s",
                ])?;
                std::thread::sleep(ATTACK);
            }
            Worst::Evicted(message) => eventually(&format!("{pod} is evicted"), limit, || {
                let status = status()?;
                let found = status["reason"] == "Evicted";
                ensure!(!found || status["message"].to_string().contains(&message.replace('"', "\\\"")), "{status}");
                Ok(found.then_some(()))
            })?,
            Worst::Ended(text) => eventually(&format!("{pod} has ended"), limit, || {
                let status = status()?["containerStatuses"][0].clone();
                let ended = [&status["lastState"]["terminated"], &status["state"]["terminated"]];
                let message = ended.iter().find(|state| state.to_string().contains(text));
                // 4096 bytes, each of which may be escaped.
                ensure!(status.to_string().len() < 64 << 10, "a long status");
                Ok(message.map(|_| ()))
            })?,
            Worst::Waits(text) => eventually(&format!("{pod} waits"), limit, || {
                let of_pod = format!("--field-selector=involvedObject.name={}", case.name);
                let events = self.cluster.json(&["get", "events", &of_pod])?.to_string();
                let statuses = status()?["containerStatuses"].to_string();
                Ok((events + &statuses).to_lowercase().contains(text).then_some(()))
            })?,
        }
        let answer = self.check(case.name, begun)?;
        self.delete(case.name, answer)
    }

    /// An archive that is small until it is uncompressed.
    fn image_bomb(&self, dir: &Path) -> Result<()> {
        let begun = Instant::now();
        let zeros = dir.join("zeros");
        std::fs::File::create(&zeros)?.set_len(512 << 20)?;
        let archive = archive_of(dir, "example.com/bomb:1", &zeros, "zeros", &[])?;
        run("gzip", &["-1", &archive])?;
        let data = text(&self.disk.join("data"))?;
        let imported =
            run(&text(&ferry_binary())?, &["image", "--data-dir", &data, "import", &format!("{archive}.gz")]);
        let refused = imported.err().context("the image was imported")?.to_string();
        ensure!(refused.contains("--image-layer-max-size"), "{refused}");
        let answer = self.check("image-bomb", begun)?;
        self.compare(answer)
    }

    /// Output without end, read by clients that stop reading.
    fn endless_exec_and_logs(&self) -> Result<()> {
        let begun = Instant::now();
        let applied = self.cluster.apply(&case("streams", &["flood"], Worst::Runs).manifest())?;
        ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        self.cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "streams", "--timeout=60s"])?;
        let commands: [&[&str]; 3] =
            [&["exec", "streams", "--", "/hostile", "flood"], &["logs", "-f", "streams"], &["attach", "streams"]];
        let mut clients: Vec<Child> = Vec::new();
        for command in commands {
            let mut child = self.cluster.kubectl_command();
            let child = child.args(command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
            clients.push(child?);
        }
        for client in &mut clients {
            client.stdout.as_mut().context("stdout")?.read_exact(&mut vec![0; 1 << 20])?;
        }
        // Nobody reads any more.
        std::thread::sleep(ATTACK);
        let checked = self.check("streams", begun);
        for client in &mut clients {
            let _ = client.kill();
            let _ = client.wait();
        }
        self.delete("streams", checked?)
    }

    /// Many containers that fail at once and for ever write few events.
    fn many_events(&self) -> Result<()> {
        let begun = Instant::now();
        let containers: Vec<String> = (0..40)
            .map(|number| {
                format!("{{name: c{number}, image: \"{IMAGE}\", imagePullPolicy: Never, args: [exit, \"1\"]}}")
            })
            .collect();
        let containers = containers.join(", ");
        let manifest = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: events}}, spec: {{terminationGracePeriodSeconds: 1, containers: [{containers}]}}}}"
        );
        let applied = self.cluster.apply(&manifest)?;
        ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        std::thread::sleep(4 * ATTACK);
        let answer = self.check("events", begun)?;
        let events = self.cluster.json(&["get", "events", "--field-selector=involvedObject.name=events"])?;
        let count = events["items"].as_array().map_or(0, Vec::len);
        println!("  {count} events");
        // As upstream's recorder: 25 of each type from the kubelet, then one in five minutes; and the scheduler's own.
        ensure!(count <= 52, "{count} events of one pod");
        self.delete("events", answer)
    }

    /// The node is Ready and the process is small. Returns how long a request takes.
    fn check(&self, name: &str, begun: Instant) -> Result<Duration> {
        let took = begun.elapsed();
        // A pod may have filled the disk before it was evicted.
        let mut answer = eventually("the API takes writes", WRITABLE_AGAIN, || match self.api.median() {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if format!("{error:#}").contains("the disk of the store is full") => Ok(None),
            Err(error) => Err(error),
        })?;
        for _ in 1..TRIES {
            if answer > self.calm * SLOWER_AT_MOST {
                answer = answer.min(self.api.median()?);
            }
        }
        let ready = self.cluster.jsonpath("nodes", "{.items[0].status.conditions[?(@.type==\"Ready\")].status}")?;
        let pss = self.memory.most();
        println!("{name:<20} {took:>9.1?}  API {answer:>9.1?}  most memory so far {} MiB", pss >> 10);
        ensure!(ready == "True", "the node is Ready={ready}");
        ensure!(pss <= MAX_PSS_KIB, "the cluster's process took {pss} KiB");
        Ok(answer)
    }

    fn delete(&self, name: &str, answer: Duration) -> Result<()> {
        self.cluster.kubectl(&["delete", "pod", name, "--timeout=60s"])?;
        self.compare(answer)
    }

    /// Compares what a request took with a calm one. The machine may do other work by now than at the beginning, so the slower of two
    /// calm times counts.
    fn compare(&self, answer: Duration) -> Result<()> {
        if answer > self.calm * SLOWER_AT_MOST {
            let calm = self.calm.max(self.api.median()?);
            ensure!(answer <= calm * SLOWER_AT_MOST, "a request took {answer:?}, calm {calm:?}");
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        let Self { cluster, memory, .. } = self;
        println!("most memory of the cluster's process: {} MiB", memory.stop() >> 10);
        cluster.stop()
    }
}

/// How long the API takes for a durable write and a read.
struct Answers {
    runtime: tokio::runtime::Runtime,
    maps: Api<ConfigMap>,
}

impl Answers {
    fn new(kubeconfig: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let file = Kubeconfig::read_from(kubeconfig)?;
        let maps = runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            anyhow::Ok(Api::namespaced(Client::try_from(config)?, "default"))
        })?;
        Ok(Self { runtime, maps })
    }

    /// A ConfigMap nearly as large as one may be.
    fn create_large_map(&self) -> Result<()> {
        let metadata = ObjectMeta { name: Some("large".to_owned()), ..ObjectMeta::default() };
        let data = Some([("key".to_owned(), "x".repeat(1_000_000))].into());
        let map = ConfigMap { metadata, data, ..ConfigMap::default() };
        self.runtime.block_on(self.maps.create(&PostParams::default(), &map))?;
        Ok(())
    }

    /// Of creating, reading and deleting an object.
    fn median(&self) -> Result<Duration> {
        let metadata = ObjectMeta { name: Some("probe".to_owned()), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        let mut took = self.runtime.block_on(async {
            // One that was cut off by a full disk has left it.
            let _ = self.maps.delete("probe", &DeleteParams::default()).await;
            let mut took = Vec::with_capacity(REQUESTS);
            for _ in 0..REQUESTS {
                let begun = Instant::now();
                self.maps.create(&PostParams::default(), &map).await?;
                self.maps.get("probe").await?;
                self.maps.delete("probe", &DeleteParams::default()).await?;
                took.push(begun.elapsed());
            }
            anyhow::Ok(took)
        })?;
        took.sort_unstable();
        took.get(REQUESTS / 2).copied().context("a measurement")
    }
}

/// The most memory that a process had while it was watched.
struct Memory {
    most_kib: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Memory {
    fn watch(pid: u32) -> Self {
        let (most_kib, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (most, flag) = (most_kib.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                most.fetch_max(pss_kib(pid).unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self { most_kib, stop, thread }
    }

    fn most(&self) -> u64 {
        self.most_kib.load(Ordering::Relaxed)
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.most_kib.load(Ordering::Relaxed)
    }
}

fn pss_kib(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok())
}

fn memory_total() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("MemTotal")? << 10)
}
