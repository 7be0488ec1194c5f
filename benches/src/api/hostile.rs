//! What clients that mean harm, or are broken, cost the others: how long those wait meanwhile, and what the server holds.

use std::{
    io::Write as _,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use tokio::{io::AsyncWriteExt as _, task::JoinSet, time::sleep};

use super::{NAMESPACE, apart::Apart, servers::Server};
use crate::{
    report::{Latencies, Report, megabytes, milliseconds},
    rounds::{ROUNDS, undisturbed},
};

/// Well-behaved clients, and how much each asks.
const CLIENTS: usize = 8;
const GETS: usize = 200;
/// Between what one of them asks: the others are to be felt, not how busy these keep the machine themselves.
const THINK: Duration = Duration::from_millis(2);
/// Attackers of each kind that sends bodies.
const ATTACKERS: usize = 2;
/// Between what one of them sends: it is what is sent that does the harm here, not how much.
const PAUSE: Duration = Duration::from_millis(20);
const SLOW: usize = 500;
const IDLE: usize = 10_000;
const WATCHERS: usize = 200;
/// What an attack may make the server hold.
const HELD: u64 = 200_000_000;
/// An idle connection has a TLS session and two buffers.
const HELD_IDLE: u64 = 400_000_000;

/// An attack goes on until it is dropped. It has a thread of its own, which runs while nobody else wants to: what attackers do with
/// their own processors is no concern of the server.
pub(super) struct Attack {
    pub(super) tasks: JoinSet<Result<()>>,
    thread: Apart,
}

impl Attack {
    pub(super) fn new() -> Result<Self> {
        let thread = Apart::new(|| {
            // Being nice is not enough: a nice thread keeps its processor for a slice of time as any other does.
            let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
            let idle = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status();
            if !idle.is_ok_and(|status| status.success()) {
                let _ = writeln!(std::io::stderr(), "chrt failed: the attack is stronger than it says");
            }
        })?;
        Ok(Self { tasks: JoinSet::new(), thread })
    }

    /// Does this where the attack runs: what is connected there is also read there.
    pub(super) async fn prepare<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.thread.runtime()?.spawn(task).await?
    }

    pub(super) fn spawn(&mut self, task: impl Future<Output = Result<()>> + Send + 'static) {
        if let Ok(runtime) = self.thread.runtime() {
            self.tasks.spawn_on(task, runtime.handle());
        }
    }
}

pub(super) async fn run(server: Server, report: &mut Report) -> Result<()> {
    Report::title(&format!(
        "{CLIENTS} clients get a ConfigMap {GETS} times each while somebody else is hostile; the median of {ROUNDS} (peer: calm)"
    ));
    let server = Arc::new(server);
    let map = json!({"metadata": {"name": "calm"}, "data": {"text": "v".repeat(1000)}});
    server.client().await?.post(&format!("{NAMESPACE}/configmaps"), &map).await?;
    let maps = format!("{NAMESPACE}/configmaps");
    let calm = format!("{maps}/calm");
    const JSON: &str = "application/json";
    const PATCH: &str = "application/json-patch+json";
    let bodies: [(&str, Method, &str, &str, Bytes); 9] = [
        ("bodies of 4 MB", Method::POST, &maps, JSON, sized(4 << 20)),
        ("bodies of 3 MB", Method::POST, &maps, JSON, sized((3 << 20) - 200)),
        ("JSON nested 100,000 deep", Method::POST, &maps, JSON, "[".repeat(100_000).into()),
        ("3 MB of labels", Method::POST, &maps, JSON, labels()),
        ("invalid UTF-8", Method::POST, &maps, JSON, vec![0xff; 100_000].into()),
        ("an unknown content type", Method::POST, &maps, "image/png", vec![0; 100_000].into()),
        (
            "protobuf cut short",
            Method::POST,
            &maps,
            "application/vnd.kubernetes.protobuf",
            Bytes::from_static(b"k8s\0\x0a\xff\xff\xff\xff\x0f"),
        ),
        ("a patch of copies of copies", Method::PATCH, &calm, PATCH, copies()),
        ("a YAML of references to references", Method::POST, &maps, "application/yaml", references()),
    ];
    for (what, method, path, content_type, body) in bodies {
        let attack = async {
            let mut attack = Attack::new()?;
            for _ in 0..ATTACKERS {
                let (server, method, path) = (server.clone(), method.clone(), path.to_owned());
                let (content_type, body) = (content_type.to_owned(), body.clone());
                attack.spawn(async move {
                    loop {
                        let mut client = server.client().await?;
                        while let Some(status) =
                            client.provoke(method.clone(), &path, &content_type, body.clone()).await
                        {
                            ensure!(!status.is_server_error(), "{status} for {path}");
                            sleep(PAUSE).await;
                        }
                    }
                });
            }
            Ok(attack)
        };
        suffer(&server, report, what, HELD, attack).await?;
    }
    suffer(&server, report, &format!("{SLOW} headers sent a byte at a time"), HELD, drip(&server)).await?;
    suffer(&server, report, &format!("{WATCHERS} watchers that never read"), HELD, deaf(&server)).await?;
    suffer(&server, report, &format!("{IDLE} idle connections"), HELD_IDLE, idle(&server)).await
}

/// Measures calm clients before an attack and during it.
async fn suffer(
    server: &Arc<Server>,
    report: &mut Report,
    what: &str,
    bound: u64,
    attack: impl Future<Output = Result<Attack>>,
) -> Result<()> {
    let calm = slowest(server).await?;
    let before = server.process.resident_bytes()?;
    server.process.forget_peak()?;
    let mut attack = attack.await?;
    sleep(Duration::from_millis(300)).await;
    let during = slowest(server).await?;
    let grown = server.process.peak_bytes()?.saturating_sub(before);
    let ratio = during.as_secs_f64() / calm.as_secs_f64();
    report.line(what, &milliseconds(during), &milliseconds(calm), Some(ratio), "p99 within 2×", Some(ratio <= 2.0));
    let bar = format!("memory at most {}", megabytes(bound));
    report.line("", &megabytes(grown), "", None, &bar, Some(grown <= bound));
    if let Some(failed) = attack.tasks.try_join_next() {
        failed??;
    }
    attack.tasks.shutdown().await;
    Ok(())
}

/// The 99th percentile of what well-behaved clients wait.
async fn slowest(server: &Server) -> Result<Duration> {
    undisturbed(async || Ok(gets(server).await?.percentile(99))).await
}

/// What well-behaved clients are answered in.
pub(super) async fn gets(server: &Server) -> Result<Latencies> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for mut client in server.clients(CLIENTS).await? {
        tasks.spawn(async move {
            let mut latencies = Vec::with_capacity(GETS);
            for _ in 0..GETS {
                let begun = Instant::now();
                client.get(&format!("{NAMESPACE}/configmaps/calm"), "application/json").await?;
                latencies.push(begun.elapsed());
                sleep(THINK).await;
            }
            Ok(latencies)
        });
    }
    Latencies::gather(tasks, begun).await
}

fn sized(bytes: usize) -> Bytes {
    json!({"metadata": {"generateName": "large-"}, "data": {"text": "v".repeat(bytes)}}).to_string().into()
}

fn labels() -> Bytes {
    let labels: serde_json::Map<_, _> = (0..240_000).map(|index| (format!("l{index}"), json!(""))).collect();
    json!({"metadata": {"generateName": "labels-", "labels": labels}}).to_string().into()
}

/// Each copy doubles what was there.
fn copies() -> Bytes {
    let add = json!({"op": "add", "path": "/data/a0", "value": "v".repeat(1000)});
    let copy = (0..40).map(|index| json!({"op": "copy", "from": "/data", "path": format!("/data/a{}", index + 1)}));
    json!(std::iter::once(add).chain(copy).collect::<Vec<_>>()).to_string().into()
}

fn references() -> Bytes {
    let mut text = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for index in 1..12 {
        let before = format!("*a{}", index - 1);
        text += &format!("a{index}: &a{index} [{}]\n", [before.as_str(); 9].join(", "));
    }
    text.into()
}

async fn drip(server: &Arc<Server>) -> Result<Attack> {
    let mut attack = Attack::new()?;
    for _ in 0..SLOW {
        let (server, again) = (server.clone(), server.clone());
        let mut stream = attack.prepare(async move { server.trust.open(&server.process.url).await }).await?;
        attack.spawn(async move {
            loop {
                for byte in b"GET /api HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'x')) {
                    // The server has had enough of it at some time.
                    if stream.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    sleep(Duration::from_secs(1)).await;
                }
                stream = again.trust.open(&again.process.url).await?;
            }
        });
    }
    Ok(attack)
}

/// Watches of something that is written all the time.
async fn deaf(server: &Arc<Server>) -> Result<Attack> {
    let mut attack = Attack::new()?;
    for _ in 0..WATCHERS {
        let server = server.clone();
        let watch = attack.prepare(async move {
            let mut client = server.client().await?;
            let path = format!("{NAMESPACE}/configmaps?watch=1");
            let body = client.open(Method::GET, &path, "application/json", Bytes::new()).await?;
            Ok((client, body))
        });
        let watch = watch.await?;
        attack.spawn(async move {
            std::future::pending::<()>().await;
            drop(watch);
            Ok(())
        });
    }
    let server = server.clone();
    attack.spawn(async move {
        let mut writer = server.client().await?;
        for index in 0_usize.. {
            let map =
                json!({"metadata": {"name": "written"}, "data": {"text": "v".repeat(1000), "n": index.to_string()}});
            let (method, path) = match index {
                0 => (Method::POST, format!("{NAMESPACE}/configmaps")),
                _ => (Method::PUT, format!("{NAMESPACE}/configmaps/written")),
            };
            writer.send(method, &path, map.to_string().into()).await?;
            sleep(PAUSE).await;
        }
        Ok(())
    });
    Ok(attack)
}

async fn idle(server: &Arc<Server>) -> Result<Attack> {
    let mut attack = Attack::new()?;
    for _ in 0..IDLE {
        let server = server.clone();
        let stream = attack.prepare(async move { server.trust.open(&server.process.url).await }).await?;
        attack.spawn(async move {
            std::future::pending::<()>().await;
            drop(stream);
            Ok(())
        });
    }
    Ok(attack)
}
